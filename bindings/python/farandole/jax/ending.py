"""Leaving a job when the programs that were dispatched are done: `shutdown`, and the end of the interpreter.

JAX dispatches programs and goes on, so a script may come to its end while its last steps are still under way on this
rank, and other ranks need its part in them. Both ways out therefore wait for the programs that this thread has
dispatched. Their errors are not raised here: whoever needs a result gets them. A script that ends with an exception
waits for nothing; the other ranks hear of it at once.

Programs that daemon threads wait for end with the job. When the interpreter ends, these threads get a moment to come
back from JAX: CPython ends a thread that comes back later where it stands, with functions of C++ on its stack, and the
process with it (SIGABRT, "exception not rethrown").
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Optional

import jax
import jax.numpy as jnp

from farandole import _native
from farandole.basics import basics, on_init, on_shutdown
from farandole.jax import effects

__all__ = ["shutdown"]

_registered_by: Optional[int] = None
"""The process whose end is waited with: forked children end without."""


_others_wait = False
"""Whether other threads waited for programs when the interpreter began to end."""

RETURN_SECONDS = 2.0
"""How long daemon threads get: an error is raised in milliseconds, unless the machine is very busy."""


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
    global _others_wait
    if os.getpid() == _registered_by and _native.is_initialized() and getattr(sys, "last_value", None) is None:
        _wait_for_programs()
        _others_wait = _native.calls_under_way() > 0


def _let_threads_return() -> None:
    if os.getpid() != _registered_by or not _others_wait:
        return
    until = time.monotonic() + RETURN_SECONDS
    for thread in threading.enumerate():
        if thread.daemon and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


def _report_once() -> None:
    """Waits for programs as JAX does at the end of the interpreter, and drops their errors if the script has ended with
    an exception: JAX would print each of them again, with a traceback of its own."""
    if os.getpid() == _registered_by and getattr(sys, "last_value", None) is not None:
        try:
            jax.effects_barrier()
        except Exception:  # noqa: BLE001 -- One of them has been printed.
            effects.forget_tokens()


def _register() -> None:
    """After `init`, whose own handler leaves the job: handlers run in the opposite order."""
    global _registered_by
    if _registered_by is None:
        _registered_by = os.getpid()
        atexit.register(_leave)


# Before `init`, so that it runs after the handler that leaves the job.
atexit.register(_report_once)
atexit.register(_let_threads_return)
on_init(_register)
on_shutdown(_native.jax_raise_late)
