"""Compression: gradients in fewer bytes on the wire.

Owns the interface `Compressor` and the compressors that come with Farandole, gathered in `Compression`. A compressor
turns a tensor into the one that is sent and, after the reduction, back. The tensors that are sent must have the same
shape and element type on all ranks, because they are reduced element by element.

A script brings its own by passing anything with these two functions as `compression=`; a class with static methods or
an object, which may then keep state of its own, such as what earlier rounds have lost.

Not here: formats that do not add up element by element, and when to compress (the operations and the optimizer do
that).
"""

from __future__ import annotations

from typing import Any, ClassVar, Optional

import torch


class Compressor:
    """What a compressor is: two functions, inverse to each other up to what compression loses."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor that is sent, and what `decompress` needs."""
        raise NotImplementedError("a compressor has a function compress(tensor) -> (tensor, context)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The reduced tensor in its original form."""
        raise NotImplementedError("a compressor has a function decompress(tensor, context) -> tensor")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class _NarrowCompressor(Compressor):
    """Sends floating-point tensors in a narrower type. Ranks still add in float32, so that only the ends of the way
    round."""

    narrow: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor in the narrow type; tensors of other kinds, and those that are no wider, stay as they are."""
        wide = tensor.dtype.is_floating_point and tensor.element_size() > cls.narrow.itemsize
        return (tensor.to(cls.narrow) if wide else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """The tensor in the type that it had."""
        return tensor.to(ctx)


class FP16Compressor(_NarrowCompressor):
    """Half precision: 11 bits of precision, values up to 65504. Larger gradients become infinite, so scale the loss
    with care."""

    narrow = torch.float16


class BF16Compressor(_NarrowCompressor):
    """bfloat16: the range of float32 with 8 bits of precision. Nothing overflows that did not before."""

    narrow = torch.bfloat16


def travel_type(compression: Any) -> Optional[torch.dtype]:
    """The type in which a compressor of our own sends gradients; `None` for any other. What lies on a GPU in single
    precision the engine narrows itself, when it packs it, and widens when it unpacks the result."""
    return compression.narrow if compression in (FP16Compressor, BF16Compressor) else None


class Compression:
    """The compressors to choose from: `compression=hvd.Compression.fp16`."""

    #: Gradients are sent as they are. The default.
    none = NoneCompressor
    #: Floating-point gradients are sent as float16.
    fp16 = FP16Compressor
    #: Floating-point gradients are sent as bfloat16.
    bf16 = BF16Compressor
