"""`run`: a training function that begins again, with its state, whenever the job has changed.

    run_fn(func, reset)(state, ...):   sync -> func -> done
        HorovodInternalError               restore the last commit, reset, sync, func again
        HostsUpdatedInterrupt              keep the state, reset, sync (unless all ranks can do without), func again

`reset` enters the next generation of the job. The function and its arguments stay; what it has in local variables is
lost, so whatever counts is in the state.

**Whether to synchronize is agreed upon.** An interrupt says that hosts were only removed, so that nobody needs the
state; but somebody may have joined after all. So before every synchronization ranks put together who wants one, in one
small collective, and it is made by all or by none. Horovod has each rank decide for itself, and hangs (its issue 3494).

**Nobody leaves early.** The function returns when it has returned on all ranks. Without that, a rank could be done, and
in whatever follows, while another one hears of a death in its last commit and waits for it at the boundary.

The limit of resets is the launcher's, which sees all of them.

Errors in `reset` end the function: the engine has tried until the job's timeout, and the text says why it gave up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from farandole.elastic import native
from farandole.elastic.notification import notification_manager
from farandole.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["RESET_LIMIT_EXCEEDED_MESSAGE", "run", "run_fn"]

RESET_LIMIT_EXCEEDED_MESSAGE = "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
"""Horovod's words, which scripts and tests look for."""


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function whose first argument is a `State`, so that it survives changes of the job.

    The function makes no collective calls before it is called: a rank that joins would make them while the others
    synchronize.
    """
    return run_fn(func, native.next_generation)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """As `run`, with another way to enter the next generation."""

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        native.join_job(None)
        notification_manager.init()
        notification_manager.register_listener(state)
        wants_sync = True
        try:
            while True:
                try:
                    (must_sync,) = native.largest([int(wants_sync)], "sync")
                    if must_sync:
                        state.sync()
                    native.note_synchronised()
                    result = func(state, *args, **kwargs)
                    native.largest([0], "returned")
                    return result
                except HorovodInternalError:
                    state.restore()
                    wants_sync = True
                except HostsUpdatedInterrupt as interrupt:
                    wants_sync = not interrupt.skip_sync
                reset()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper
