"""An elastic job under way, as its processes note what they do (`elastic_worker.py`), and what must hold of it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WORKER = pathlib.Path(__file__).with_name("elastic_worker.py")

PATIENCE = 120.0
"""Seconds in which a job must have its size, or go on; longer is a hang."""


class Note(NamedTuple):
    """A step that a process has completed. `tries` and `twice` are 0 if its worker does not count them."""

    at_ns: int
    step: int
    size: int
    checksum: int
    tries: int = 0
    twice: int = 0


class Job:
    """A job under way. `notes` has those of all processes that there were, as of the last `update`."""

    def __init__(self, name: str, words: Sequence[str], folder: pathlib.Path, environment: Mapping[str, str]) -> None:
        self.name, self.folder = name, folder
        self.notes: dict[int, list[Note]] = {}
        self._offsets: dict[int, int] = {}
        self._log = open(folder / "output", "wb")  # noqa: SIM115 - open until the end
        self.process = subprocess.Popen(
            words, stdout=self._log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def update(self) -> None:
        """Reads what was noted since."""
        for path in self.folder.glob("*.steps"):
            pid = int(path.stem)
            with open(path, "rb") as file:
                file.seek(self._offsets.get(pid, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offsets[pid] = self._offsets.get(pid, 0) + len(whole)
            notes = self.notes.setdefault(pid, [])
            notes.extend(Note(*map(int, line.split()[:6])) for line in whole.splitlines())
        for path in self.folder.glob("*.wrong"):
            self.fail(f"process {path.stem}: {path.read_text().strip()}")

    def running(self) -> dict[int, list[Note]]:
        """The notes of processes that run."""
        self.update()
        return {pid: notes for pid, notes in self.notes.items() if is_running(pid)}

    def has_size(self, ranks: int) -> bool:
        """Whether so many ranks train together."""
        last = [notes[-1] for notes in self.running().values() if notes]
        return len(last) == ranks and all(note.size == ranks for note in last)

    def wait_for_size(self, ranks: int) -> None:
        """Returns when all ranks train together."""
        deadline = time.monotonic() + PATIENCE
        while not self.has_size(ranks):
            self.check(deadline, f"does not have {ranks} ranks")
            time.sleep(0.02)

    def check(self, deadline: float, what: str) -> None:
        """Ends everything if the job has ended, or takes too long."""
        if self.process.poll() is not None:
            self.fail(f"the job {what}, and has ended with {self.process.returncode}")
        if time.monotonic() > deadline:
            self.fail(f"the job {what}, and does not go on")

    def fail(self, what: str) -> None:
        """Ends everything, and leaves the folder."""
        tail = (self.folder / "output").read_text(errors="replace")[-4000:]
        last = {pid: notes[-1] for pid, notes in self.notes.items() if notes and is_running(pid)}
        shown = "\n".join(f"process {pid}: {note}" for pid, note in last.items())
        raise SystemExit(f"{tail}\n{shown}\n{self.name}: {what} (more in {self.folder})")

    def stop(self) -> None:
        """Kills everything that belongs to it, and reads the last notes."""
        self._kill()
        self.update()

    def _kill(self) -> None:
        self.process.kill()
        for path in self.folder.glob("*.steps"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.stem), signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, *, keep: bool) -> None:
        """Kills everything that belongs to it; the folder stays if it is wanted."""
        self._kill()
        self._log.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def end_on_signals() -> None:
    """Whoever is asked to end ends its jobs first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def new_folder() -> pathlib.Path:
    """For the notes of a job."""
    return pathlib.Path(tempfile.mkdtemp(prefix="elastic-"))


def farandole_words(
    flags: Sequence[str], worker: str, folder: pathlib.Path, *, is_apart: bool = False
) -> list[str]:
    """The command of a job. `worker` is `torch`, or the path of a program that takes the same words."""
    command = os.environ.get("FARANDOLE_COMMAND", "farandole")
    apart = [sys.executable, str(WORKER.with_name("apart.py"))] if is_apart else []
    program = [sys.executable, str(WORKER)] if worker == "torch" else [worker]
    return [command, "run", *flags, *apart, *program, "farandole", str(folder)]


def is_running(pid: int) -> bool:
    """Whether a process runs: one that is stopped, or dead and not yet reaped, does not."""
    return state_of(pid) not in "ZXTt"


def state_of(pid: int) -> str:
    """What the kernel says of a process, as a letter; `X` if there is none."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def one_history(job: Job) -> list[Note]:
    """A note for every step, on which all processes agree; ends everything if they do not.

    A lost process may have completed its last step alone, from what it had received; the others repeat that step
    without it. So the last note of a lost process counts only if no other process has noted that step.
    """
    noted: dict[int, list[tuple[int, Note]]] = {}
    for pid, notes in job.notes.items():
        numbers = [note.step for note in notes]
        # A process may be taken over a step that it has missed, and is given the state after it.
        if any(later <= earlier for earlier, later in zip(numbers, numbers[1:])):
            job.fail(f"process {pid} came to a step twice")
        for note in notes:
            noted.setdefault(note.step, []).append((pid, note))
    steps: dict[int, Note] = {}
    for number, by_process in noted.items():
        gone_on = [one for one in by_process if job.notes[one[0]][-1].step > number or is_running(one[0])]
        counted = gone_on or by_process
        steps[number] = counted[0][1]
        for pid, note in counted:
            if (note.checksum, note.size) != (steps[number].checksum, steps[number].size):
                job.fail(f"after step {number}, process {pid} has {note}, and others have {steps[number]}")
    history = [steps[number] for number in sorted(steps)]
    missing = [number for number, note in enumerate(history, 1) if note.step != number]
    if missing:
        job.fail(f"nobody has noted step {missing[0]}")
    return history


def check_history(job: Job, worker: str) -> str:
    """Runs the same membership history without faults; ends everything if the parameters are others."""
    history = one_history(job)
    (job.folder / "history").write_text("".join(f"{note.size} {note.checksum}\n" for note in history))
    words = [sys.executable, str(WORKER)] if worker == "torch" else [worker]
    done = subprocess.run([*words, "history", str(job.folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        job.fail(done.stderr.strip() or done.stdout.strip())
    return done.stdout.strip()
