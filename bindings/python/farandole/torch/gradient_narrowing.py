"""Gradients of a batch on a GPU that travel in a narrower type (`Compression.fp16`, `.bf16`): `NarrowCopies`.

The narrow copies of a batch lie in one buffer, which stays from round to round. One fused copy of torch's makes them of
the gradients when the last of these is ready, on the stream that computed it; the batch is submitted with one call; and
another fused copy makes gradients of the results, on the stream that waits for them. So compression costs two launches
for a batch, and other ranks find the copies where they were.

Invariant: the buffer is written again only when the last round is over on all ranks, and behind whatever has read its
results: both copies of a round are in the stream of the gradients, and another stream has another buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from farandole.torch.compression import BF16Compressor, FP16Compressor

__all__ = ["NarrowCopies", "is_narrowed", "narrow_type"]

_ALIGNMENT_BYTES = 512
"""Where tensors begin: as torch's allocator places them."""


def narrow_type(compression: Any) -> Optional[torch.dtype]:
    """The type in which a compressor of our own sends gradients; `None` for any other."""
    return compression.narrow if compression in (FP16Compressor, BF16Compressor) else None


def is_narrowed(dtype: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether gradients of a type travel in the narrow one; others travel as they are."""
    return dtype.is_floating_point and dtype.itemsize > narrow.itemsize


class NarrowCopies:
    """The copies of one batch's gradients."""

    def __init__(self, gradients: Sequence[torch.Tensor], narrow: torch.dtype, place: tuple[int, int]) -> None:
        self.place = place
        """The device and the stream of the gradients."""
        starts, end = [], 0
        for gradient in gradients:
            starts.append(end)
            step = _ALIGNMENT_BYTES // narrow.itemsize
            end += -(-gradient.numel() // step) * step
        buffer = torch.empty(end, dtype=narrow, device=gradients[0].device)
        self._copies = [
            buffer.as_strided(gradient.shape, gradient.stride(), start) for gradient, start in zip(gradients, starts)
        ]
        self.addresses = [copy.data_ptr() for copy in self._copies]
        self.owners = (buffer.untyped_storage(),) * len(self._copies)

    def fit(self, gradients: Sequence[torch.Tensor], place: tuple[int, int]) -> bool:
        """Whether these gradients have their copies here."""
        return self.place == place and all(
            copy.shape == gradient.shape and copy.stride() == gradient.stride()
            for copy, gradient in zip(self._copies, gradients)
        )

    def fill(self, gradients: Sequence[torch.Tensor]) -> None:
        """Makes the copies, on the current stream."""
        with torch.no_grad():
            torch._foreach_copy_(self._copies, list(gradients))

    def widen(self, gradients: Sequence[torch.Tensor]) -> None:
        """Makes gradients of the copies, which hold the results for the current stream."""
        with torch.no_grad():
            torch._foreach_copy_(list(gradients), self._copies)
