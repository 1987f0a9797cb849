"""The collectives as one primitive of JAX, and one custom call of XLA.

A call takes any number of arrays, of any mixture of types: a tree of a thousand gradients is one call, whose requests
the engine fuses. `Asked` says what is done with them. The primitive has rules for everything that JAX does with
functions: shapes, forward and reverse derivatives, `vmap`, and compiling, where it becomes a custom call that XLA runs
without blocking a thread (`bindings/python/src/jax`): on the processor in host memory, on a GPU in its memory. Outside
of compiled functions it is a program of its own.

**Gradients** are Horovod's: of an allreduce, the allreduce of the gradient; of allgather and broadcast, the *average*
of what the ranks say about this rank's rows, or about the root's array, with zeros elsewhere; of alltoall, the way
back; of reducescatter, the allgather, multiplied by the number of ranks for a Sum.

**Order.** Calls in a compiled program are ordered (`effects`). With `ordered=False` they are not: JAX dispatches
programs with effects from Python, at about ten microseconds for each of their arrays, and programs without from C++.
Ranks then find each other's requests by name only, so such a call needs a name of its own. `programs` has both: order,
and dispatch from C++.

**Names.** A call without a name is named after its place among the collectives of its program. So a program that one
rank compiles again keeps its names, and calls that do not match are refused by name. Two programs may use the same
names: they never run at the same time.

Not here: what users call (`reduce`, `moves`), and results whose shapes only the ranks' agreement tells (`engine`).
"""

from __future__ import annotations

import functools
import struct
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.extend.core import unsafe_am_i_under_a_jit_DO_NOT_USE as _is_compiling
from jax.interpreters import ad, batching, mlir

from farandole import _native
from farandole.basics import basics
from farandole.jax import effects, faults

__all__ = ["Asked", "call", "runs_now"]

TARGET = "farandole_collective"
"""The name under which XLA knows us."""

LINEAR = (basics.Average, basics.Sum)
"""Operations whose derivative is the operation itself."""


class Asked(NamedTuple):
    """What is done with the arrays of a call."""

    kind: str
    """allreduce, allgather, broadcast, alltoall, reducescatter or barrier."""
    group: int
    size: int
    """Ranks of the group, and this rank's place among them: results have shapes that depend on it."""
    place: int
    op: int = basics.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    ends_iteration: bool = False
    name: Optional[str] = None
    ordered: bool = True
    parameters: tuple[str, ...] = ()
    """Names of arrays behind those that are reduced: parameters, which are compared with those of the other ranks. None
    of them is differentiated."""
    is_whole_program: bool = False
    """Whether the program has nothing but this call, so that the thread which runs it may as well carry it out."""

    def named(self, suffix: str, **changes: Any) -> Asked:
        """Another call because of this one, which may be under way at the same time."""
        name = None if self.name is None else f"{self.name}.{suffix}"
        return self._replace(name=name, ends_iteration=False, parameters=(), **changes)

    def reduced(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The arrays that are not parameters."""
        return arrays[: len(arrays) - len(self.parameters)]

    def text(self, position: int) -> str:
        """For the engine's side of the call."""
        name = f"jax.call.{position}" if self.name is None else f"jax.{self.name}"
        factors = " ".join(struct.pack(">d", factor).hex() for factor in (self.prescale, self.postscale))
        ends = "iteration" if self.ends_iteration else "nothing"
        waits = "thread" if self.is_whole_program else "program"
        return f"{self.kind} {self.group} {self.op} {factors} {self.root} {ends} {waits} {name}"


collective_p = core.Primitive("farandole_collective")
collective_p.multiple_results = True


def call(asked: Asked, arrays: Sequence[Any]) -> list[Any]:
    """Carries a collective out, now or when the compiled program runs."""
    if not asked.ordered and asked.name is None:
        raise ValueError("ordered=False needs a name: ranks find each other's requests by nothing else.")
    if runs_now(arrays):
        # What `bind` would do, after two microseconds for each array.
        return _run_now(*arrays, asked=asked)
    return collective_p.bind(*arrays, asked=asked)


def runs_now(arrays: Sequence[Any]) -> bool:
    """Whether the arrays have values now, and are not part of a function that is being compiled or transformed."""
    return not _is_compiling() and not any(isinstance(array, jax.core.Tracer) for array in arrays)


@collective_p.def_impl
def _run_now(*arrays: Any, asked: Asked) -> list[Any]:
    """Outside of compiled functions: as a program of this one call, which needs no order."""
    # Compiled even where JAX is told not to: there is no other way to the engine.
    with faults.translated(), jax.disable_jit(False):
        results = list(jax.block_until_ready(_compiled(asked._replace(ordered=False, is_whole_program=True))(*arrays)))
        # On a GPU, XLA hears nothing of what went wrong.
        _native.jax_raise_late()
        return results


@functools.cache
def _compiled(asked: Asked) -> Any:
    return jax.jit(lambda *arrays: collective_p.bind(*arrays, asked=asked))


def _rows(asked: Asked, rows: int) -> int:
    """How many rows a result has, if every rank brings so many."""
    if asked.kind == "allgather":
        return rows * asked.size
    if asked.kind == "reducescatter":
        return rows // asked.size + (asked.place < rows % asked.size)
    return rows


@collective_p.def_effectful_abstract_eval
def _shapes(*avals: Any, asked: Asked) -> Any:
    def result(aval: Any) -> Any:
        shape = aval.shape
        if asked.kind in ("allgather", "reducescatter"):
            shape = (_rows(asked, shape[0]), *shape[1:])
        return aval.update(shape=shape, weak_type=False)

    return [result(aval) for aval in asked.reduced(avals)], {effects.ORDERED} if asked.ordered else set()


_positions: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
"""How many collectives each program under construction has."""


def _lower(ctx: Any, *operands: Any, asked: Asked) -> Any:
    module = ctx.module_context.module
    position = _positions.get(module, 0)
    _positions[module] = position + 1
    lower = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)
    attributes = {"collective": asked.text(position)}
    if asked.parameters:
        attributes["parameters"] = "\n".join(asked.parameters)
    if not asked.ordered:
        return lower(ctx, *operands, **attributes)
    token, aval = ctx.tokens_in.get(effects.ORDERED), effects.token_aval()
    with_token = ctx.replace(avals_in=[aval, *ctx.avals_in], avals_out=[aval, *ctx.avals_out])
    token, *results = lower(with_token, token, *operands, **attributes)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(effects.TokenSet({effects.ORDERED: token})))
    return results


def _refuse(ctx: Any, *_operands: Any, asked: Asked) -> Any:
    platforms = " and ".join(ctx.module_context.platforms)
    raise NotImplementedError(
        f"farandole.jax has collectives for processors and NVIDIA's GPUs; this program is compiled for {platforms}. "
        f"Compile what has collectives for the processor (JAX_PLATFORMS=cpu, or jax.jit under "
        f"jax.default_device(jax.devices('cpu')[0]) with arrays that lie there): {asked.kind} of "
        f"{asked.name or 'a call without a name'}."
    )


_on_device = _native.jax_device_handler()
# Tests have the processor's memory stand in for a GPU's.
jax.ffi.register_ffi_target(
    TARGET, _on_device if _native.device_stands_in() else _native.jax_handler(), platform="cpu"
)
jax.ffi.register_ffi_target(TARGET, _on_device, platform="CUDA")
# Not cached: each call has a place of its own in the program.
mlir.register_lowering(collective_p, _refuse, cacheable=False)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(collective_p, _lower, platform=_platform, cacheable=False)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, asked: Asked) -> Any:
    reduces = asked.kind in ("allreduce", "reducescatter")
    if reduces and asked.op not in LINEAR:
        raise NotImplementedError(
            f"{asked.kind} with this operation has no forward-mode derivative: only Sum and Average are linear."
        )
    results = collective_p.bind(*primals, asked=asked)
    out: list[Any] = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    given = [place for place, tangent in enumerate(asked.reduced(tangents)) if not isinstance(tangent, ad.Zero)]
    if given:
        moved = collective_p.bind(*(tangents[place] for place in given), asked=asked.named("tangent"))
        for place, tangent in zip(given, moved):
            out[place] = tangent
    return results, out


def _transpose(cotangents: Sequence[Any], *arrays: Any, asked: Asked) -> Any:
    """What the module's text says about gradients."""
    out: list[Any] = [None] * len(arrays)
    given = [place for place, cotangent in enumerate(cotangents) if not isinstance(cotangent, ad.Zero)]
    if not given:
        return out
    values = [cotangents[place] for place in given]
    if asked.kind == "allgather":
        back = asked.named("grad", kind="reducescatter", op=basics.Average)
    elif asked.kind == "reducescatter":
        factor = (asked.size if asked.op == basics.Sum else 1) * asked.prescale * asked.postscale
        values = [value if factor == 1 else value * jnp.asarray(factor, value.dtype) for value in values]
        back = asked.named("grad", kind="allgather", op=basics.Sum, prescale=1.0, postscale=1.0)
    elif asked.kind == "broadcast":
        back = asked.named("grad", kind="allreduce", op=basics.Average)
    else:
        back = asked.named("grad")
    for place, value in zip(given, collective_p.bind(*values, asked=back)):
        is_elsewhere = asked.kind == "broadcast" and _native.rank() != asked.root
        # A product, and not zeros: a second derivative must find its way to the other ranks.
        out[place] = value * 0 if is_elsewhere else value
    return out


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, asked: Asked) -> Any:
    """`vmap`: one call for the whole array. Operations on rows keep them in front."""
    if asked.op == basics.Adasum and asked.kind == "allreduce":
        raise NotImplementedError("Adasum weighs whole arrays against each other; vmap would make one of many.")
    if asked.kind in ("allreduce", "broadcast"):
        return collective_p.bind(*arrays, asked=asked), asked.reduced(dims)
    moved = [
        array if dim is None else jnp.moveaxis(array, dim, 1) for array, dim in zip(arrays, dims)
    ]
    behind = [dim if dim is None else 1 for dim in dims]
    return collective_p.bind(*moved, asked=asked), behind


ad.primitive_jvps[collective_p] = _jvp
ad.primitive_transposes[collective_p] = _transpose
batching.primitive_batchers[collective_p] = _batch
