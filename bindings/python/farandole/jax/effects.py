"""Keeping the collectives of a compiled program in order: `ORDERED`, an effect of JAX.

JAX threads a token through all calls of a program that have an *ordered* effect, in the order of the program: through
functions that it calls, loops and branches. XLA cannot reorder what depends on each other, so ranks that run the same
program ask for the same collectives in the same order.

Across programs nothing is needed: XLA's CPU client runs the programs that one thread dispatches one after the other.

Owns the only use of JAX's internals (`jax._src`); JAX has no public way to define an effect, or to ask whether a
function is being transformed. A version of JAX that has moved them is refused on import, with both versions named.
"""

from __future__ import annotations

import jax
from jax.extend import core

__all__ = ["ORDERED", "CollectiveEffect", "TokenSet", "forget_tokens", "is_tracing", "token_aval"]

try:
    from jax._src import effects as _effects
    from jax._src.core import abstract_token as _abstract_token
    from jax._src.core import trace_state_clean as _is_outermost
    from jax._src.dispatch import runtime_tokens as _runtime_tokens
    from jax.interpreters.mlir import TokenSet as TokenSet

    _KINDS = (
        _effects.ordered_effects,
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
    )
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"farandole.jax was written for JAX 0.10 and 0.11; JAX {jax.__version__} has its effects elsewhere ({error})."
    ) from error


class CollectiveEffect(core.Effect):  # type: ignore[misc]
    """A collective takes place."""

    def __str__(self) -> str:
        return "Collective"


# The last three: collectives may stand in loops and branches, may be computed again in the backward pass, and have
# gradients.
for _kind in _KINDS:
    _kind.add_type(CollectiveEffect)

ORDERED = CollectiveEffect()


def token_aval() -> object:
    """What a token is to rules that lower calls."""
    return _abstract_token


def forget_tokens() -> None:
    """Programs that this thread has dispatched are not waited for any more."""
    _runtime_tokens.clear()


def is_tracing() -> bool:
    """Whether this thread is inside of a function that JAX compiles or transforms (`jit`, `grad`, `vmap`, …)."""
    return not _is_outermost()
