"""An MXNet script that has one illness after the other: the report names each without any help of the script.

Work and illnesses are sleep, so that they last as long as they should however busy the machine is. The script is one
job with a scene for each illness.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jobs import command, run_job

pytestmark = [pytest.mark.timeout(200), pytest.mark.alone]

STEPS = 10
"""Of the trainer in each scene."""

SCENES = ("healthy", "input", "late rank", "evaluation", "logging")

SCRIPT = """
    import sys, time
    import mxnet as mx
    import farandole.mxnet as hvd
    from mxnet import autograd, gluon

    class Samples(gluon.data.Dataset):
        def __len__(self):
            return int(sys.argv[1])

        def __getitem__(self, index):
            time.sleep(0.06 if scene == "input" else 0.0)
            return mx.nd.ones((4,)), 0.0

    class Work(mx.operator.CustomOp):
        # Runs on a thread of MXNet's, when its turn comes.
        def forward(self, is_train, req, in_data, out_data, aux):
            time.sleep(0.08 if scene == "late rank" and hvd.rank() == 1 else 0.02)
            self.assign(out_data[0], req[0], in_data[0])

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0])

    @mx.operator.register("work")
    class WorkProperties(mx.operator.CustomOpProp):
        def create_operator(self, context, shapes, dtypes):
            return Work()

    def log_metrics():
        time.sleep(0.05)

    def evaluate():
        for _ in range(8):
            mx.nd.Custom(net(mx.nd.ones((1, 4))), op_type="work").wait_to_read()

    scene = "beginning"
    hvd.init()
    net = gluon.nn.Dense(2, in_units=4)
    net.initialize()
    hvd.broadcast_parameters(net.collect_params())
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for scene in sys.argv[2:]:
        hvd.barrier()
        for step, (features, labels) in enumerate(gluon.data.DataLoader(Samples(), batch_size=1)):
            with autograd.record():
                loss = loss_of(mx.nd.Custom(net(features), op_type="work"), labels)
            loss.backward()
            trainer.step(1)
            net.weight.data().wait_to_read()
            if scene == "logging":
                log_metrics()
            if scene == "evaluation" and step % 4 == 3 and hvd.rank() == 0:
                evaluate()
    hvd.shutdown()
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of a job that has run the script with all its scenes."""
    folder = tmp_path_factory.mktemp("traces")
    job = run_job(2, SCRIPT, seconds=120, flags=["--trace", str(folder)], arguments=[str(STEPS), *SCENES])
    assert job.code == 0, job
    return folder


def reported(traces: Path, scene: str) -> dict[str, Any]:
    """What the report says of a scene, from the end of its first step to that of its last."""
    before = STEPS * SCENES.index(scene)
    window = f"iterations={before + 1}..{before + STEPS - 1}"
    words = [command(), "report", str(traces), "--json", "--window", window]
    report: dict[str, Any] = json.loads(
        subprocess.run(words, check=True, timeout=60, capture_output=True, text=True).stdout
    )
    return report


def foremost(traces: Path, scene: str, cause: str) -> dict[str, Any]:
    """The illness of the scene, which is the first finding."""
    report = reported(traces, scene)
    assert report["findings"], report["headline"]
    first: dict[str, Any] = report["findings"][0]
    assert first["cause"] == cause, report["headline"]
    assert first["lost_percent"] > 25, report["headline"]
    return first


def test_a_slow_dataset_is_input_wait(traces: Path) -> None:
    assert foremost(traces, "input", "input")["phase"] is None


def test_a_slow_rank_is_late_in_its_training_step(traces: Path) -> None:
    first = foremost(traces, "late rank", "late")
    assert (first["rank"], first["phase"]) == (1, "training step"), first["title"]


def test_evaluation_on_one_rank_is_a_sequential_phase(traces: Path) -> None:
    assert foremost(traces, "evaluation", "sequential")["phase"] == "evaluation"


def test_logging_is_the_script_s_own_code_at_its_place(traces: Path) -> None:
    lines = textwrap.dedent(SCRIPT).splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if "time.sleep(0.05)" in text)
    first = foremost(traces, "logging", "own")
    assert first["evidence"]["places"][0]["place"] == f"<string>:{line} in log_metrics", first["evidence"]


def test_a_healthy_scene_loses_little(traces: Path) -> None:
    split = reported(traces, "healthy")["split"]
    assert split["useful_ns"] > 0.6 * split["total_ns"], split


def test_the_phases_of_both_ranks_are_there(traces: Path, tmp_path: Path) -> None:
    subprocess.run([command(), "timeline", str(traces), "-o", str(tmp_path / "merged.json")], check=True, timeout=60)
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    steps = STEPS * len(SCENES)
    for rank in range(2):
        count = Counter(event["name"] for event in events if event["pid"] == rank and event["ph"] == "X")
        assert count["training step"] >= steps and count["input wait"] >= steps, count
        assert count["evaluation"] >= (2 if rank == 0 else 0), count
        marks = Counter(event["name"].split()[0] for event in events if event["pid"] == rank and event["ph"] in "iI")
        assert marks["iteration"] == steps, marks
