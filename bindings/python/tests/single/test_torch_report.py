"""A script for PyTorch that has one illness after the other: the report names each without any help of the script, and the same script without
the illness takes as long as was predicted.

Work and illnesses are sleep, so that they last as long as they should however busy the machine is.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, command, run_job

POINTS = 10
"""How far a prediction may be from what was measured, in points of percent of the time."""

STEPS = 14
"""Of the optimizer in each scene."""

SCENES = ("dataset", "workers", "late rank", "evaluation", "checkpoint")

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

    def train(scene):
        read = {"dataset": 0.03, "workers": 0.15}.get(scene, 0) if ill else 0
        late = 0.06 if ill and scene == "late rank" and hvd.rank() == 1 else 0
        loader = DataLoader(Samples(2 * steps, read), batch_size=2, num_workers=2 if scene == "workers" else 0)
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            time.sleep(work + late)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
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
    job: Job = run_job(2, SCRIPT, seconds=90, flags=["--trace", str(folder / word)], arguments=words)
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


def test_evaluation_on_one_rank_is_a_sequential_phase(runs):
    first = cured(runs, "evaluation", "sequential")
    assert first["phase"] == "evaluation"
    assert rules(first) == ["share-phase", "move-phase"]


def test_a_checkpoint_on_one_rank_is_a_checkpoint(runs):
    assert rules(cured(runs, "checkpoint", "checkpoint")) == ["checkpoint"]


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
    said = [advice for finding in report["findings"] for advice in finding["advice"] if advice["rule"] == "thread-layout"]
    assert len(said) == 1, report
    # What counts is what the script has set, not what the environment said at the start.
    assert said[0]["change"].startswith(f"2 ranks with {2 * cores} threads each share "), said
    assert f"OMP_NUM_THREADS={max(1, cores // 2)}" in said[0]["how"][0], said
