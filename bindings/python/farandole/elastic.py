"""States of training that can be saved, restored and made alike on all ranks. Serves every front end.

A state keeps the last *commit* of what it tracks, in memory. `restore` goes back to it, `sync` gives all ranks that of
rank 0 and commits it.

Not here: jobs whose size changes while they run. They are still to come; until then `run` of the front ends refuses
(`refuse_to_run`), nobody calls `on_reset`, and `check_host_updates` finds nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

__all__ = ["ObjectState", "State", "refuse_to_run"]


def refuse_to_run(name: str) -> NoReturn:
    """Says that jobs of changing size are not there. `name` is what the caller reached for."""
    raise NotImplementedError(
        f"{name} is not there yet: Farandole runs jobs of a fixed size, and its elastic API is still to come. "
        "Start the script without the elastic wrapper, from its last checkpoint if there is one."
    )


class State:
    """What a state can do. Subclasses say how to save, restore and synchronize.

    Arguments:
        bcast_object: gives all ranks rank 0's object.
        get_rank: this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has functions called after every change of the job's size, to set a learning rate for it, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The size of the job has changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: Any) -> None:
        """The hosts of the job have changed. They do not, yet."""

    def commit(self) -> None:
        """Saves, and looks whether the hosts have changed."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt` if the hosts of the job have changed, which they do not, yet."""

    def save(self) -> None:
        """Keeps what is tracked as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks what rank 0 has, and keeps it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Gets ready for another size of the job, before `sync`."""


class ObjectState(State):
    """A state of Python objects, each an attribute: `ObjectState(..., epoch=0, batch=0)`.

    What is kept is a copy, so that a list which is changed in place comes back as it was.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Keeps copies of the attributes."""
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        """Gives the attributes copies of what was kept."""
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Gives all ranks the attributes that rank 0 kept last."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self.restore()
