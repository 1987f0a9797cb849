"""Keras in the environments that a process chooses when it starts: other backends, and Keras 2. One job each, with many
checks, because starting a framework takes long. At its end a rank is killed inside of `fit`."""

from __future__ import annotations


import pytest

from jobs import run_job

ENVIRONMENTS = {
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "torch": {"KERAS_BACKEND": "torch"},
    "jax": {"KERAS_BACKEND": "jax"},
    "keras 2": {"TF_USE_LEGACY_KERAS": "1"},
}

COMPILED = (
    "check_fit_is_the_joined_batch",
    "check_loop_is_the_joined_batch",
    "check_accumulation",
    "check_local_variables",
    "check_values",
    "check_broadcast",
    "check_learning_rates",
    "check_state",
)
"""What is checked where every model is compiled anew, which takes seconds."""

HALF = ("check_loss_scale", "check_mixed_precision")
"""What is checked of half precision."""

CHECKS = {
    "tensorflow": ("check_refusals",),
    "torch": (),
    "jax": (*COMPILED, *HALF, "check_embedding"),
    "keras 2": (*COMPILED, *HALF, "check_momentum_correction", "check_load_model"),
}
"""All if none is named. Keras 3 on TensorFlow has its checks in tests/tensorflow."""

SCRIPT = """
    import sys

    import keras_checks

    others = {"tensorflow": ["torch"], "torch": ["tensorflow"], "jax": ["tensorflow", "torch"]}[keras_checks.BACKEND]
    assert not [name for name in others if name in sys.modules], "farandole has imported another backend's framework"
    keras_checks.run(*sys.argv[1:])
    keras_checks.die_in_fit()
"""


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_keras_in_its_environment(environment, monkeypatch, tmp_path):
    for name, value in ENVIRONMENTS[environment].items():
        monkeypatch.setenv(name, value)
    board = tmp_path / "board"
    monkeypatch.setenv("FARANDOLE_TEST_BOARD", str(board))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    job = run_job(2, SCRIPT, seconds=280, arguments=CHECKS[environment])
    lines = job.lines(0)
    survived = next((line for line in lines if line.startswith("survived")), None)
    assert survived is not None, f"{job.output}\n{job.errors}"
    seconds = board.with_suffix(".survived").stat().st_mtime - board.stat().st_mtime
    # A second is promised, a tenth of it is usual.
    assert seconds < 3, survived
    assert job.code != 0, "the job had a killed rank"
