"""Gradients of a function, averaged over the ranks: `distributed_grad` and `distributed_value_and_grad`.

They take what `jax.grad` and `jax.value_and_grad` take. The gradients of one evaluation are one call; the value and
anything auxiliary are this rank's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import jax

from farandole import _native
from farandole.basics import basics, on_shutdown
from farandole.gradient_settings import check_predivide
from farandole.jax.arrays import CODES
from farandole.jax.compression import Compression
from farandole.jax.reduce import asked_of, reduce_leaves
from farandole.process_sets import ProcessSet, global_process_set

__all__ = ["allreduce_gradients", "distributed_grad", "distributed_value_and_grad"]


def allreduce_gradients(
    grads: Any,
    *,
    op: int = basics.Average,
    compression: Any = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: Optional[str] = None,
    ordered: bool = True,
    parameters: Any = None,
) -> Any:
    """A tree of gradients, combined over the ranks in one call, which ends an iteration of training for reports.

    parameters: a tree of arrays that are the same on all ranks. They are compared before the first step; one rank warns
        if they differ (`FARANDOLE_CHECK_PARAMETERS`). Not with Adasum.

    gradient_predivide_factor: with Average, what the division by the number of ranks is split by: gradients are divided
        by it before they are added, and the rest of the division comes after. The other arguments are those of
        `allreduce`.
    """
    check_predivide(op, gradient_predivide_factor)
    leaves, structure = jax.tree.flatten(grads)
    factor = float(gradient_predivide_factor)
    names, compared = _compared(parameters)
    asked = asked_of(
        "allreduce",
        process_set,
        name,
        ordered=ordered,
        op=int(op),
        prescale=1.0 / factor,
        postscale=factor,
        ends_iteration=True,
        parameters=names,
    )
    return jax.tree.unflatten(structure, reduce_leaves(asked, leaves, compression, compared))


def _compared(parameters: Any) -> tuple[tuple[str, ...], list[Any]]:
    """Names and arrays of a tree, of those element types that the engine knows. Nothing differentiates them here."""
    pairs = [
        # A line for each: a bare array has no path.
        ((jax.tree_util.keystr(path) or "array").replace("\n", " "), jax.lax.stop_gradient(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)
        if isinstance(leaf, jax.Array) and leaf.dtype in CODES
    ]
    return tuple(name for name, _ in pairs), [leaf for _, leaf in pairs]


def _arguments_at(args: Sequence[Any], argnums: Union[int, Sequence[int]]) -> Any:
    """What a function is differentiated by."""
    return args[argnums] if isinstance(argnums, int) else [args[number] for number in argnums]


def distributed_value_and_grad(
    fun: Callable[..., Any],
    argnums: Union[int, Sequence[int]] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **how: Any,
) -> Callable[..., Any]:
    """As `jax.value_and_grad`, with gradients combined over the ranks. The value is this rank's own; `hvd.pmean` makes
    the ranks' average of it.

    how: arguments of `allreduce_gradients`.
    """
    compute = jax.value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)

    @functools.wraps(fun)
    def value_and_grad(*args: Any, **kwargs: Any) -> Any:
        value, grads = compute(*args, **kwargs)
        return value, allreduce_gradients(grads, **{"parameters": _arguments_at(args, argnums), **how})

    return value_and_grad


def distributed_grad(
    fun: Callable[..., Any],
    argnums: Union[int, Sequence[int]] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **how: Any,
) -> Callable[..., Any]:
    """As `jax.grad`, with gradients combined over the ranks.

    how: arguments of `allreduce_gradients`.
    """
    compute = distributed_value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, **how)

    @functools.wraps(fun)
    def grad(*args: Any, **kwargs: Any) -> Any:
        value, grads = compute(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return grad


# A comparison that a program has begun ends before the job does.
on_shutdown(_native.jax_finish_comparing)
