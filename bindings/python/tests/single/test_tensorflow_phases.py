"""Phases that the front ends for TensorFlow and Keras find out by themselves: for every backend of Keras, and for Keras
2."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jobs import command, run_job

pytestmark = pytest.mark.timeout(120)

LOOP = """
    import farandole, numpy as np, tensorflow as tf
    import farandole.tensorflow as hvd

    hvd.init()
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batches = tf.data.Dataset.from_tensor_slices((np.ones((12, 4), np.float32), np.zeros(12, np.int64))).batch(4)

    def step(features, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(features, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    def train(step):
        for features, labels in batches:
            step(features, labels)

    for first in batches.take(1):
        model(first[0])
    with farandole.phase("first epoch"):
        train(step)
    for features, labels in batches:
        model(features, training=False)
    train(step)
    compiled = tf.function(step)
    train(compiled)
    test = tf.function(lambda features: model(features, training=False))
    for features, labels in batches:
        test(features)
    train(compiled)
    tf.train.Checkpoint(model=model).save("checkpoint/one")
    model.save_weights("two.weights.h5")

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("weight", initializer=1.0)
        update = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(weight * weight)
        step, doubled = tf.group(update, name="step"), 2 * weight
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(4):
            session.run([doubled, step])
            session.run({"doubled": doubled})
    hvd.shutdown()
"""

ONE_THREAD = """
    import tensorflow as tf
    import farandole.tensorflow as hvd

    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    batches = iter(tf.data.Dataset.from_tensors(tf.ones((500, 500)) / 500).repeat())
    weight = tf.Variable(1.0)
    optimizer = tf.keras.optimizers.SGD(0.0)

    @tf.function
    def step():
        batch = next(batches)
        with tf.GradientTape() as tape:
            value = weight * batch
            for _ in range(40):
                value = value @ batch
        optimizer.apply_gradients([(tape.gradient(value, weight), weight)])

    for _ in range(6):
        step()
    hvd.shutdown()
"""

FIT = """
    import sys, numpy as np
    import {keras} as keras
    import {front_end} as hvd

    hvd.init()
    model = keras.Sequential([keras.layers.Dense(2)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **{options})
    features, labels = np.ones((12, 4), np.float32), np.zeros(12, np.int64)
    saving = keras.callbacks.ModelCheckpoint("model{{epoch}}.weights.h5", save_weights_only=True)
    both = (features, labels)
    model.fit(*both, batch_size=4, epochs=2, verbose=0, validation_data=both, callbacks=[saving])
    # (Keras itself imports JAX where it finds it.)
    unused = {{"tensorflow": "torch", "torch": "tensorflow", "jax": "tensorflow"}}["{backend}"]
    assert unused not in sys.modules, "a framework was imported that nobody uses"
    hvd.shutdown()
"""

FITS = {
    "Keras 2": ("tf_keras", "farandole.tensorflow.keras", "tensorflow"),
    "eager": ("keras", "farandole.keras", "tensorflow"),
    "torch": ("keras", "farandole.keras", "torch"),
    "jax": ("keras", "farandole.keras", "jax"),
}


def timeline(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events of the timeline of a rank alone."""
    monkeypatch.chdir(folder)
    job = run_job(1, script, seconds=100, flags=["--trace", str(folder / "traces")])
    assert job.code == 0, job
    subprocess.run([command(), "timeline", "traces", "-o", "merged.json"], check=True, timeout=60)
    events: list[dict[str, Any]] = json.loads((folder / "merged.json").read_text())["traceEvents"]
    return events


def phases(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a rank alone was in each phase; marks of iterations and epochs are counted, too."""
    events = timeline(script, folder, monkeypatch)
    spans = [event["name"] for event in events if event["ph"] == "X"]
    return Counter(spans + [event["name"].split()[0] for event in events if event["ph"] in "iI"])


def test_a_plain_training_script_has_all_its_phases(tmp_path, monkeypatch):
    count = phases(LOOP, tmp_path, monkeypatch)
    # Two epochs of three steps in eager mode, two with a compiled step, of which the first call belongs to no phase.
    assert count["backward"] == 6 and count["optimizer step"] == 6, count
    # Four runs of a session update weights. Another optimizer than theirs sets the pace.
    assert count["training step"] == 5 + 4 and count["iteration"] == 12, count
    # One batch to look at, which the model is called with before anything was trained; six rounds of three; each
    # ends with a wait for nothing. Making the seven iterators counts, too.
    assert count["input wait"] == 2 + 6 * 4 + 7, count
    assert count["evaluation"] == 2 and count["checkpoint"] == 2, count
    assert count["forward"] >= 6 and count["first epoch"] == 1, count


@pytest.mark.parametrize("name", FITS)
def test_fit_has_its_phases_with_every_backend(name, tmp_path, monkeypatch):
    keras, front_end, backend = FITS[name]
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1" if name == "Keras 2" else "0")
    options = '{"run_eagerly": True}' if name == "eager" else "{}"
    script = FIT.format(keras=keras, front_end=front_end, backend=backend, options=options)
    count = phases(script, tmp_path, monkeypatch)
    assert count["iteration"] == 6 and count["epoch"] == 2, count
    assert count["checkpoint"] == 2 and count["evaluation"] == 2, count
    if name in ("eager", "torch"):
        assert count["forward"] >= 6 and count["backward"] == 6 and count["optimizer step"] == 6, count
        assert count["training step"] == 0, count
    else:
        assert count["training step"] == 5 and count["backward"] == 0, count
    assert count["input wait"] >= 6, count


def test_waiting_for_input_ends_before_the_batch_is_computed_with(tmp_path, monkeypatch):
    """With one inter-op thread, the end of the wait was once marked after everything that was ready by then."""
    spent: Counter[str] = Counter()
    for event in timeline(ONE_THREAD, tmp_path, monkeypatch):
        if event["ph"] == "X":
            spent[event["name"]] += event["dur"]
    assert 0 < spent["input wait"] < 0.3 * spent["training step"], spent
