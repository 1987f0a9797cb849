"""Adasum: every rank makes the step that its own optimizer makes of its own gradients, and the steps are combined.

Owns the optimizer that `DistributedOptimizer(op=Adasum)` returns. In `step`, each parameter's *start* is put aside, the
user's optimizer makes its step, and the *delta* from start to there is reduced. Adasum adds deltas of different
directions and averages those of the same one, pair by pair, for any number of ranks. Every rank then continues from
start plus the combined delta.

Invariant: after `step` all ranks have the same parameters if they had the same before. States of the optimizers
(momentum and such) stay each rank's own.

Deltas exist only after the user's step, so nothing is submitted during backward and gradients may be clipped and
changed freely before `step`; `synchronize` has nothing to wait for. `backward_passes_per_step` is how often a script
calls backward before `step`, and needs no help. A `GradScaler` looks at each rank's own gradients; what one rank finds
counts for all, so that all make a step or none does.

With groups of the user's, the deltas of a group are submitted together and none is combined before all are there on all
ranks. Each is combined by itself nevertheless: the result is the same with groups and without.

Not here: the combination itself, which the engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from farandole.torch import grad_scaler, phases
from farandole.torch.grouping import Groups, named_groups
from farandole.torch.mpi_ops import Max, allreduce_, allreduce_async_, grouped_allreduce_async_, synchronize
from farandole.torch.parameter_names import name_parameters, numbered
from farandole.torch.parameter_pieces import OptimizerCheck
from farandole.torch.reduce_options import ReduceOptions, check_passes


class DeltaOptimizer:
    """What is put in front of the user's optimizer class."""

    param_groups: list[dict[str, Any]]

    _step_supports_amp_scaling: bool

    def _begin(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        options: ReduceOptions,
        passes: int,
        groups: Groups,
    ) -> None:
        """Takes the place of a constructor: the optimizer exists already."""
        self._parameter_names = name_parameters(self.param_groups, named_parameters)
        self._groups = groups
        self._options = options
        self._parameter_check = OptimizerCheck()
        self._starts: dict[torch.Tensor, torch.Tensor] = {}
        self.backward_passes_per_step = passes
        grad_scaler.synchronize_before_unscale()
        # Otherwise a fused optimizer would skip its step by what this rank alone has found.
        self._step_supports_amp_scaling = False
        phases.watch()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes a script makes before `step`."""
        check_passes(passes)
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing: gradients stay where they are, and deltas are combined within `step`."""

    def _agree_on_overflow(self, found: Iterable[torch.Tensor]) -> None:
        """Makes what a scaler has found on any rank the finding of all: 1 for an overflow, 0 for none."""
        if not self._options.process_set.included():
            return
        _, first = self._named_parameters()[0]
        for number, tensor in enumerate(found):
            name = f"overflow.{number}.{first}"
            allreduce_(tensor.view(1), name=name, op=Max, process_set=self._options.process_set)

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Refused: there is no step without combining."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Does nothing: backward submits nothing anyway."""
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes this rank's step and combines it with those of all ranks."""
        phases.step_begins()
        try:
            return self._step(closure)
        finally:
            phases.step_ends(self)

    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if not self._options.process_set.included():
            return super().step(closure)  # type: ignore[misc]
        named = self._named_parameters()
        if named:
            self._parameter_check.step_begins(
                self._options.group(), lambda: [(name, parameter) for parameter, name in named]
            )
        with torch.no_grad():
            for parameter, _ in named:
                start = self._starts.get(parameter)
                if start is None or start.shape != parameter.shape or start.dtype != parameter.dtype:
                    start = self._starts[parameter] = torch.empty_like(parameter, requires_grad=False)
                start.copy_(parameter)
        loss = super().step(closure)  # type: ignore[misc]
        self._combine(named)
        return loss

    def _named_parameters(self) -> list[tuple[torch.Tensor, str]]:
        """Every parameter that can change, in the same order on all ranks."""
        return [
            (parameter, self._parameter_names.setdefault(parameter, numbered(group_number, number)))
            for group_number, group in enumerate(self.param_groups)
            for number, parameter in enumerate(group["params"])
            if parameter.requires_grad
        ]

    @torch.no_grad()
    def _combine(self, named: list[tuple[torch.Tensor, str]]) -> None:
        """Replaces every parameter by its start and the combination of all ranks' deltas."""
        options = self._options
        by_name = {name: parameter for parameter, name in named}
        together = [[name] for name in by_name]
        if self._groups is not None:
            together = named_groups(self._groups, self._parameter_names, list(by_name))
        in_flight = []
        for names in together:
            pairs = [options.compression.compress(by_name[name] - self._starts[by_name[name]]) for name in names]
            deltas = [delta.contiguous() for delta, _ in pairs]
            if self._groups is None:
                handle = allreduce_async_(deltas[0], name=names[0], op=options.op, process_set=options.process_set)
            else:
                key = "group." + names[0]
                handle = grouped_allreduce_async_(deltas, name=key, op=options.op, process_set=options.process_set)
            in_flight.append((names, handle, [context for _, context in pairs]))
        for names, handle, contexts in in_flight:
            combined = synchronize(handle)
            deltas = [combined] if self._groups is None else combined
            for name, delta, context in zip(names, deltas, contexts, strict=True):
                parameter = by_name[name]
                torch.add(self._starts[parameter], options.compression.decompress(delta, context), out=parameter)
