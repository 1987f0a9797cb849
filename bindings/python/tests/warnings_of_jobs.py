"""The warnings of a job about parameters that differ, by scene: a scene begins where a rank writes `scene NAME` to
standard error."""

from __future__ import annotations

import re

from jobs import Job

BEGIN = """
import os, sys

def scene(name):
    sys.stderr.write(f"scene {name}\\n")
    sys.stderr.flush()
"""


def of(job: Job) -> dict[str, list[str]]:
    """The warnings of each scene, without the mark of the rank, of the one rank that warns: rank 0."""
    assert job.code == 0, job
    scenes: dict[str, list[str]] = {}
    warnings: list[str] = []
    for line in job.errors.splitlines():
        if found := re.match(r"\[0\]<stderr>:scene (.+)", line):
            warnings = scenes.setdefault(found[1], [])
        elif "parameters differ between ranks" in line or "have different parameters" in line:
            mark, _, text = line.partition("<stderr>:")
            assert mark == "[0]", line
            warnings.append(text)
    return scenes
