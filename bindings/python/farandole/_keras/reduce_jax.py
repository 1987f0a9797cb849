"""Reducing gradients of Keras 3 on its JAX backend.

The train step of Keras is one compiled function. In it gradients leave JAX by one ordered `io_callback` for all of
them: JAX copies them to numpy arrays, the engine reduces these in one submission, and JAX copies the results back.
Ordered callbacks run one after the other in the order of the program, so that ranks that run the same program ask for
the same operations. Outside of compiled functions there is no callback.

An error in a callback becomes a `JaxRuntimeError`; `faults` gets to know the first cause.

On a GPU or TPU the arrays go through host memory by the same callback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from farandole._keras import faults, host
from farandole._keras.variables import key
from farandole.basics import basics
from farandole.gradient_settings import Settings

STATELESS = True


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


def dense(grad: Any, sparse_as_dense: bool) -> Any:
    """A gradient that can be added to an accumulator. JAX has no sparse gradients of variables."""
    del sparse_as_dense
    return grad


def divide(grad: Any, by: float) -> Any:
    """A gradient divided by a number."""
    return grad / by


def _call(reduce: Callable[..., Sequence[np.ndarray]], arrays: Sequence[Any]) -> list[Any]:
    """Has a function reduce arrays, now or when the compiled function runs. The results have the shapes and types of
    the arrays."""
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return [jnp.asarray(result) for result in reduce(*arrays)]

    def noting(*values: Any) -> Sequence[np.ndarray]:
        try:
            return tuple(reduce(*values))
        except BaseException as error:
            faults.note(error)
            raise

    shapes = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays)
    return list(io_callback(noting, shapes, *arrays, ordered=True))


class Reducer:
    """Reduces the gradients of one optimizer."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        """The gradients of all ranks, combined. `numbers` tell gradients apart, the same on all ranks."""
        settings = self.settings
        if not grads:
            return []
        packed = [settings.compression.compress(jnp.asarray(grad)) for grad in grads]
        groups = settings.places(variables, key)
        names = [f"{self.name}.{number}" for number in numbers]

        def reduce(*arrays: Any) -> list[np.ndarray]:
            return host.allreduce_many(arrays, names, settings.op, *settings.factors(), settings.process_set, groups)

        reduced = _call(reduce, [array for array, _ in packed])
        return [settings.compression.decompress(array, context) for array, (_, context) in zip(reduced, packed)]

    def all_true(self, flag: Any) -> Any:
        """Whether this is true on all ranks."""
        name, process_set = f"{self.name}.finite", self.settings.process_set

        def reduce(array: Any) -> list[np.ndarray]:
            return [host.allreduce(array, name, basics.Min, process_set=process_set)]

        [reduced] = _call(reduce, [jnp.asarray(flag).astype(jnp.uint8)])
        return reduced.astype(bool)


def accumulate(
    optimizer: Any,
    grads: list[Any],
    variables: list[Any],
    accumulators: list[Any],
    update: Callable[[list[Any]], list[Any]],
    apply: Callable[[list[Any]], None],
) -> None:
    """Adds gradients up. Every so many calls the sums are reduced and applied.

    A compiled function cannot leave an update out, so it is computed every time and taken every so many times. Ranks
    only talk then.
    """
    state = optimizer._farandole
    count = state.counter.value + 1
    is_due = count >= optimizer.farandole_settings.backward_passes_per_step
    given = [place for place, grad in enumerate(grads) if grad is not None]
    sums = [accumulators[place].value + grads[place] for place in given]

    def reduced_sums() -> list[Any]:
        every: list[Any] = [None] * len(grads)
        for place, total in zip(given, sums):
            every[place] = total
        reduced = update(every)
        return [reduced[place].astype(total.dtype) for place, total in zip(given, sums)]

    if isinstance(is_due, jax.core.Tracer):
        taken = jax.lax.cond(is_due, reduced_sums, lambda: sums)
    else:
        taken = reduced_sums() if is_due else sums
    every: list[Any] = [None] * len(grads)
    for place, result in zip(given, taken):
        every[place] = result

    ours = {id(variable) for variable in (*accumulators, state.counter)}
    kept = [variable for variable in (*variables, *optimizer.variables) if id(variable) not in ours]
    before = [variable.value for variable in kept]
    apply(every)
    for variable, old in zip(kept, before):
        if variable is not optimizer._iterations:
            variable.assign(jnp.where(is_due, variable.value, old))
    for place, total in zip(given, sums):
        accumulators[place].assign(jnp.where(is_due, jnp.zeros_like(total), total))
    state.counter.assign(jnp.where(is_due, 0, count))
