"""Farandole for Python: a training script for one device, run on many."""

from farandole.launch import run

__all__ = ["run"]
