"""What the workers of data loaders do, told to the rank that they work for.

A `DataLoader` with workers makes its batches in processes of their own, which are no ranks and record nothing. `watch`
has each of them note when it begins and ends a batch, and `collect` puts what has been noted into the trace of the
rank: a row "loader worker N" with "input work" for every batch.

The notes go through one pipe for all workers. A note is written whole or not at all; a full pipe drops it, so no worker
ever waits for us. Forked workers inherit the pipe and the fetchers that write to it. Workers that are started anew
(`multiprocessing_context="spawn"` or `"forkserver"`) inherit nothing: they get the pipe with the function that a loader
has its workers call first (`_Introduction`).

Invariants: bars of one row do not overlap. Two loaders at work at once both have a worker 0, and the second one then
gets a row of its own. Nothing here raises, whatever becomes of the pipe.

Not here: waiting for batches, which is the training thread's affair (`phases`).
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from torch.utils.data import dataloader, get_worker_info
from torch.utils.data._utils import fetch

from farandole import _native

_NOTE = struct.Struct("=qqq")
"""The worker's number, and beginning and end on the monotonic clock. Far shorter than what a pipe takes in one
piece."""

_NOTES_AT_ONCE = 2730
"""As many as fit into a pipe of common size, so that one read empties it."""


class _Notes:
    """The pipe, and the rows as the rank knows them. A worker that was given the pipe knows only where to write."""

    def __init__(self, writing: int | None = None) -> None:
        self.owner: int | None
        if writing is None:
            self.owner = os.getpid()
            self.reading, self.writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        else:
            self.owner, self.reading, self.writing = None, -1, writing
        self.ends: dict[int, list[int]] = {}
        """For each worker's number, when the last bar of each of its rows ends."""

    def write(self, worker: int, begin_ns: int, end_ns: int) -> None:
        """Called by a worker."""
        try:
            os.write(self.writing, _NOTE.pack(worker, begin_ns, end_ns))
        except OSError:
            # The pipe is full, or the script has closed descriptors that it did not know. The batch is what matters.
            pass

    def read(self) -> bytes:
        """Called by the rank; empty if there is nothing."""
        try:
            return os.read(self.reading, _NOTE.size * _NOTES_AT_ONCE)
        except OSError:
            return b""

    def row(self, worker: int, begin_ns: int, end_ns: int) -> str:
        """The name of the row for a bar."""
        rows = self.ends.setdefault(worker, [])
        for place, ended_ns in enumerate(rows):
            if ended_ns <= begin_ns:
                rows[place] = end_ns
                break
        else:
            place = len(rows)
            rows.append(end_ns)
        return f"loader worker {worker}" + (f" ({place + 1})" if place else "")


_notes: _Notes | None = None


def watch() -> None:
    """Has workers that are started from now on note what they do. Calling it again does nothing."""
    if _notes is None:
        _begin(_Notes())
        _introduce_workers()


def _begin(notes: _Notes) -> None:
    global _notes
    _notes = notes
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        _note_batches(kind)


class _Introduction:
    """What a worker calls first: the function of the user's, after it has been told where to write its notes."""

    def __init__(self, own: Callable[[int], Any] | None, writing: int) -> None:
        self.own = own
        self.writing = writing

    def __getstate__(self) -> tuple[Any, Any]:
        # Python passes the descriptor on to the process that it is starting.
        return self.own, reduction.DupFd(self.writing)

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self.own, passed_on = state
        self.writing = passed_on.detach()

    def __call__(self, worker: int) -> Any:
        # Forked workers have inherited everything.
        if _notes is None:
            _begin(_Notes(self.writing))
        return None if self.own is None else self.own(worker)


def _introduce_workers() -> None:
    """Has loaders introduce us to the workers that they start."""
    kind: Any = dataloader._MultiProcessingDataLoaderIter
    starting = kind.__init__

    @functools.wraps(starting)
    def introduced(iterator: Any, loader: Any) -> None:
        own = loader.worker_init_fn
        if _notes is None or not _is_open(_notes.writing):
            starting(iterator, loader)
            return
        # An iterator reads it while it is made, and again only from itself.
        loader.worker_init_fn = _Introduction(own, _notes.writing)
        try:
            starting(iterator, loader)
        finally:
            loader.worker_init_fn = own

    kind.__init__ = introduced


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _note_batches(kind: Any) -> None:
    fetching = kind.fetch

    @functools.wraps(fetching)
    def noted(fetcher: Any, indices: Any) -> Any:
        worker = get_worker_info()
        if worker is None or _notes is None:
            return fetching(fetcher, indices)
        begin_ns = time.monotonic_ns()
        try:
            return fetching(fetcher, indices)
        finally:
            _notes.write(worker.id, begin_ns, time.monotonic_ns())

    kind.fetch = noted


def collect() -> None:
    """Puts what workers have noted into the trace."""
    if _notes is None or _notes.owner != os.getpid():
        return
    notes = _notes.read()
    for worker, begin_ns, end_ns in _NOTE.iter_unpack(notes[: len(notes) // _NOTE.size * _NOTE.size]):
        _native.phase_of(_notes.row(worker, begin_ns, end_ns), "input work", begin_ns, end_ns)
