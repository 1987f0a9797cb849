"""States of training that can be saved, restored and made alike on all ranks. Serves every front end.

A state keeps the last *commit* of what it tracks, in memory. `restore` goes back to it, `sync` gives all ranks that of
rank 0 and commits it. Rank 0 is a rank that was in the job before, if any is: survivors keep their order, and those who
join follow.

**All ranks leave a batch together.** `check_host_updates` is one allreduce of two numbers: what this rank has heard of
hosts, and whether processes wait to join. All ranks get the same sums and come to the same decision. It takes some tens
of microseconds between processes of a host; a script that wants fewer checks commits less often.

Not here: what happens after the interrupt (`farandole.elastic.loop`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from farandole.elastic import native
from farandole.elastic.notification import HostMessages, HostUpdateResult
from farandole.exceptions import HostsUpdatedInterrupt

__all__ = ["ObjectState", "State"]


class State:
    """What a state can do. Subclasses say how to save, restore and synchronize.

    Arguments:
        bcast_object: gives all ranks rank 0's object.
        get_rank: this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages = HostMessages()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has functions called after every change of the job, to set a learning rate for its size, say. They must make
        no collective calls: a rank that has just joined does not call them."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The job has changed: rank and size are new, and what was heard of hosts before is old."""
        self._host_messages = HostMessages()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """The hosts of the job have changed, this rank hears. The next check tells the others."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves, and looks whether the hosts have changed. All ranks call this after the same batch."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt`, on all ranks or on none, if processes wait to join or a rank has heard that
        hosts have changed. All ranks call this after the same batch."""
        heard = HostUpdateResult.no_update
        for timestamp, update in self._host_messages.take_all():
            if timestamp > self._last_updated_timestamp:
                self._last_updated_timestamp = timestamp
                heard |= update
        if native.candidates() > 0:
            heard |= HostUpdateResult.added
        own = [int(bool(heard & kind)) for kind in (HostUpdateResult.removed, HostUpdateResult.added)]
        removed, added = native.largest(own, "hosts")
        if removed or added:
            raise HostsUpdatedInterrupt(skip_sync=not added)

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
