"""Compression: gradients in fewer bytes on the wire.

Owns the interface `Compressor` and the compressors that come with Farandole, gathered in `Compression`. A compressor
turns an array into the one that is sent and, after the reduction, back. The arrays that are sent must have the same
shape and element type on all ranks, because they are reduced element by element.

Not here: when to compress (`trainer`).
"""

from __future__ import annotations

from typing import Any

import numpy


class Compressor:
    """What a compressor is: two functions, inverse to each other up to what compression loses."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array that is sent, and what `decompress` needs."""
        raise NotImplementedError("a compressor has a function compress(tensor) -> (tensor, context)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The reduced array in its original form."""
        raise NotImplementedError("a compressor has a function decompress(tensor, context) -> tensor")


class NoneCompressor(Compressor):
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array itself."""
        return tensor


class FP16Compressor(Compressor):
    """Half precision: 11 bits of precision, values up to 65504. Ranks add in float32, so that only the ends of the way
    round."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array in half precision, if it has floating-point numbers."""
        is_float = numpy.issubdtype(tensor.dtype, numpy.floating)
        return (tensor.astype("float16", copy=False) if is_float else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array in the type that it had."""
        return tensor.astype(ctx, copy=False)


class Compression:
    """The compressors to choose from: `compression=hvd.Compression.fp16`."""

    #: Gradients are sent as they are. The default.
    none = NoneCompressor
    #: Floating-point gradients are sent as float16.
    fp16 = FP16Compressor
