"""Farandole for Python: a training script for one device, run on many."""

from farandole._native import __version__
from farandole.c_library import get_include, get_library
from farandole.exceptions import FarandoleError, MismatchError, RankLostError, StallError
from farandole.launch import run
from farandole.phases import epoch, iteration, phase

__all__ = [
    "FarandoleError",
    "MismatchError",
    "RankLostError",
    "StallError",
    "__version__",
    "epoch",
    "get_include",
    "get_library",
    "iteration",
    "phase",
    "run",
]
