"""`jit`: compiled functions whose collectives are in order, and which JAX still dispatches from C++.

JAX dispatches programs with effects from Python, at about ten microseconds for each of their arrays, and programs
without from C++. The order that our effect keeps is one *inside* of a program (`effects`), so a program need not show
it: `jit` traces the function and binds it as one primitive without effects. Compiled, that is the same program with a
token which begins and ends inside of it. XLA removes none of its collectives: they have side effects there.

**Invariant.** Only what is called from outside of all transformations is bound so. Inside of another function that is
being compiled or transformed, `jit` is `jax.jit`: collectives of the inner function take their places among those of
the outer one, and the primitive needs no rules for derivatives or `vmap`. It never meets them.

Functions with other effects (prints, callbacks, references) keep all their effects, and functions without results keep
ours: nobody would hear of their errors otherwise. Both are dispatched from Python, as by `jax.jit`.

Not here: what JAX's effects are made of (`effects`), and the collectives (`primitive`).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Optional

import jax
from jax.extend import core
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

from farandole.jax import effects
from farandole.jax.primitive import runs_now

__all__ = ["jit"]

program_p = core.Primitive("farandole_program")
program_p.multiple_results = True


@program_p.def_abstract_eval
def _shapes(*_avals: Any, jaxpr: core.ClosedJaxpr) -> Any:
    return jaxpr.out_avals


def _lower(ctx: Any, *operands: Any, jaxpr: core.ClosedJaxpr) -> Any:
    """A call of the function with a token of its own; what it makes of the token nobody needs."""
    with_token = ctx.replace(tokens_in=effects.TokenSet.create([effects.ORDERED]), tokens_out=None)
    return mlir.core_call_lowering(with_token, *operands, name=program_p.name, call_jaxpr=jaxpr)


def _without_unused(used_results: list[bool], eqn: Any) -> tuple[list[bool], Any]:
    """Leaves out what the function does not use, so that JAX does not hand it to the program."""
    closed = eqn.params["jaxpr"]
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, used_results)
    smaller = eqn.replace(
        invars=[var for var, is_used in zip(eqn.invars, used) if is_used],
        outvars=[var for var, is_used in zip(eqn.outvars, used_results) if is_used],
        params={"jaxpr": core.ClosedJaxpr(jaxpr, closed.consts)},
    )
    return used, smaller


# Not cached: the places of collectives in the program are counted.
mlir.register_lowering(program_p, _lower, cacheable=False)
pe.dce_rules[program_p] = _without_unused


def _is_traced(argument: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(argument))


def _as_program(fun: Callable[..., Any]) -> Callable[..., Any]:
    """For `jax.jit`: the function as one primitive, where that is possible."""

    @functools.wraps(fun)
    def program(*args: Any, **kwargs: Any) -> Any:
        if runs_now(jax.tree.leaves((args, kwargs))):
            # JAX was told not to compile, or looks for where a NaN comes from.
            return fun(*args, **kwargs)
        # All but static arguments.
        by_place = {place: value for place, value in enumerate(args) if _is_traced(value)}
        by_name = {name: value for name, value in kwargs.items() if _is_traced(value)}

        def with_static(by_place: dict[int, Any], by_name: dict[str, Any]) -> Any:
            return fun(*(by_place.get(place, value) for place, value in enumerate(args)), **{**kwargs, **by_name})

        jaxpr, shapes = jax.make_jaxpr(with_static, return_shape=True)(by_place, by_name)
        operands = jax.tree.leaves((by_place, by_name))
        if jaxpr.effects == {effects.ORDERED} and jaxpr.out_avals:
            results = program_p.bind(*operands, jaxpr=jaxpr)
        else:
            results = core.jaxpr_as_fun(jaxpr)(*operands)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return program


class Jitted:
    """What `jit` returns: two compiled functions, one for calls from outside of all transformations, one for others."""

    # JAX copies a function's attributes to what it makes of it, so those of its own methods must be the class's.
    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fun)
        self._outermost: Any = jax.jit(_as_program(fun), **options)
        self._inside: Any = jax.jit(fun, **options)

    def _chosen(self) -> Any:
        return self._inside if effects.is_tracing() else self._outermost

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._chosen()(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Functions of a class become methods."""
        return self if instance is None else types.MethodType(self, instance)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self._chosen().trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self._chosen().lower(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self._chosen().eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        self._outermost.clear_cache()
        self._inside.clear_cache()


def jit(fun: Optional[Callable[..., Any]] = None, /, **options: Any) -> Any:
    """As `jax.jit`, for functions with collectives: these keep the order of the program, and programs of many arrays
    are dispatched in a fraction of the time.

    fun: the function. Wrap it once: what was compiled belongs to the wrapper. Without, a decorator is returned.
    options: those of `jax.jit` (`static_argnums`, `donate_argnums`, …).

    What is returned has `lower`, `trace`, `eval_shape` and `clear_cache`, as JAX's has.
    """
    return functools.partial(jit, **options) if fun is None else Jitted(fun, options)
