"""Scripts for TensorFlow and for Keras that have one illness after the other: the report names each without any help of
the scripts.

Work and illnesses are sleep, so that they last as long as they should however busy the machine is. Each script is one
job with a scene for each illness, because importing TensorFlow takes longer than all scenes.
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

pytestmark = [pytest.mark.timeout(300), pytest.mark.alone]

STEPS = 10
"""Of the optimizer in each scene."""

SCENES = ("healthy", "map", "late rank", "evaluation", "logging")

HEAD = """
    import sys, time
    import numpy as np, tensorflow as tf
    import farandole.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    steps, scenes = int(sys.argv[1]), sys.argv[2:]
    seconds = {"read": 0.0, "work": 0.02}

    def sleeps(what):
        return tf.py_function(lambda: time.sleep(seconds[what]), [], [])

    def samples(count):
        features = np.ones((count, 4), np.float32)
        return tf.data.Dataset.from_tensor_slices((features, np.zeros(count, np.int64))).batch(1)

    def read(features, label):
        with tf.control_dependencies([sleeps("read")]):
            return tf.identity(features), label

    class Work(tf.keras.layers.Layer):
        def call(self, inputs):
            with tf.control_dependencies([inputs]):
                work = sleeps("work")
            with tf.control_dependencies([work]):
                return tf.identity(inputs)

    def begin(scene):
        # What happens at the beginning of a scene, such as making iterators, is not what it is about.
        hvd.barrier()
        seconds["read"] = 0.06 if scene == "map" else 0.0
        seconds["work"] = 0.08 if scene == "late rank" and hvd.rank() == 1 else 0.02

    def log_metrics():
        time.sleep(0.05)

    model = tf.keras.Sequential([tf.keras.Input((4,)), Work(), tf.keras.layers.Dense(2)])
    held_out = samples(8)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""

LOOP = HEAD + """
    optimizer = tf.keras.optimizers.SGD(0.01)

    @tf.function
    def train_step(features, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(features, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    @tf.function
    def test_step(features, labels):
        return loss(labels, model(features, training=False))

    def evaluate():
        for features, labels in held_out:
            test_step(features, labels)

    evaluate()
    for scene in scenes:
        begin(scene)
        for step, (features, labels) in enumerate(samples(steps).map(read)):
            train_step(features, labels)
            if scene == "logging":
                log_metrics()
            if scene == "evaluation" and step % 4 == 3 and hvd.rank() == 0:
                evaluate()
    hvd.shutdown()
"""

FIT = HEAD + """
    import farandole.tensorflow.keras as of_keras

    class Illness(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if scene == "logging":
                log_metrics()
            if scene == "evaluation" and batch % 4 == 3 and hvd.rank() == 0:
                self.model.evaluate(held_out, verbose=0)

    model.compile(of_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), loss, jit_compile=False)
    model.evaluate(held_out, verbose=0)
    for scene in scenes:
        begin(scene)
        model.fit(samples(steps).map(read), epochs=1, verbose=0, callbacks=[Illness()])
    hvd.shutdown()
"""

SCRIPTS = {"loop": LOOP, "fit": FIT}


@pytest.fixture(scope="module", params=list(SCRIPTS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a script, and the traces of a job that has run it with all its scenes."""
    traces = tmp_path_factory.mktemp(request.param)
    words = [str(STEPS), *SCENES]
    job = run_job(2, SCRIPTS[request.param], seconds=150, flags=["--trace", str(traces)], arguments=words)
    assert job.code == 0, job
    return request.param, traces


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


def test_a_slow_map_is_input_wait(run):
    # Where batches are made ahead, a rank that is one ahead of the other hides its own input behind waiting for that.
    assert foremost(run[1], "map", "input")["phase"] is None


def test_a_slow_rank_is_late_in_its_training_step(run):
    first = foremost(run[1], "late rank", "late")
    assert (first["rank"], first["phase"]) == (1, "training step"), first["title"]


def test_evaluation_on_one_rank_is_a_sequential_phase(run):
    assert foremost(run[1], "evaluation", "sequential")["phase"] == "evaluation"


def test_logging_is_the_script_s_own_code_at_its_place(run):
    name, traces = run
    lines = textwrap.dedent(SCRIPTS[name]).splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if "time.sleep(0.05)" in text)
    first = foremost(traces, "logging", "own")
    assert first["evidence"]["places"][0]["place"] == f"<string>:{line} in log_metrics", first["evidence"]


def test_a_healthy_scene_loses_little(run):
    split = reported(run[1], "healthy")["split"]
    assert split["useful_ns"] > 0.6 * split["total_ns"], split


def test_the_phases_of_both_ranks_are_there(run, tmp_path):
    name, traces = run
    subprocess.run([command(), "timeline", str(traces), "-o", str(tmp_path / "merged.json")], check=True, timeout=60)
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]
    for rank in range(2):
        count = Counter(event["name"] for event in events if event["pid"] == rank and event["ph"] == "X")
        steps = STEPS * len(SCENES)
        # The first call of a compiled function is spent on tracing it, and belongs to no phase.
        assert count["training step"] == steps - 1, count
        assert count["input wait"] >= steps - 1, count
        assert count["evaluation"] >= (2 if rank == 0 else 0), count
        if name == "fit":
            marks = Counter(
                event["name"].split()[0] for event in events if event["pid"] == rank and event["ph"] in "iI"
            )
            assert marks["epoch"] == len(SCENES), marks
