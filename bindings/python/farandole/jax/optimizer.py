"""`DistributedOptimizer`: an Optax transformation that combines gradients over the ranks before another one sees them.

Optax is imported when the first one is made; everything else works without.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp

from farandole.basics import basics
from farandole.gradient_settings import check_predivide
from farandole.jax.compression import Compression
from farandole.jax.gradients import allreduce_gradients
from farandole.process_sets import ProcessSet, global_process_set

__all__ = ["AggregationState", "DistributedOptimizer"]


class AggregationState(NamedTuple):
    """The state of an optimizer that adds up the gradients of several passes."""

    passes: Any
    """Since the last step."""
    sums: Any
    inner: Any


def DistributedOptimizer(
    tx: Any,
    op: int = basics.Average,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet = global_process_set,
    gradient_predivide_factor: float = 1.0,
    name: Optional[str] = None,
    average_aggregated_gradients: bool = False,
    *,
    ordered: bool = True,
) -> Any:
    """The transformation `tx` for gradients of all ranks: `update` combines them, in one call, and passes them on.

    op, compression, process_set, gradient_predivide_factor, name, ordered: as for `allreduce_gradients`.
    backward_passes_per_step: so many calls of `update` make one step. The gradients of the others are added up on this
        rank, and their updates are zeros. The state is then an `AggregationState`.
    average_aggregated_gradients: whether such sums are divided by their number.

    The state is `tx`'s own where there is one pass for each step, so checkpoints of either fit the other.
    """
    import optax

    check_predivide(op, gradient_predivide_factor)
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is at least 1, not {backward_passes_per_step}")
    tx = optax.with_extra_args_support(tx)

    def reduced(grads: Any, params: Any) -> Any:
        return allreduce_gradients(
            grads,
            parameters=params,
            op=op,
            compression=compression,
            gradient_predivide_factor=gradient_predivide_factor,
            process_set=process_set,
            name=name,
            ordered=ordered,
        )

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return tx.update(reduced(updates, params), state, params, **extra)

    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(tx.init, update)

    def init(params: Any) -> AggregationState:
        return AggregationState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), tx.init(params))

    def aggregate(updates: Any, state: AggregationState, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        sums = jax.tree.map(jnp.add, state.sums, updates)
        passes = state.passes + 1
        divisor = backward_passes_per_step if average_aggregated_gradients else 1

        def step() -> tuple[Any, AggregationState]:
            total = sums if divisor == 1 else jax.tree.map(lambda value: value / divisor, sums)
            made, inner = update(total, state.inner, params, **extra)
            return made, AggregationState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, sums), inner)

        def wait() -> tuple[Any, AggregationState]:
            return jax.tree.map(jnp.zeros_like, sums), AggregationState(passes, sums, state.inner)

        is_due = passes >= backward_passes_per_step
        if isinstance(is_due, jax.core.Tracer):
            return jax.lax.cond(is_due, step, wait)
        return step() if is_due else wait()

    return optax.GradientTransformationExtraArgs(init, aggregate)
