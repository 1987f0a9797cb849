"""Reports, timelines and stall reports of scripts that know nothing of us but the name of a backend.

Work and illnesses are sleep, so that they last as long as they should however busy the machine is.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]

STEPS = 12
"""Of the optimizer in each scene."""

SCENES = ("late rank", "slow input of rank 1", "healthy")

DDP = """
    import sys, time
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset
    {imports}

    steps, scenes = int(sys.argv[1]), sys.argv[2:]

    class Samples(Dataset):
        def __init__(self, seconds):
            self.seconds = seconds

        def __len__(self):
            return 2 * steps

        def __getitem__(self, index):
            time.sleep(self.seconds)
            return torch.full((4,), float(index)), index % 2

    {begin}
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    {wrapped}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for scene in scenes:
        read = 0.03 if scene == "slow input of rank 1" and rank == 1 else 0
        for inputs, labels in DataLoader(Samples(read), batch_size=2):
            optimizer.zero_grad()
            time.sleep(0.09 if scene == "late rank" and rank == 1 else 0.03)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    dist.destroy_process_group()
"""

WAYS = {
    "backend": {
        "imports": "import farandole.torch.distributed",
        "begin": 'dist.init_process_group("farandole")',
        "wrapped": "",
    },
    "hook": {
        "imports": "import farandole.torch, farandole.torch.distributed",
        "begin": 'farandole.torch.init(); dist.init_process_group("gloo")',
        "wrapped": "model.register_comm_hook(None, farandole.torch.ddp_comm_hook)",
    },
}


def report_of(traces: pathlib.Path, *flags: str) -> dict[str, Any]:
    words = [jobs.command(), "report", str(traces), "--json", *flags]
    report: dict[str, Any] = json.loads(
        subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout
    )
    return report


def events_of(traces: pathlib.Path, file: pathlib.Path) -> list[dict[str, Any]]:
    """The merged timeline."""
    subprocess.run([jobs.command(), "timeline", str(traces), "-o", str(file)], check=True, timeout=60)
    events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return events


def phases_of(events: list[dict[str, Any]], rank: int) -> list[str]:
    known = ("input wait", "forward", "backward", "optimizer step")
    bars = [event for event in events if event["ph"] == "X" and event["pid"] == rank and event["name"] in known]
    return [bar["name"] for bar in sorted(bars, key=lambda bar: bar["ts"])]


@pytest.fixture(scope="module", params=WAYS)
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The traces of the script with all scenes, over the backend and with the hook."""
    folder = tmp_path_factory.mktemp("traces")
    script = DDP.format(**WAYS[request.param])
    job = jobs.run_job(2, script, seconds=120, flags=["--trace", str(folder)], arguments=[str(STEPS), *SCENES])
    assert job.code == 0, job
    return folder


def of_scene(traces: pathlib.Path, scene: str) -> dict[str, Any]:
    """What the report says of a scene, from the end of its first step to that of its last."""
    before = STEPS * SCENES.index(scene)
    report = report_of(traces, "--window", f"iterations={before + 1}..{before + STEPS - 1}")
    assert STEPS - 1 <= report["iterations"] <= STEPS, report["headline"]
    return report


def test_a_late_rank_is_named(traces: pathlib.Path) -> None:
    first = of_scene(traces, "late rank")["findings"][0]
    assert (first["cause"], first["rank"], first["phase"]) == ("late", 1, "forward"), first
    # The others wait 60 of 90 ms; without that they would be done after 30.
    assert 50 < first["without"]["time_saved_percent"] < 75, first


def test_slow_input_of_one_rank_is_told_as_its_own(traces: pathlib.Path) -> None:
    report = of_scene(traces, "slow input of rank 1")
    first = report["findings"][0]
    assert (first["cause"], first["rank"]) == ("input", 1), report["headline"]


def test_a_healthy_script_works_most_of_the_time(traces: pathlib.Path) -> None:
    report = of_scene(traces, "healthy")
    assert report["efficiencies"]["parallel_efficiency"] > 0.7, report["headline"]


def test_the_timeline_has_phases_and_operations(traces: pathlib.Path, tmp_path: pathlib.Path) -> None:
    events = events_of(traces, tmp_path / "merged.json")
    for rank in range(2):
        names = phases_of(events, rank)
        # Each loader is asked once more for a batch that it does not have.
        once = ["input wait", "forward", "backward", "optimizer step"] * STEPS
        assert names == (once + ["input wait"]) * len(SCENES), names
        bars = [event["name"] for event in events if event["ph"] == "X" and event["pid"] == rank]
        reduced = [name for name in bars if name.startswith(("allreduce c10d.", "allreduce ddp."))]
        assert len(reduced) >= STEPS * len(SCENES), bars


FSDP = """
    import torch
    import torch.distributed as dist
    import farandole.torch.distributed
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("farandole")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range({steps}):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""

LIGHTNING = """
    import lightning, torch
    import farandole.torch.distributed
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch, _number):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    strategy = DDPStrategy(process_group_backend="farandole")
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, **quiet)
    trainer.fit(Module(), DataLoader(torch.ones(2 * {steps}, 4), batch_size=1))
"""


@pytest.mark.parametrize("script", [FSDP, LIGHTNING], ids=["fsdp2", "lightning"])
def test_jobs_of_torchrun_have_iterations_and_phases(tmp_path: pathlib.Path, script: str) -> None:
    path = tmp_path / "script.py"
    path.write_text("\n".join(line[4:] for line in script.format(steps=STEPS).splitlines()))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    environment = jobs.environment(FARANDOLE_TRACE=str(tmp_path / "traces"))
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(os.listdir(tmp_path / "traces")) == 2
    assert report_of(tmp_path / "traces")["iterations"] == STEPS
    events = events_of(tmp_path / "traces", tmp_path / "merged.json")
    for rank in range(2):
        names = [name for name in phases_of(events, rank) if name != "input wait"]
        # Lightning computes in a closure of the step, which begins and ends around it.
        found = [name for before, name in zip(["", *names], names) if name != before]
        expected = ["forward", "backward", "optimizer step"]
        steps = ["forward", "optimizer step", *expected] if script is LIGHTNING else expected
        assert found == steps * STEPS, found


STALL = """
    import time
    import torch
    import torch.distributed as dist
    import farandole.torch.distributed

    dist.init_process_group("farandole")
    dist.all_reduce(torch.ones(1))

    def validate():
        time.sleep(5)

    if dist.get_rank() == 1:
        validate()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""


def test_a_stall_report_names_the_rank_that_has_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1")
    monkeypatch.setenv("FARANDOLE_TRACE_TROUBLE", "0")
    job = jobs.run_job(2, STALL, seconds=60)
    assert job.code == 0, job
    assert 'Stall: rank 1 has not asked for "c10d.1"' in job.errors, job.errors
    assert " in validate" in job.errors, job.errors
