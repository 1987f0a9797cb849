"""Compression of arrays on their way between ranks: `hvd.Compression`.

Ranks that use different compressors send different types, and are refused with both types named.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

__all__ = ["Compression"]


class NoneCompressor:
    """Sends arrays as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The array itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array itself."""
        return tensor


class _NarrowCompressor:
    """Sends floating-point arrays in a narrower type. Ranks still add in float32."""

    narrow: ClassVar[Any]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """The array in the narrow type; those of other kinds, and those that are no wider, stay as they are."""
        tensor = jnp.asarray(tensor)
        wide = jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype.itemsize > jnp.dtype(cls.narrow).itemsize
        return (tensor.astype(cls.narrow) if wide else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """The array in the type that it had."""
        return tensor.astype(ctx)


class FP16Compressor(_NarrowCompressor):
    """Half precision. Values above 65504 become infinite."""

    narrow = jnp.float16


class BF16Compressor(_NarrowCompressor):
    """bfloat16: the range of float32 with 8 bits of precision."""

    narrow = jnp.bfloat16


class Compression:
    """The compressors to choose from: `compression=hvd.Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
