"""Farandole for Python: a training script for one device, run on many."""

from farandole.c_library import get_include, get_library
from farandole.launch import run
from farandole.phases import epoch, iteration, phase

__all__ = ["epoch", "get_include", "get_library", "iteration", "phase", "run"]
