"""Leaving a job when the programs that were dispatched are done: `shutdown`, and the end of the interpreter.

JAX dispatches programs and goes on, so a script may come to its end while its last steps are still under way on this
rank, and other ranks need its part in them. Both ways out therefore wait for the programs that this thread has
dispatched. Their errors are not raised here: whoever needs a result gets them. A script that ends with an exception
waits for nothing; the other ranks hear of it at once.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Optional

import jax
import jax.numpy as jnp

from farandole import _native
from farandole.basics import basics, on_init, on_shutdown

__all__ = ["shutdown"]

_registered_by: Optional[int] = None
"""The process whose end is waited with: forked children end without."""


def _wait_for_programs() -> None:
    try:
        # Those with ordered effects; then, because programs of one thread run in order, all others.
        jax.effects_barrier()
        jax.block_until_ready(jnp.zeros(()) + 1)
    except Exception:  # noqa: BLE001 -- Raised where a result is needed.
        pass


def shutdown() -> None:
    """Leaves the job, once the programs that this thread has dispatched are done. Does nothing if the process is in
    none."""
    if os.getpid() == _registered_by and _native.is_initialized():
        _wait_for_programs()
    basics.shutdown()


def _leave() -> None:
    if os.getpid() == _registered_by and _native.is_initialized() and getattr(sys, "last_value", None) is None:
        _wait_for_programs()


def _register() -> None:
    """After `init`, whose own handler leaves the job: handlers run in the opposite order."""
    global _registered_by
    if _registered_by is None:
        _registered_by = os.getpid()
        atexit.register(_leave)


on_init(_register)
on_shutdown(_native.jax_raise_late)
