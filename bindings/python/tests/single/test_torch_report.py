"""A script for PyTorch that has one illness after the other: the report names each without any help of the script, and
the same script without the illness takes as long as was predicted.

Work and illnesses are sleep, so that they last as long as they should however busy the machine is.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, command, run_job

pytestmark = pytest.mark.alone

POINTS = 10
"""How far a prediction may be from what was measured, in points of percent of the time."""

STEPS = 14
"""Of the optimizer in each scene."""

SCENES = (
    "dataset",
    "workers",
    "late rank",
    "evaluation",
    "checkpoint",
    "logging",
    "rank 0 logs",
    "slow storage of rank 1",
)

SCRIPT = """
    import io, sys, time, torch, farandole.torch as hvd
    from torch.utils.data import DataLoader, Dataset

    ill, steps, scenes = sys.argv[1] == "ill", int(sys.argv[2]), sys.argv[3:]
    work = 0.03

    class Samples(Dataset):
        def __init__(self, count, seconds):
            self.count, self.seconds = count, seconds

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            time.sleep(self.seconds)
            return torch.full((4,), float(index)), index % 2

    class SlowDisk(io.BytesIO):
        def write(self, data):
            time.sleep(0.02)
            return super().write(data)

    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())

    def evaluate(batches):
        model.eval()
        with torch.no_grad():
            for inputs, labels in DataLoader(Samples(batches, 0), batch_size=1):
                model(inputs)
                time.sleep(work)
        model.train()

    def log_metrics(seconds):
        time.sleep(seconds)

    def train(scene):
        read = {"dataset": 0.03, "workers": 0.15}.get(scene, 0) if ill else 0
        if ill and scene == "slow storage of rank 1" and hvd.rank() == 1:
            read = 0.03
        late = 0.06 if ill and scene == "late rank" and hvd.rank() == 1 else 0
        loader = DataLoader(Samples(2 * steps, read), batch_size=2, num_workers=2 if scene == "workers" else 0)
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            time.sleep(work + late)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if ill and (scene == "logging" or scene == "rank 0 logs" and hvd.rank() == 0):
                log_metrics(0.04)
            if step % 5 == 4 and scene == "evaluation" and not ill:
                evaluate(8)
            if step % 5 == 4 and ill and hvd.rank() == 0:
                if scene == "evaluation":
                    evaluate(16)
                if scene == "checkpoint":
                    torch.save(torch.zeros(200), SlowDisk())

    for scene in scenes:
        train(scene)
    hvd.shutdown()
"""


def played(folder: Path, word: str) -> Path:
    """Runs the script with all its scenes, and returns where the traces are."""
    words = [word, str(STEPS), *SCENES]
    job: Job = run_job(2, SCRIPT, seconds=150, flags=["--trace", str(folder / word)], arguments=words)
    assert job.code == 0, job
    return folder / word


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The traces of the script with all illnesses, and without any."""
    folder = tmp_path_factory.mktemp("report")
    return played(folder, "ill"), played(folder, "healthy")


def reported(traces: Path, scene: str) -> dict[str, Any]:
    """What the report says of a scene, from the end of its first step to that of its last."""
    before = STEPS * SCENES.index(scene)
    window = f"iterations={before + 1}..{before + STEPS - 1}"
    words = [command(), "report", str(traces), "--json", "--window", window]
    report = json.loads(subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout)
    # The window may end a moment into the next iteration of a rank.
    assert STEPS - 1 <= report["iterations"] <= STEPS, report["headline"]
    return report


def cured(runs: tuple[Path, Path], scene: str, cause: str) -> dict[str, Any]:
    """The illness is the first finding, it has advice, and without it the scene takes as long as was said."""
    ill, healthy = (reported(traces, scene) for traces in runs)
    first = ill["findings"][0]
    assert first["cause"] == cause, ill["headline"]
    predicted = first["without"]["time_saved_percent"]
    measured = 100 * (1 - healthy["ns"] / ill["ns"])
    assert predicted > 25, f"{ill['headline']}: too small an illness for a test"
    assert abs(predicted - measured) < POINTS, f"{cause}: {predicted:.1f} % were predicted, {measured:.1f} % measured"
    print(f"{scene}: {predicted:.1f} % were predicted, {measured:.1f} % measured: {ill['headline']}")
    return first


def rules(finding: dict[str, Any]) -> list[str]:
    return [advice["rule"] for advice in finding["advice"]]


def test_a_slow_dataset_is_input_wait(runs):
    assert "loader-workers" in rules(cured(runs, "dataset", "input"))


def test_a_dataset_that_is_too_slow_for_its_workers_is_input_wait(runs):
    assert "loader-workers" in rules(cured(runs, "workers", "input"))


def test_a_slow_rank_is_late(runs):
    first = cured(runs, "late rank", "late")
    assert first["rank"] == 1 and "slow-rank" in rules(first)
    assert first["phase"] == "forward" and first["title"] == "rank 1 arriving late, in “forward”"


def test_evaluation_on_one_rank_is_a_sequential_phase(runs):
    first = cured(runs, "evaluation", "sequential")
    assert first["phase"] == "evaluation"
    assert rules(first) == ["share-phase", "move-phase"]


def test_a_checkpoint_on_one_rank_is_a_checkpoint(runs):
    assert rules(cured(runs, "checkpoint", "checkpoint")) == ["checkpoint"]


def line_of(text: str) -> int:
    """The line of the script that has this in it."""
    lines = textwrap.dedent(SCRIPT).splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def place_of(finding: dict[str, Any]) -> tuple[str, float]:
    """Where most samples of own code were, and their share."""
    first = finding["evidence"]["places"][0]
    return first["place"], first["percent"]


LOGGING = f"<string>:{line_of('time.sleep(seconds)')} in log_metrics"


def test_logging_of_all_ranks_is_the_script_s_own_code_at_its_place(runs):
    first = cured(runs, "logging", "own")
    assert rules(first)[0] == "own-code"
    assert (first["rank"], first["ranks"]) == (None, []), first["title"]
    place, percent = place_of(first)
    assert place == LOGGING and percent > 80, first["evidence"]
    assert first["title"] == f"the script's own code (most of it at {LOGGING})"
    # 14 times 40 ms on each of two ranks, at 40 looks in a second; far fewer would say nothing.
    assert first["evidence"]["samples"] >= 10
    report = reported(runs[0], "logging")
    assert report["efficiencies"]["parallel_efficiency"] < 0.7, report["headline"]
    assert report["efficiencies"]["own_code_efficiency"] < 0.8, report["headline"]


def test_logging_of_rank_0_alone_is_its_own_code_and_no_slow_rank(runs):
    first = cured(runs, "rank 0 logs", "own")
    assert (first["rank"], first["ranks"]) == (0, [0])
    assert rules(first)[0] == "own-code-of-some"
    assert first["title"] == f"the script's own code on rank 0 (most of it at {LOGGING})"
    report = reported(runs[0], "rank 0 logs")
    assert "another program" not in json.dumps(first)
    late = sum(loss["percent"] for loss in report["split"]["losses"] if loss["cause"] == "late")
    assert late < 10, report["headline"]


def test_slow_input_of_one_rank_is_told_as_its_own(runs):
    first = cured(runs, "slow storage of rank 1", "input")
    assert (first["rank"], first["ranks"], first["title"]) == (1, [1], "input wait of rank 1")
    assert rules(first)[0] == "starving-rank"
    assert "lose alike" not in first["evidence"]["text"], first["evidence"]["text"]
    assert "input wait of rank 1" in reported(runs[0], "slow storage of rank 1")["headline"]


def test_own_code_is_in_the_timeline_with_its_place(runs, tmp_path):
    words = [command(), "timeline", str(runs[0]), "-o", str(tmp_path / "merged.json")]
    subprocess.run(words, check=True, timeout=60)
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    own = [event for event in events if event["name"] == f"own code ({LOGGING})"]
    assert {event["pid"] for event in own} == {0, 1}
    # The sampler may come late to some of them; the others stand for a call of 40 ms each.
    assert sum(event["dur"] >= 39_000 for event in own) >= 10, own


def test_workers_of_a_loader_have_rows_with_their_work(runs, tmp_path):
    words = [command(), "timeline", str(runs[0]), "-o", str(tmp_path / "merged.json")]
    subprocess.run(words, check=True, timeout=60)
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    for rank in range(2):
        for worker in range(2):
            row = next(key for key, name in names.items() if key[0] == rank and name == f"loader worker {worker}")
            bars = [event for event in events if (event["pid"], event.get("tid")) == row and event["ph"] == "X"]
            assert {bar["name"] for bar in bars} == {"input work"}
            # Each worker makes every other batch, of two samples that take 0.15 s each.
            assert len(bars) == STEPS / 2, bars
            assert all(bar["dur"] >= 300_000 for bar in bars), bars
            ends = [(bar["ts"], bar["ts"] + bar["dur"]) for bar in sorted(bars, key=lambda bar: bar["ts"])]
            assert all(before[1] <= after[0] for before, after in zip(ends, ends[1:])), "bars of a row overlap"


CROWDED = """
    import sys, time, torch, farandole.torch as hvd

    hvd.init()
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    torch.set_num_threads(int(sys.argv[1]))
    for _ in range(12):
        optimizer.zero_grad()
        time.sleep(0.01 if hvd.rank() == 0 else 0.03)
        model(torch.ones(64, 256)).sum().backward()
        optimizer.step()
    hvd.shutdown()
"""


def test_ranks_with_more_threads_than_there_are_cores_are_told_so(tmp_path):
    cores = len(os.sched_getaffinity(0))
    job = run_job(2, CROWDED, flags=["--trace", str(tmp_path)], arguments=[str(2 * cores)])
    assert job.code == 0, job
    words = [command(), "report", str(tmp_path), "--json", "--window", "iterations=2..11"]
    report = json.loads(subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout)
    said = [
        advice for finding in report["findings"] for advice in finding["advice"] if advice["rule"] == "thread-layout"
    ]
    assert len(said) == 1, report
    # What counts is what the script has set, not what the environment said at the start.
    assert said[0]["change"].startswith(f"2 ranks with {2 * cores} threads each share "), said
    assert f"OMP_NUM_THREADS={max(1, cores // 2)}" in said[0]["how"][0], said
