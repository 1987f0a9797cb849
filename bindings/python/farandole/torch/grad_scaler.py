"""torch's gradient scaler beside gradients in flight.

Owns one change to `torch.amp.GradScaler`: before it looks at the gradients of a distributed optimizer, these are
reduced. A scaler multiplies gradients in place and decides by what it finds whether to step at all. Doing so while
they are in flight would ruin them, and ranks that decide differently would wait for each other for ever. In reduced
gradients all ranks find the same. Where gradients are not reduced (Adasum), the ranks agree on what they have found.

With it, ``scaler.step(optimizer); scaler.update()`` is all that a script needs; the recipe with `synchronize` and
`skip_synchronize` works as before. Other optimizers and scalers that are switched off notice nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def synchronize_before_unscale() -> None:
    """Makes scalers wait for gradients. Calling it again does nothing."""
    original = torch.amp.GradScaler.unscale_
    if getattr(original, "waits_for_gradients", False):
        return

    @functools.wraps(original)
    def unscale_(scaler: Any, optimizer: Any) -> None:
        synchronize = getattr(optimizer, "_synchronize_for_scaler", None)
        if synchronize is not None and scaler.is_enabled():
            synchronize()
        original(scaler, optimizer)
        agree = getattr(optimizer, "_agree_on_overflow", None)
        if agree is not None and scaler.is_enabled():
            agree(scaler._found_inf_per_device(optimizer).values())

    unscale_.waits_for_gradients = True  # type: ignore[attr-defined]
    torch.amp.GradScaler.unscale_ = unscale_  # type: ignore[method-assign, assignment]
