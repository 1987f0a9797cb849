"""What becomes of TensorFlow jobs when a rank is killed, stopped or missing.

Few jobs with many checks each, because importing TensorFlow takes longer than everything else.
"""

from __future__ import annotations

import re

import pytest
from jobs import Job, run_job

pytestmark = [pytest.mark.timeout(180), pytest.mark.alone]

SOON_SECONDS = 1.0
"""Survivors know of a killed rank by then, however deep in a graph they are."""

FIT = """
    import os, signal, sys, time
    import numpy as np, tensorflow as tf
    import farandole.tensorflow.keras as hvd
    from farandole.exceptions import RankLostError

    hvd.init()

    class Killed(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 5 and hvd.rank() == 1:
                open(sys.argv[1], "w").write(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)

    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8), tf.keras.layers.Dense(2)])
    model.compile(
        hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    try:
        model.fit(np.ones((20, 4), np.float32), np.zeros(20), batch_size=2, verbose=0, callbacks=[Killed()])
    except RankLostError as error:
        print(f"after {time.time() - float(open(sys.argv[1]).read()):.3f} s: {error}", flush=True)
        raise
"""

LOOP = """
    import os, signal, subprocess, sys, time
    import tensorflow as tf
    import farandole.tensorflow as hvd
    from farandole.exceptions import RankLostError

    hvd.init()
    weights = tf.Variable(tf.ones([4, 2]), name="weights")
    optimizer = tf.keras.optimizers.SGD(0.01)

    @tf.function
    def train_step(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(features, weights))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
        optimizer.apply_gradients(zip(gradients, [weights]))

    def train():
        for _ in range(3):
            train_step(tf.ones([2, 4]))

    def validate():
        time.sleep(5)

    # One step: ranks that repeat a learned order would take five seconds before they talk about what is missing.
    train_step(tf.ones([2, 4]))
    if hvd.rank() == 1:
        validate()
    train()
    print("went on after a stall", flush=True)
    if hvd.rank() == 1:
        resume = f"import os, signal, time; time.sleep(2); os.kill({os.getpid()}, signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-c", resume])
        os.kill(os.getpid(), signal.SIGSTOP)
    train()
    print("went on after a stop", flush=True)
    if hvd.rank() == 1:
        open(sys.argv[1], "w").write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        train()
    except RankLostError as error:
        print(f"after {time.time() - float(open(sys.argv[1]).read()):.3f} s: {error}", flush=True)
        assert isinstance(error, tf.errors.UnknownError), "scripts that catch TensorFlow's error go on as they did"
        raise
"""


def survivor_s_word(job: Job) -> str:
    """What the survivor was told, and that it was told soon."""
    assert job.code != 0, job
    told = [line for line in job.lines(0) if line.startswith("after ")]
    assert len(told) == 1, job
    seconds = re.match(r"after ([0-9.]+) s: ", told[0])
    assert seconds and float(seconds[1]) < SOON_SECONDS, told
    return told[0]


def test_a_killed_rank_under_fit_is_an_error_that_names_it(tmp_path):
    job = run_job(2, FIT, seconds=100, arguments=[str(tmp_path / "killed")])
    assert "rank 1" in survivor_s_word(job), job
    assert "rank 1" in job.errors.strip().splitlines()[-1] and "SIGKILL" in job.errors, job


def test_a_compiled_loop_is_told_of_a_stall_outlives_a_stop_and_hears_of_a_killed_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1")
    job = run_job(2, LOOP, seconds=100, arguments=[str(tmp_path / "killed")])
    for rank in range(2):
        assert job.lines(rank)[:2] == ["went on after a stall", "went on after a stop"], job
    # The tensor, the rank and the line of Python in which it is.
    stalls = [line for line in job.errors.splitlines() if line.startswith("[0]<stderr>:Stall: ")]
    assert stalls and "rank 1" in stalls[0] and "DistributedGradientTape" in stalls[0], job.errors
    assert re.search(r"^\[0\]<stderr>:1: \[.*weights.*\]", job.errors, re.M) or "weights" in job.errors, job.errors
    assert "Python, MainThread:" in job.errors and " in validate" in job.errors, job.errors
    assert "rank 1" in survivor_s_word(job), job
