"""Farandole for Python: a training script for one device, run on many."""

from farandole.launch import run
from farandole.phases import epoch, iteration, phase

__all__ = ["epoch", "iteration", "phase", "run"]
