"""Memory that is lent stays where it is.

A loan of a tensor holds its storage, so the bytes outlive whatever becomes of the tensor (`lent_memory`). Some
calls, however, give the *storage* other memory and free what it had: `resize_` where the tensor grows,
`UntypedStorage.resize_`, and moving to shared memory, by `share_memory_` or by sending a tensor to another process.
Nothing that holds the storage keeps the bytes alive then. So these calls of torch's ask whether the engine has any of
the bytes, and fail with the name of the operation if it has. Nothing is asked when a tensor is lent.

What torch reallocates without such a call is not noticed: an operation with `out=` that has to enlarge its output.
torch warns of that by itself; an output that is being reduced must not be used anyway.

Invariant: a call on memory that is not lent does what it always did.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any, Optional

import torch

from farandole import _native
from farandole.torch import run_ahead

_RELEASED_WITHIN = 0.05
"""Seconds in which the engine gives memory back that a device has done with; it looks every few milliseconds."""

_STORAGE_CALLS = ("resize_", "_share_fd_cpu_", "_share_filename_cpu_")
"""What moves a storage, whatever its arguments: also a smaller size is new memory."""


def keep_lent_memory_in_place() -> None:
    """Has torch ask before it moves memory. Calling it again does nothing."""
    if getattr(torch.UntypedStorage.resize_, "asks_first", False):
        return
    for name in _STORAGE_CALLS:
        _ask_first(torch.UntypedStorage, name, lambda storage, *_, **__: storage)
    _ask_first(torch.Tensor, "resize_", _outgrown_by_resize)
    _ask_first(torch.Tensor, "resize_as_", _outgrown_by_resize_as)


def _ask_first(kind: Any, name: str, moved_storage: Callable[..., Any]) -> None:
    """Has a method ask for the storage that a call of it would move."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def asking(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.device.type in ("cpu", "cuda"):
            _refuse_if_lent(name, moved_storage(self, *arguments, **options))
        return original(self, *arguments, **options)

    asking.asks_first = True  # type: ignore[attr-defined]
    setattr(kind, name, asking)


def _after_what_is_queued(address: int, size_bytes: int) -> Optional[str]:
    """To which request memory is lent when what streams wait for, and the script has done with, is over."""
    run_ahead.settle()
    given_up = time.monotonic() + _RELEASED_WITHIN
    while (lent_to := _native.lent(address, size_bytes)) is not None and time.monotonic() < given_up:
        time.sleep(0.001)
    return lent_to


def _refuse_if_lent(name: str, storage: Any) -> None:
    if storage is None:
        return
    try:
        address, size_bytes = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError, TypeError):
        return  # Tensors without memory, such as those that a compiler computes with.
    lent_to = _native.lent(address, size_bytes)
    if lent_to is not None:
        lent_to = _after_what_is_queued(address, size_bytes)
    if lent_to is not None:
        raise RuntimeError(
            f"{name}() would move memory that {lent_to!r} is working on. Call synchronize() of that operation first "
            "(of an optimizer: optimizer.synchronize() or optimizer.step())."
        )


def _outgrown_by_resize(tensor: torch.Tensor, *sizes: Any, **options: Any) -> Any:
    if not sizes:
        sizes = (options.get("size", ()),)
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    return _outgrown(tensor, sizes)


def _outgrown_by_resize_as(tensor: torch.Tensor, template: Any = None, **options: Any) -> Any:
    template = options.get("the_template", template)
    return _outgrown(tensor, template.shape) if isinstance(template, torch.Tensor) else None


def _outgrown(tensor: torch.Tensor, shape: Any) -> Any:
    """The storage of a tensor, if it is too small for another shape. A tensor that fits is not moved."""
    try:
        storage = tensor.untyped_storage()
        elements = tensor.storage_offset() + math.prod(shape)
        return storage if elements * tensor.element_size() > storage.nbytes() else None
    except (RuntimeError, NotImplementedError, TypeError):
        return None  # Sparse tensors have no storage; and wrong arguments are torch's to refuse.
