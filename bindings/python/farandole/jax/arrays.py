"""Arrays on their way to the engine and back: element types, and complex numbers as pairs.

The engine knows bool, integers of 8 to 64 bits, float16, bfloat16, float32 and float64. A complex array travels as its
real and imaginary parts, in one more dimension at the end; a key of JAX's random numbers as its data. Every other type
is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["CODES", "Packed", "pack", "unpack"]

_NAMES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64".split()

CODES = {jnp.dtype(name): code for code, name in enumerate(_NAMES)}
"""The engine's number of each element type."""


class Packed(NamedTuple):
    """Arrays as the engine takes them, and how to get back what they were."""

    arrays: list[Any]
    undo: list[Callable[[Any], Any]]


def pack(leaves: Sequence[Any], operation: str, *, mixes: bool = True) -> Packed:
    """Makes arrays of numbers, arrays and keys.

    mixes: whether the operation treats the parts of a complex number like numbers of their own. Least, greatest and
        product do not.
    """
    packed = [_pack(leaf, operation, mixes=mixes) for leaf in leaves]
    return Packed([array for array, _ in packed], [undo for _, undo in packed])


def unpack(packed: Packed, results: Sequence[Any]) -> list[Any]:
    """What the results are in the terms of what was packed."""
    return [undo(result) for undo, result in zip(packed.undo, results)]


def _same(result: Any) -> Any:
    return result


def _pack(leaf: Any, operation: str, *, mixes: bool) -> tuple[Any, Callable[[Any], Any]]:
    is_array = isinstance(leaf, jax.Array)
    # First of all, because a thousand gradients are.
    if is_array and leaf.dtype in CODES:
        return leaf, _same
    if is_array and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        if operation not in ("broadcast", "allgather", "alltoall"):
            raise TypeError(f"{operation}: keys of random numbers can be moved between ranks, and not be reduced")
        implementation = jax.random.key_impl(leaf)
        return jax.random.key_data(leaf), lambda data: jax.random.wrap_key_data(data, impl=implementation)
    try:
        array = leaf if is_array else jnp.asarray(leaf)
    except TypeError:
        raise TypeError(f"{operation} takes arrays and numbers, not {type(leaf).__name__}") from None
    if array.dtype in CODES:
        return array, _same
    if not jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"{operation}: no rank can reduce or send arrays of {array.dtype}; convert them first")
    if not mixes:
        raise TypeError(f"{operation}: complex numbers can be added and sent, and neither be compared nor multiplied")
    pairs = jnp.stack([array.real, array.imag], axis=-1)
    return pairs, lambda result: jax.lax.complex(result[..., 0], result[..., 1])
