"""What goes wrong in the programs of this folder: the fault that `FAILURE` names, on rank 1, in step 3.

The programs train for a few steps as a user's script does. They ask this module how many batches a rank has and let it
strike in each step; faults that need the framework (a shape, a frozen parameter, a hook) are in the programs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback

FAULT = os.environ.get("FAILURE", "")
STEPS = 6
STEP = 3

# The rank that fails; of failures that concern a checkpoint it is the one that writes.
VICTIM = 0 if FAULT == "disk full" else 1

RANK_VARIABLES = ("FARANDOLE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")


def launched_rank() -> int:
    """The rank by the launcher's variables, for faults before `init`."""
    return next(int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ)


def is_struck(fault: str) -> bool:
    """Whether this rank has this fault."""
    return fault == FAULT and launched_rank() == VICTIM


def batches() -> int:
    """How many batches this rank has."""
    return STEP if is_struck("fewer batches") else STEPS


def strike_before_init() -> None:
    """Faults of a program that has not joined its job."""
    if is_struck("import error"):
        import a_package_that_is_missing  # noqa: F401
    if is_struck("exit before init"):
        sys.exit(4)


def strike(step: int) -> None:
    """Faults of a step that every framework has."""
    if step != STEP or launched_rank() != VICTIM:
        return
    if FAULT == "exception":
        raise ValueError("a bad batch")
    if FAULT == "logged exception":
        try:
            raise ValueError("a bad batch")
        except ValueError:
            traceback.print_exc()
            sys.exit(1)
    if FAULT == "exit 0":
        sys.exit(0)
    if FAULT == "os._exit":
        os._exit(3)
    if FAULT == "out of memory":
        bytearray(1 << 62)
    if FAULT == "endless loop":
        while True:
            time.sleep(1)
    signals = {"killed": "KILL", "segmentation fault": "SEGV", "abort": "ABRT", "terminated": "TERM", "stopped": "STOP"}
    if FAULT in signals:
        os.kill(os.getpid(), signal.Signals[f"SIG{signals[FAULT]}"])


def load(step: int) -> None:
    """Faults of whatever loads a batch."""
    if step == STEP and is_struck("loader"):
        raise FileNotFoundError(2, "No such file or directory", "images/0017.jpg")


def call_back() -> None:
    """Faults of a hook or callback."""
    if is_struck("callback"):
        raise RuntimeError("the callback has failed")


def metric() -> tuple[str, list[int], str]:
    """Name, shape and dtype of a value that all ranks average."""
    name = "accuracy" if is_struck("other name") else "loss"
    shape = [3] if is_struck("other shape") else [2]
    dtype = "int32" if is_struck("other dtype") else "float32"
    return name, shape, dtype


def checkpoint(suffix: str = "") -> str:
    """Where rank 0 writes a checkpoint: a device that is full, by the name of a file."""
    path = os.path.join(os.environ["FAILURE_FOLDER"], f"checkpoint{suffix}")
    if not os.path.lexists(path):
        os.symlink("/dev/full", path)
    return path
