"""Marks the steps of optimizers that are torch's own: phases and iterations of scripts without `DistributedOptimizer`.

A script that reduces its gradients through a process group of ours, or through our hook of DistributedDataParallel,
makes its steps with optimizers of its own choice. torch calls global hooks around each of these steps, and `watch` has
it call ours. The rest is `phases`.

A closure, which computes the loss inside of `step` (LBFGS, and every optimizer under Lightning), is no part of the
step: it is forward and backward, as it would be without a closure.

Invariant: a mark never changes what PyTorch does and never raises. torch calls no hook after a step that has raised;
the next step of that optimizer, or of any around it, finds the mark and ends it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.optim import optimizer as of_torch

from farandole import phase_tracker
from farandole.torch import phases

__all__ = ["watch"]

_begun: list[torch.optim.Optimizer] = []
"""Optimizers whose step is under way on the thread that trains, outermost first."""

_is_watched = False


def watch() -> None:
    """Begins to mark what this thread does, with the steps of every optimizer. Calling it again only changes the
    thread."""
    global _is_watched
    if not phase_tracker.is_wanted():
        return
    phases.watch()
    if _is_watched:
        return
    _is_watched = True
    of_torch.register_optimizer_step_pre_hook(_step_begins)
    of_torch.register_optimizer_step_post_hook(_step_ends)
    phase_tracker.replace(torch.optim.Optimizer, "zero_grad", lambda clear: _followed_by(clear, phases.forward_begins))
    parallel = torch.nn.parallel.DistributedDataParallel
    phase_tracker.replace(parallel, "forward", lambda forward: _preceded_by(phases.forward_begins, forward))


def _step_begins(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[Any, Any]
) -> Optional[tuple[tuple[Any, ...], dict[str, Any]]]:
    """args: with the optimizer itself, as torch gives them."""
    if not phases.on_training_thread():
        return None
    if any(other is optimizer for other in _begun):
        _end_until(optimizer)
    phases.step_begins()
    _begun.append(optimizer)
    if len(args) > 1 and callable(args[1]):
        return (args[0], phases.outside_of_step(args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": phases.outside_of_step(kwargs["closure"])}
    return None


def _step_ends(optimizer: torch.optim.Optimizer, _args: tuple[Any, ...], _kwargs: dict[Any, Any]) -> None:
    if phases.on_training_thread() and any(other is optimizer for other in _begun):
        _end_until(optimizer)


def _end_until(optimizer: torch.optim.Optimizer) -> None:
    """Ends the marks of this step, and of all inside of it."""
    while True:
        last = _begun.pop()
        phases.step_ends(last)
        if last is optimizer:
            return


def _followed_by(function: Callable[..., Any], mark: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        mark()
        return result

    return marked


def _preceded_by(mark: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        mark()
        return function(*args, **kwargs)

    return marked
