"""What reports need to know of a JAX program, without its help.

A step of training is one compiled program; Python dispatches it and waits for it, mostly much later. So nothing is
marked from Python but which thread trains: the one that initialises the job. Iterations are marked where gradients have
been reduced (`allreduce_gradients`, which `DistributedOptimizer` and `distributed_value_and_grad` use), on behalf of
that thread, and what programs wait for in collectives is known from the engine's records. A program that marks
iterations itself (`farandole.iteration`) is not interfered with; `farandole.phase` works as everywhere.

`FARANDOLE_PHASES=0` leaves out which thread trains, and with it the iterations.
"""

from __future__ import annotations

import threading

from farandole import _native, phases
from farandole.basics import on_init
from farandole.phase_tracker import is_wanted

__all__: list[str] = []


def _watch() -> None:
    _native.note_setting("framework", "jax")
    if is_wanted():
        phases.name_this_thread()
        _native.watch_own_code(threading.get_ident())


on_init(_watch)
