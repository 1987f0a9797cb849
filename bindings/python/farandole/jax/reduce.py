"""Allreduce and reducescatter of arrays and trees of them, with Horovod's names and JAX's (`psum`, `pmean`, …).

A tree is one call: all its arrays, of whatever types, are submitted together and come back together. All functions may
be called inside and outside of `jit`, and all are differentiable (`primitive`); operations other than Sum and Average
in reverse mode only.

Every element type, Sum, Average, Min, Max, Product, and Adasum for floating-point types. Average of integers is cut off
towards zero. JAX's functions have no axis name: they are about the ranks of a process set.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Optional

import jax
import jax.numpy as jnp

from farandole.basics import basics
from farandole.jax import arrays
from farandole.jax.compression import Compression
from farandole.jax.primitive import LINEAR, Asked, call
from farandole.process_sets import ProcessSet, global_process_set, group_for

__all__ = [
    "allreduce",
    "grouped_allreduce",
    "grouped_reducescatter",
    "pmax",
    "pmean",
    "pmin",
    "psum",
    "psum_scatter",
    "reducescatter",
]


def asked_of(
    kind: str, process_set: ProcessSet, name: Optional[str] = None, *, ordered: bool = True, **more: Any
) -> Asked:
    """What the ranks of a process set are asked for."""
    group = group_for(process_set, kind.capitalize())
    size, place = process_set.size(), process_set.rank()
    assert size is not None and place is not None, "invariant: a registered set has ranks"
    return Asked(kind, group, size, place, name=name, ordered=ordered, **more)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _call_in_reverse_mode(asked: Asked, values: list[Any]) -> list[Any]:
    """For operations that are not linear. Horovod's gradient is the same operation on the gradients."""
    return call(asked, values)


def _call_forward(asked: Asked, values: list[Any]) -> tuple[list[Any], None]:
    return call(asked, values), None


def _call_backward(asked: Asked, _nothing: None, cotangents: list[Any]) -> tuple[list[Any]]:
    return (call(asked.named("grad"), cotangents),)


_call_in_reverse_mode.defvjp(_call_forward, _call_backward)


def reduce_leaves(asked: Asked, leaves: Sequence[Any], compression: Any, parameters: Sequence[Any] = ()) -> list[Any]:
    """Reduces arrays, in one call. parameters: those whose names `asked` has."""
    if not leaves:
        return []
    packed = arrays.pack(leaves, asked.kind, mixes=asked.op in (*LINEAR, basics.Adasum))
    if asked.op == basics.Adasum:
        for array in packed.arrays:
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise TypeError(f"Adasum takes floating-point arrays, not {array.dtype}")
    if compression is Compression.none:
        # Saves what a thousand arrays would notice.
        return arrays.unpack(packed, _reduce(asked, packed.arrays, parameters))
    pairs = [compression.compress(array) for array in packed.arrays]
    reduced = _reduce(asked, [value for value, _ in pairs], parameters)
    return arrays.unpack(
        packed, [compression.decompress(result, context) for result, (_, context) in zip(reduced, pairs)]
    )


def _reduce(asked: Asked, values: list[Any], parameters: Sequence[Any] = ()) -> list[Any]:
    if asked.op in LINEAR:
        return call(asked, [*values, *parameters] if parameters else values)
    return _call_in_reverse_mode(asked._replace(parameters=()), values)


def allreduce(
    tensor: Any,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: int = basics.Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    ordered: bool = True,
) -> Any:
    """Combines the arrays that all ranks of a process set bring, and returns the results.

    tensor: an array or number, or a tree of them: same structure, shapes and types on all ranks.
    name: what the call is called in errors, traces and reports; the same on all ranks. Needed by threads that make
        calls at the same time.
    compression: what is sent in place of the arrays, from `hvd.Compression`.
    op: `Average`, `Sum`, `Min`, `Max`, `Product` or `Adasum`.
    prescale_factor, postscale_factor: contributions and result are multiplied by these.
    process_set: the ranks that take part.
    ordered: inside of `jit`, whether the call keeps its place among the program's other collectives. Without, JAX
        dispatches programs of many arrays sooner, as it does those of `hvd.jit`; a `name` is needed then, that no other
        call under way has.
    """
    leaves, structure = jax.tree.flatten(tensor)
    asked = asked_of(
        "allreduce",
        process_set,
        name,
        ordered=ordered,
        op=int(op),
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
    )
    return jax.tree.unflatten(structure, reduce_leaves(asked, leaves, compression))


def grouped_allreduce(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: int = basics.Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    ordered: bool = True,
) -> list[Any]:
    """As `allreduce` of a list: its arrays are always reduced together. Returns a list."""
    return allreduce(
        list(tensors), name, compression, op, prescale_factor, postscale_factor, process_set, ordered=ordered
    )


def reducescatter(
    tensor: Any,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: int = basics.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ordered: bool = True,
) -> Any:
    """This rank's rows of the combination of the arrays that all ranks bring. If rows cannot be shared evenly, the
    first ranks get one more.

    op: `Average`, `Sum`, `Min`, `Max` or `Product`. The other arguments are those of `allreduce`.
    """
    leaves, structure = jax.tree.flatten(tensor)
    if op == basics.Adasum:
        raise ValueError("reducescatter takes Average, Sum, Min, Max and Product, and not Adasum")
    for leaf in leaves:
        if jnp.ndim(leaf) == 0:
            raise ValueError("reducescatter shares rows out; a number has none")
    asked = asked_of(
        "reducescatter",
        process_set,
        name,
        ordered=ordered,
        op=int(op),
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
    )
    return jax.tree.unflatten(structure, reduce_leaves(asked, leaves, compression))


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: int = basics.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    ordered: bool = True,
) -> list[Any]:
    """As `reducescatter` of a list. Returns a list."""
    return reducescatter(
        list(tensors), name, compression, op, process_set, prescale_factor, postscale_factor, ordered=ordered
    )


def psum(x: Any, *, process_set: ProcessSet = global_process_set) -> Any:
    """The sum of all ranks' arrays."""
    return allreduce(x, op=basics.Sum, process_set=process_set)


def pmean(x: Any, *, process_set: ProcessSet = global_process_set) -> Any:
    """The average of all ranks' arrays."""
    return allreduce(x, op=basics.Average, process_set=process_set)


def pmax(x: Any, *, process_set: ProcessSet = global_process_set) -> Any:
    """The greatest of all ranks' elements, place by place."""
    return allreduce(x, op=basics.Max, process_set=process_set)


def pmin(x: Any, *, process_set: ProcessSet = global_process_set) -> Any:
    """The least of all ranks' elements, place by place."""
    return allreduce(x, op=basics.Min, process_set=process_set)


def psum_scatter(
    x: Any,
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's part of the sum, along a dimension. As in JAX, the dimension is as long as there are ranks and
    disappears; with `tiled` it is a multiple of that and becomes shorter."""
    size = process_set.size() or 1

    def in_front(leaf: Any) -> Any:
        rows = jnp.shape(leaf)[scatter_dimension]
        if rows % size or not (tiled or rows == size):
            wanted = f"a multiple of {size}" if tiled else f"{size}"
            raise ValueError(f"psum_scatter: dimension {scatter_dimension} has {rows} elements, and needs {wanted}")
        return jnp.moveaxis(leaf, scatter_dimension, 0)

    def back(part: Any) -> Any:
        return jnp.moveaxis(part, 0, scatter_dimension) if tiled else jnp.squeeze(part, 0)

    parts = reducescatter(jax.tree.map(in_front, x), op=basics.Sum, process_set=process_set)
    return jax.tree.map(back, parts)
