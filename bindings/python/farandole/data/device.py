"""Batches on their device ahead of time.

The next batch is copied while the program works on this one: through pinned memory, on a stream of its own, so that
neither the program nor its stream waits. A batch that is handed out is safe to use on the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Ahead", "pinned"]


def pinned(value: Any) -> Any:
    """The same in memory that devices read by themselves: a copy."""
    if isinstance(value, (tuple, list)):
        return type(value)(pinned(one) for one in value)
    return value.pin_memory() if hasattr(value, "pin_memory") else value


class Ahead:
    """An iterator over batches, one of which is always on its way to the device."""

    def __init__(self, batches: Iterator[Any], device: Any) -> None:
        import torch

        self._torch = torch
        self._batches = batches
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._next: list[Any] = []

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Any:
        if not self._next:
            self._fetch()
        if not self._next:
            raise StopIteration
        batch = self._next.pop()
        if self._stream is not None:
            current = self._torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            # Memory that was allocated for the other stream is not used again while this one needs it.
            self._each(batch, lambda tensor: tensor.record_stream(current))
        self._fetch()
        return batch

    def _fetch(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            return
        if self._stream is None:
            self._next.append(self._each(batch, lambda tensor: tensor.to(self._device)))
            return
        batch = pinned(batch)
        with self._torch.cuda.stream(self._stream):
            self._next.append(self._each(batch, lambda tensor: tensor.to(self._device, non_blocking=True)))

    def _each(self, value: Any, change: Callable[[Any], Any]) -> Any:
        """The same with all its tensors changed."""
        if isinstance(value, (tuple, list)):
            return type(value)(self._each(one, change) for one in value)
        if isinstance(value, self._torch.Tensor):
            changed = change(value)
            return value if changed is None else changed
        return value
