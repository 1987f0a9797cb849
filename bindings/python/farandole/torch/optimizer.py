"""`DistributedOptimizer`: the user's optimizer, with gradients that are those of all ranks.

Owns what scripts see of it. The user's optimizer becomes an object of a class that inherits from its own, with the same
state and the same parameter groups, so that schedulers, scalers and checkpoints treat it as what it was. Gradients
leave during backward (`outbox`) and are back when `synchronize` returns, which `step` calls.

Invariant: whenever the user's own `step` runs, all gradients are reduced, on all ranks alike, except within
`skip_synchronize`.

Differences from Horovod, all of them where scripts got wrong results or errors:

- `step` after `synchronize` warns, as there, but does not reduce a second time.
- `step(closure)` reduces what the closure has computed.
- `GradScaler` needs no recipe: it finds reduced gradients (`grad_scaler`).
- Gradients that are changed or replaced on their way are an error instead of garbage.
- Parameters may be added, frozen and unfrozen at any time.
- `zero_grad` may be called after a few passes of several: nothing has left yet.

Not here: Adasum, which combines what optimizers did and not what they were given (`delta_optimizer`).
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from farandole.torch import grad_scaler, phases
from farandole.torch.compression import Compression
from farandole.torch.delta_optimizer import DeltaOptimizer
from farandole.torch.functions import broadcast_object
from farandole.torch.grouping import Groups, check_groups, named_groups
from farandole.torch.mpi_ops import Adasum, Average, ProcessSet, global_process_set, rocm_built, size
from farandole.torch.outbox import Outbox, Terms
from farandole.torch.parameter_names import name_parameters, numbered
from farandole.torch.wrapping import as_subclass


class _DistributedOptimizer:
    """What is put in front of the user's optimizer class."""

    param_groups: list[dict[str, Any]]

    # Fused optimizers would have a scaler look at gradients before `step`; this way it asks for them by `unscale_`.
    _step_supports_amp_scaling = False

    def _begin(
        self, named_parameters: Iterable[tuple[str, torch.Tensor]] | None, terms: Terms, passes: int, groups: Groups
    ) -> None:
        """Takes the place of a constructor: the optimizer exists already."""
        self._parameter_names = name_parameters(self.param_groups, named_parameters)
        check_groups(groups)
        self._outbox = Outbox(terms, passes)
        self._should_synchronize = True
        self._warn_when_synchronized = True
        self._frozen: dict[torch.Tensor, str] = {}
        self._active = terms.process_set.included() and (size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1")
        if self._active:
            # Hooks go with the optimizer, so that another one can be made for the same parameters.
            weakref.finalize(self, self._outbox.detach)
            self._adopt_all()
            if groups is not None:
                self._form_groups(groups)
            grad_scaler.respect_travelling_gradients()
        # Also of a rank that is alone: it is what larger jobs are compared with.
        phases.watch()

    # Parameters

    def _adopt_all(self) -> None:
        for group_number, group in enumerate(self.param_groups):
            for number, parameter in enumerate(group["params"]):
                name = self._parameter_names.setdefault(parameter, numbered(group_number, number))
                self._adopt(parameter, name)

    def _adopt(self, parameter: torch.Tensor, name: str) -> None:
        if parameter.requires_grad:
            self._outbox.adopt(parameter, name)
        else:
            self._frozen[parameter] = name

    def _adopt_unfrozen(self) -> None:
        """Takes care of parameters that did not require gradients so far."""
        for parameter in [parameter for parameter in self._frozen if parameter.requires_grad]:
            self._outbox.adopt(parameter, self._frozen.pop(parameter))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, as torch does; all ranks must add them. Without a name from `named_parameters` they are
        numbered."""
        super().add_param_group(param_group)  # type: ignore[misc]
        group_number = len(self.param_groups) - 1
        for number, parameter in enumerate(self.param_groups[-1]["params"]):
            name = self._parameter_names.setdefault(parameter, numbered(group_number, number))
            if self._active:
                self._adopt(parameter, name)

    def _form_groups(self, groups: Groups) -> None:
        """Puts gradients into the user's groups, in the order that the first rank has them in."""
        process_set = self._outbox.terms.process_set
        by_name = self._outbox.by_name()
        first = process_set.ranks[0] if process_set.ranks else 0
        order = broadcast_object(list(by_name), first, name="DistributedOptimizer.groups", process_set=process_set)
        if set(order) != set(by_name):
            raise ValueError(
                "groups need the same parameters on all ranks; these are not everywhere: "
                + ", ".join(sorted(set(order) ^ set(by_name)))
            )
        for names in named_groups(groups, self._parameter_names, order):
            self._outbox.group([by_name[name] for name in names], key="group." + names[0])

    # What scripts call

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. Gradients that backward did not bring count as zeros, so that ranks
        may take different branches. Does nothing if nothing has changed since the last call."""
        self._warn_when_synchronized = True
        self._deliver()

    def _deliver(self) -> None:
        outbox = self._outbox
        if not self._active:
            outbox.delivered = True
            return
        if self._frozen:
            self._adopt_unfrozen()
        if not self.synchronized:
            outbox.deliver()

    def _deliver_for_scaler(self) -> None:
        """Delivers on behalf of a scaler, of which the script knows nothing; so `step` has nothing to warn of."""
        if not self.synchronized:
            self._warn_when_synchronized = False
            self._deliver()

    @property
    def synchronized(self) -> bool:
        """Whether all gradients are reduced and backward has brought no others since."""
        return self._outbox.delivered and not self._outbox.begun

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, `step` takes gradients as they are::

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward accumulates gradients on this rank and sends none. The first backward after it, or
        `step`, sends the sum."""
        before, self._outbox.held = self._outbox.held, True
        try:
            yield
        finally:
            self._outbox.held = before

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces what is not reduced yet, then has the user's optimizer make its step."""
        phases.step_begins()
        try:
            return self._step(closure)
        finally:
            phases.step_ends(self)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if not self._should_synchronize:
            self._outbox.delivered = False
            return super().step(closure)  # type: ignore[misc]
        if closure is not None:
            if self._outbox.begun:
                self._deliver()
            return super().step(self._reducing(closure))  # type: ignore[misc]
        if not self.synchronized:
            self._deliver()
        elif self._warn_when_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
                "if you use optimizer.synchronize() in your code.",
                stacklevel=3,
            )
        self._outbox.delivered = False
        return super().step()  # type: ignore[misc]

    # torch wraps the `step` of a class once, to run users' hooks around it. The user's class is wrapped already, and
    # hooks that ran around ours as well would run twice.
    step.hooked = True  # type: ignore[attr-defined]

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, followed by the reduction of its gradients."""

        def reduced() -> Any:
            loss = closure()
            self._deliver()
            self._outbox.delivered = False
            return loss

        return reduced

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears all gradients, as torch does. Refused while they travel."""
        if self._outbox.busy:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        if self._outbox.begun:
            self._outbox.forget()
        super().zero_grad(set_to_none=set_to_none)  # type: ignore[misc]
        phases.gradients_cleared()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on a gradient leaves after so many backward passes."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._outbox.set_passes(passes)

    @property
    def backward_passes_per_step(self) -> int:
        """After how many backward passes a gradient leaves."""
        return self._outbox.passes

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state, as torch does, and forgets gradients that are on their way."""
        self._outbox.forget()
        super().load_state_dict(state_dict)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802 -- the name that scripts use
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wraps an optimizer so that every rank steps with the gradients of all.

    Gradients are reduced while backward still computes others; `step` waits for the last ones. Between backward and
    step they may or may not be reduced yet: call `synchronize` before looking at them or changing them (see
    `skip_synchronize`).

    Arguments:
        optimizer: any optimizer of torch. The result is an instance of its class, with its state.
        named_parameters: names of the parameters, usually `model.named_parameters()`; they must be the same on all
            ranks. Without them parameters are numbered.
        compression: how gradients travel: `Compression.none`, `.fp16`, `.bf16` or your own.
        backward_passes_per_step: gradients are accumulated over so many backward passes. Fewer before `step` are
            fine, more are an error. See also `no_sync`.
        op: `Average`, `Sum`, or another reduction. With `Adasum`, ranks step on their own and their steps are combined.
        gradient_predivide_factor: with `Average`, divide by this before adding and multiply by it afterwards.
        num_groups: the old name of an integer in `groups`.
        groups: reduce gradients in groups that are complete before they leave: how many, or lists of parameters; those
            in no list are on their own. With `Adasum`, the steps of a group's parameters are combined together. Sparse
            gradients cannot be in a group unless `sparse_as_dense` is set; they are reduced on their own, with a
            warning.
        sparse_as_dense: reduce sparse gradients as dense ones, and make them sparse again.
        process_set: reduce over these ranks only. Other ranks step on their own.
    """
    if gradient_predivide_factor != 1.0:
        if rocm_built():
            raise ValueError("gradient_predivide_factor not supported yet with ROCm")
        if op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = num_groups if groups is None else groups
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    terms = Terms(
        op=op,
        prescale=1.0 / gradient_predivide_factor,
        postscale=gradient_predivide_factor,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    if op == Adasum and size() > 1:
        delta = as_subclass(optimizer, DeltaOptimizer, __name__)
        delta._begin(named_parameters, terms, backward_passes_per_step, groups)
        return delta
    wrapped = as_subclass(optimizer, _DistributedOptimizer, __name__)
    wrapped._begin(named_parameters, terms, backward_passes_per_step, groups)
    return wrapped
