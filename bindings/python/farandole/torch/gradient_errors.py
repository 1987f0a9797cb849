"""What is raised when a script does to gradients what would make the result wrong."""

from __future__ import annotations

from typing import NoReturn

from farandole.torch.gradients import Gradient


def raise_too_many_passes() -> NoReturn:
    """A gradient was accumulated while it is in flight."""
    raise AssertionError(
        "Gradients were computed more than backward_passes_per_step times before call to step(). Increase "
        "backward_passes_per_step to accumulate gradients locally. (optimizer.no_sync() accumulates, too.)"
    )


def raise_part_of_graph(gradient: Gradient) -> NoReturn:
    """A gradient is a function of other tensors."""
    raise AssertionError(
        f"The gradient of {gradient.name!r} is part of a graph itself (backward was called with create_graph=True); it "
        "cannot be reduced in place."
    )


def raise_changed(gradient: Gradient) -> NoReturn:
    """A gradient was replaced or changed while it was in flight."""
    if gradient.parameter.grad is not gradient.submitted:
        raise AssertionError(
            f"The gradient of parameter {gradient.name!r} was replaced while it was being reduced. Call "
            "optimizer.synchronize() or optimizer.step() after loss.backward(), before anything else touches the "
            "gradients."
        )
    submitted, address = gradient.submitted, gradient.address
    if submitted is not None and address is not None and submitted.data_ptr() != address:
        raise_moved(gradient)
    raise AssertionError(
        f"The gradient of parameter {gradient.name!r} was changed while it was being reduced, so the result is "
        "neither. Call optimizer.synchronize() before you clip, scale or otherwise change gradients, and then "
        "optimizer.step() within optimizer.skip_synchronize()."
    )


def raise_moved(gradient: Gradient) -> NoReturn:
    """A gradient was given other memory while it was in flight."""
    raise AssertionError(
        f"The memory of the gradient of parameter {gradient.name!r} was replaced while it was being reduced (`.data = "
        "...`, set_(), or a conversion such as Module.half() or Module.to()), so what is there now is not "
        "reduced. Call optimizer.synchronize() after loss.backward(), before anything else touches the gradients."
    )
