"""Reducing gradients of Keras 3 on its torch backend.

Gradients are reduced by `farandole.torch`, all of them in one submission. Those that a model's own variables hold
(`.grad`, which is what `fit` hands over) are reduced where they lie; others are copied first, as their owner may want
to see them again.

`torch.compile` is told to leave all of this as it is, so that `jit_compile=True` compiles the rest of the train step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole import _native
from farandole._keras.variables import key
from farandole._keras.wrapping import REMEDY
from farandole.gradient_settings import Settings
from farandole.process_sets import group_for
from farandole.torch import mpi_ops
from farandole.torch.parameter_pieces import pieces

STATELESS = False


def dense(grad: Any, sparse_as_dense: bool) -> Any:
    """A gradient that can be added to an accumulator."""
    if grad is None or not grad.is_sparse:
        return grad
    if not sparse_as_dense:
        raise ValueError(
            "sparse gradients are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
        )
    return grad.to_dense()


def divide(grad: Any, by: float) -> Any:
    """A gradient divided by a number."""
    return grad / by


class Reducer:
    """Reduces the gradients of one optimizer."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        # Callbacks may broadcast variables when the first step is made.
        self._check = _native.ParameterCheck(1, REMEDY, False)

    def _compare(self, variables: Sequence[Any]) -> None:
        """Compares variables with those of other ranks, if that is due."""
        process_set = self.settings.process_set
        if not process_set.included():
            return
        group = group_for(process_set, "Allreduce")
        whole = self._check.next_step(group)
        if whole is not None:
            values = [(one, getattr(one, "value", one)) for one in variables]
            named = [(str(getattr(one, "path", "")), value) for one, value in values]
            self._check.compare(group, pieces(named, whole))

    @torch.compiler.disable
    def reduce(self, grads: Sequence[Any], variables: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        """The gradients of all ranks, combined. `numbers` tell gradients apart, the same on all ranks."""
        settings = self.settings
        if variables:
            self._compare(variables)
        results: list[Any] = [None] * len(grads)
        packed: list[tuple[torch.Tensor, Any]] = []
        places: list[int] = []
        sparse: list[tuple[int, Callable[[], torch.Tensor]]] = []
        for place, (grad, variable) in enumerate(zip(grads, variables)):
            if grad.is_sparse and not settings.sparse_as_dense:
                name = f"{self.name}.{numbers[place]}"
                sparse.append((place, mpi_ops.sparse_allreduce_async(grad, name, settings.op, settings.process_set)))
                continue
            packed.append(self._pack(grad, variable))
            places.append(place)
        groups = settings.places([variables[place] for place in places], key)
        grouped = {member for group in groups for member in group}
        groups = [*groups, [member for member in range(len(places)) if member not in grouped]]
        prescale, postscale = settings.factors()
        handles = [
            mpi_ops.grouped_allreduce_async_(
                [packed[member][0] for member in group],
                name=f"{self.name}.{numbers[places[group[0]]]}",
                op=settings.op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=settings.process_set,
            )
            for group in groups
            if group
        ]
        for handle in handles:
            mpi_ops.synchronize(handle)
        for place, (tensor, context) in zip(places, packed):
            results[place] = settings.compression.decompress(tensor, context)
        for place, wait in sparse:
            results[place] = wait()
        return results

    def _pack(self, grad: torch.Tensor, variable: Any) -> tuple[torch.Tensor, Any]:
        """The tensor that is reduced, which may be written, and what is needed to unpack it."""
        grad = grad.detach()
        if grad.is_sparse:
            grad = grad.to_dense()
        compressed, context = self.settings.compression.compress(grad)
        value = getattr(variable, "value", variable)
        is_model_owned = value.grad is not None and value.grad.data_ptr() == compressed.data_ptr()
        shares = compressed.data_ptr() == grad.data_ptr() and not is_model_owned
        memory = compressed.clone() if shares else compressed
        return (memory if memory.is_contiguous() else memory.contiguous()), context

    @torch.compiler.disable
    def all_true(self, flag: Any) -> Any:
        """Whether this is true on all ranks."""
        own = torch.as_tensor(flag).to(torch.uint8).reshape(1).clone()
        reduced = mpi_ops.allreduce(
            own, name=f"{self.name}.finite", op=mpi_ops.Min, process_set=self.settings.process_set
        )
        return reduced.reshape(()).bool()


@torch.compiler.disable
def accumulate(
    optimizer: Any,
    grads: list[Any],
    variables: list[Any],
    accumulators: list[Any],
    update: Callable[[list[Any]], list[Any]],
    apply: Callable[[list[Any]], None],
) -> None:
    """Adds gradients up. Every so many calls the sums are reduced and applied."""
    state = optimizer._farandole
    with torch.no_grad():
        for accumulator, grad in zip(accumulators, grads):
            if grad is not None:
                accumulator.value.add_(grad)
        state.counter.assign(state.counter + 1)
        if int(state.counter.value) < optimizer.farandole_settings.backward_passes_per_step:
            optimizer._iterations.assign_add(1)
            return
        sums = [None if grad is None else accumulator.value.clone() for accumulator, grad in zip(accumulators, grads)]
        apply(update(sums))
        state.counter.assign(0)
        for accumulator in accumulators:
            accumulator.value.zero_()


