"""The optimizer that `DistributedOptimizer` returns: the user's own, with gradients that are those of all ranks.

The user's optimizer becomes an object of a class that inherits from its own, with the same state and the same parameter
groups, so that schedulers, scalers and checkpoints treat it as what it was. Gradients are submitted during backward
(`gradient_queue`) and are reduced when `synchronize` returns, which `step` calls.

Invariant: whenever the user's own `step` runs, all gradients are reduced, on all ranks alike, except within
`skip_synchronize`.

Differences from Horovod, where scripts got wrong results or errors:

- `step` after `synchronize` warns, as there, but does not reduce a second time.
- `step(closure)` reduces what the closure has computed.
- `GradScaler` needs no recipe: it finds reduced gradients (`grad_scaler`).
- Gradients that are changed or replaced while they are reduced are an error instead of garbage.
- Parameters may be added, frozen and unfrozen at any time.
- `zero_grad` may be called after a few passes of several: nothing has been submitted yet.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from farandole.elastic import native as elastic
from farandole.torch import grad_scaler, phases, run_ahead
from farandole.torch.gradient_queue import GradientQueue
from farandole.torch.grouping import Groups
from farandole.torch.mpi_ops import global_process_set, size
from farandole.torch.parameter_pieces import OptimizerCheck
from farandole.torch.parameter_registry import ParameterRegistry
from farandole.torch.reduce_options import ReduceOptions, check_passes


class _DistributedOptimizer:
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
        self._gradient_queue = GradientQueue(options, passes)
        self._parameter_registry = ParameterRegistry(self._gradient_queue, self.param_groups, named_parameters)
        self._parameter_check = OptimizerCheck()
        self._should_synchronize = True
        self._warn_when_synchronized = True
        # A process that joins its job later has no rank yet, and will be in the set of all.
        is_included = options.process_set is global_process_set or options.process_set.included()
        self._active = is_included and (elastic.enabled() or size() > 1)
        if self._active:
            # Hooks go with the optimizer, so that another one can be made for the same parameters.
            weakref.finalize(self, self._gradient_queue.remove_hooks)
            for number, group in enumerate(self.param_groups):
                self._parameter_registry.register(number, group["params"])
            if groups is not None:
                self._parameter_registry.form_groups(groups)
            grad_scaler.synchronize_before_unscale()
            # A scaler would look at the gradients of a fused optimizer before `step`, while they are in flight, and
            # write them; this way it asks for them by `unscale_`. torch says so in the object, so a field of our class
            # would not count.
            self._step_supports_amp_scaling = False
        # Also of a rank that is alone: it is what larger jobs are compared with.
        phases.watch()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, as torch does; all ranks must add them. Without a name from `named_parameters` they are
        numbered."""
        super().add_param_group(param_group)  # type: ignore[misc]
        if self._active:
            self._parameter_registry.register(len(self.param_groups) - 1, self.param_groups[-1]["params"])

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. Gradients that backward did not compute count as zeros, so that ranks
        may take different branches. Does nothing if nothing has changed since the last call.

        Gradients on a GPU are reduced for whatever comes into the current stream; where the host may run ahead, it
        waits only until they are queued (`farandole.torch.run_ahead`)."""
        self._warn_when_synchronized = True
        self._reduce_all()

    def _reduce_all(self) -> None:
        if not self._active:
            self._gradient_queue.reduced = True
            return
        if self._parameter_registry.frozen:
            self._parameter_registry.register_unfrozen()
        if not self.synchronized:
            if self._gradient_queue.reduces_any:
                # Here all ranks wait for each other anyway, and no parameter has changed yet.
                group = self._gradient_queue.options.group()
                self._parameter_check.step_begins(group, lambda: self._parameter_registry.compared(self.param_groups))
            self._gradient_queue.synchronize()

    def _synchronize_for_scaler(self) -> None:
        """As `synchronize`, on behalf of a scaler: the script knows nothing of it, so `step` has nothing to warn of."""
        if not self.synchronized:
            self._warn_when_synchronized = False
            self._reduce_all()

    @property
    def synchronized(self) -> bool:
        """Whether all gradients are reduced and backward has computed no others since."""
        return self._gradient_queue.reduced and not self._gradient_queue.has_new

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
        """Within it, backward accumulates gradients on this rank and submits none. The first backward after it, or
        `step`, submits the sum."""
        before, self._gradient_queue.no_sync = self._gradient_queue.no_sync, True
        try:
            yield
        finally:
            self._gradient_queue.no_sync = before

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces what is not reduced yet, then has the user's optimizer make its step."""
        phases.step_begins()
        try:
            return self._step(closure)
        finally:
            phases.step_ends(self)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        if not self._should_synchronize:
            self._gradient_queue.reduced = False
            return super().step(closure)  # type: ignore[misc]
        if closure is not None:
            if self._gradient_queue.has_new:
                self._reduce_all()
            return super().step(self._reducing(closure))  # type: ignore[misc]
        if not self.synchronized:
            self._reduce_all()
        elif self._warn_when_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
                "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
                "if you use optimizer.synchronize() in your code.",
                stacklevel=3,
            )
        self._gradient_queue.reduced = False
        return super().step()  # type: ignore[misc]

    # torch wraps the `step` of a class once, to run users' hooks around it. The user's class is wrapped already, and
    # hooks that ran around ours as well would run twice.
    step.hooked = True  # type: ignore[attr-defined]

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, followed by the reduction of its gradients."""

        def reduced() -> Any:
            loss = closure()
            self._reduce_all()
            self._gradient_queue.reduced = False
            return loss

        return reduced

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears all gradients, as torch does. Refused while they are in flight."""
        if self._gradient_queue.busy:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        if self._gradient_queue.has_new:
            self._gradient_queue.reset()
        # Before new gradients need the memory of the old.
        run_ahead.sweep()
        super().zero_grad(set_to_none=set_to_none)  # type: ignore[misc]
        phases.forward_begins()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on a gradient is ready after so many backward passes."""
        check_passes(passes)
        self._gradient_queue.set_passes(passes)

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The name of each parameter. Scripts read it, and Horovod's tests: it has this name there."""
        return self._parameter_registry.names

    @property
    def backward_passes_per_step(self) -> int:
        """After how many backward passes a gradient is ready."""
        return self._gradient_queue.passes

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state, as torch does, and forgets gradients that are in flight."""
        self._gradient_queue.reset()
        super().load_state_dict(state_dict)  # type: ignore[misc]
