"""News of hosts, on their way to the states that want to know: Horovod's names for it.

The engine knows which processes wait to join, and states ask it (`farandole.elastic.native`). So nothing has to be sent
here by itself. Whoever knows of a change from elsewhere (a scheduler that announces the end of a host, a test) calls
`notification_manager.handle_hosts_updated`, and every state that `run` is working with hears of it.

Invariant: a message concerns this rank alone until `State.check_host_updates` has put all ranks' together.
"""

from __future__ import annotations

import queue
import threading
from enum import IntFlag
from typing import Any

from farandole.elastic import native

__all__ = ["HostMessages", "HostUpdateResult", "HostsUpdatedRequest", "WorkerNotificationManager",
           "notification_manager"]


class HostUpdateResult(IntFlag):
    """What has happened to the hosts of a job."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class HostsUpdatedRequest:
    """A message: at this time, that has happened to the hosts."""

    def __init__(self, timestamp: float, res: HostUpdateResult = HostUpdateResult.no_update) -> None:
        self.timestamp = timestamp
        self.res = res


class HostMessages(queue.Queue):  # type: ignore[type-arg]
    """Messages for one state. Not empty, too, while processes wait to join: scripts wait for that."""

    def empty(self) -> bool:
        """Whether there is no news."""
        return super().empty() and native.candidates() == 0

    def take_all(self) -> list[tuple[float, HostUpdateResult]]:
        """Everything that was sent."""
        taken = []
        while True:
            try:
                taken.append(self.get_nowait())
            except queue.Empty:
                return taken


class WorkerNotificationManager:
    """Those who want to know of changes."""

    def __init__(self) -> None:
        # A thread that brings news and the one that trains.
        self._lock = threading.Lock()
        self._listeners: list[Any] = []

    def init(self, *_unused: Any, **_ignored: Any) -> None:
        """Does nothing: the engine listens already. Horovod's has arguments here."""

    def register_listener(self, listener: Any) -> None:
        """Has `listener.on_hosts_updated` called."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        """No longer."""
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]

    def handle_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Tells all listeners that the hosts have changed."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = WorkerNotificationManager()
