"""Farandole for Python: a training script for one device, run on many."""
