"""Broadcast, allgather and alltoall of arrays and trees of them, barrier and join.

Inside of `jit` the shapes of results are fixed when JAX compiles: every rank brings as many rows, and alltoall sends
equal parts. That is checked when the program runs. Outside, ranks may bring different numbers of rows (`engine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import jax
import jax.numpy as jnp

from farandole import _native
from farandole.jax import arrays, engine
from farandole.jax.primitive import call, runs_now
from farandole.jax.reduce import asked_of
from farandole.process_sets import ProcessSet, global_process_set, group_for, ranks_of

__all__ = [
    "all_gather",
    "all_to_all",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "join",
]


def broadcast(
    tensor: Any,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    ordered: bool = True,
) -> Any:
    """The root's array, or tree of arrays, on all ranks. All ranks bring the same structure, shapes and types.

    root_rank: a rank of the world. The other arguments are those of `allreduce`.
    """
    leaves, structure = jax.tree.flatten(tensor)
    asked = asked_of("broadcast", process_set, name, ordered=ordered, root=int(root_rank))
    if root_rank not in ranks_of(asked.group):
        raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set {asked.group}")
    if not leaves:
        return tensor
    packed = arrays.pack(leaves, "broadcast")
    return jax.tree.unflatten(structure, arrays.unpack(packed, call(asked, packed.arrays)))


def allgather(
    tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set, *, ordered: bool = True
) -> Any:
    """The arrays of all ranks, one after the other along the first dimension; a number counts as one row. Outside of
    `jit` ranks may bring different numbers of rows. The arguments are those of `allreduce`."""
    leaves, structure = jax.tree.flatten(tensor)
    asked = asked_of("allgather", process_set, name, ordered=ordered)
    if not leaves:
        return tensor
    leaves = [leaf if jnp.ndim(leaf) else jnp.reshape(leaf, (1,)) for leaf in leaves]
    packed = arrays.pack(leaves, "allgather")
    if runs_now(packed.arrays):
        gathered = engine.allgather(asked, packed.arrays)
    else:
        gathered = call(asked, packed.arrays)
    return jax.tree.unflatten(structure, arrays.unpack(packed, gathered))


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    ordered: bool = True,
) -> list[Any]:
    """As `allgather` of a list. Returns a list."""
    return allgather(list(tensors), name, process_set, ordered=ordered)


def alltoall(
    tensor: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    ordered: bool = True,
) -> Any:
    """Sends rows of an array to the other ranks, and returns those that they send here, in rank order; with `splits`,
    also how many came from each rank.

    splits: how many rows go to each rank of the process set; equal parts, if not given, and always inside of `jit`.
        The other arguments are those of `allreduce`.
    """
    asked = asked_of("alltoall", process_set, name, ordered=ordered)
    packed = arrays.pack([tensor], "alltoall")
    [array] = packed.arrays
    if array.ndim == 0:
        raise ValueError("alltoall shares rows out; a number has none")
    if runs_now([array]):
        output, received = engine.alltoall(asked, array, splits)
        [output] = arrays.unpack(packed, [output])
        return output if splits is None else (output, received)
    if splits is not None:
        raise ValueError(
            "alltoall with splits cannot be compiled or differentiated: what the other ranks send is known only when "
            "it runs. Call it outside of jit, or send equal parts."
        )
    if array.shape[0] % asked.size:
        raise ValueError(f"alltoall: {array.shape[0]} rows cannot be shared evenly among {asked.size} ranks")
    [output] = arrays.unpack(packed, call(asked, [array]))
    return output


def all_gather(
    x: Any, *, axis: int = 0, tiled: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """All ranks' arrays along a new dimension; with `tiled`, one after the other along one that exists. As in JAX."""

    def in_front(leaf: Any) -> Any:
        return jnp.moveaxis(leaf, axis, 0) if tiled else jnp.expand_dims(leaf, 0)

    gathered = allgather(jax.tree.map(in_front, x), process_set=process_set)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), gathered)


def all_to_all(
    x: Any,
    split_axis: int,
    concat_axis: int,
    *,
    tiled: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends parts along one dimension, and puts those that come together along another. As in JAX: `split_axis` is as
    long as there are ranks and disappears, and `concat_axis` is new; with `tiled` both exist before and after."""
    size = process_set.size() or 1

    def exchange(leaf: Any) -> Any:
        shape = jnp.shape(leaf)
        length = shape[split_axis]
        if length % size or not (tiled or length == size):
            wanted = f"a multiple of {size}" if tiled else f"{size}"
            raise ValueError(f"all_to_all: dimension {split_axis} has {length} elements, and needs {wanted}")
        if tiled:
            leaf = jnp.reshape(leaf, (*shape[:split_axis], size, length // size, *shape[split_axis + 1 :]))
        output = jnp.moveaxis(
            alltoall(jnp.moveaxis(leaf, split_axis, 0), process_set=process_set), 0, concat_axis
        )
        if tiled:
            merged = output.shape[concat_axis] * output.shape[concat_axis + 1]
            output = jnp.reshape(output, (*output.shape[:concat_axis], merged, *output.shape[concat_axis + 2 :]))
        return output

    return jax.tree.map(exchange, x)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the process set have called it. Inside of `jit`, later collectives of the program come
    after it."""
    call(asked_of("barrier", process_set), [])


def join(process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data, and returns when all ranks of the process set have said so: the rank that
    said it last. Until then this rank takes part in the operations of the others without data of its own. Outside of
    `jit` only."""
    group = group_for(process_set, "Join")
    last = _native.join(group).wait().last_joined
    engine.count_anew(group)
    return ranks_of(group)[last]
