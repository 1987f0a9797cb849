"""What can only be seen on a machine with a GPU: JAX's arrays in device memory, inside and outside of `jit`.

    farandole run -np 2 python bindings/python/tests/gpu/check_jax.py

The ranks may share one GPU; XLA_PYTHON_CLIENT_PREALLOCATE=false lets them. Not a part of the test command, which runs
on machines without one; there host memory stands in for a device's (`tests/single/test_device_memory.py`). Without a
GPU this program fails. Rank 0 prints one line for each check.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

import farandole.jax as hvd
from farandole import _native

TYPES = [jnp.uint8, jnp.int8, jnp.int16, jnp.int32, jnp.float16, jnp.bfloat16, jnp.float32]


def mine(shape: tuple[int, ...], dtype: object = jnp.float32, rank: int | None = None) -> jax.Array:
    """This rank's array, or that of another."""
    rank = hvd.rank() if rank is None else rank
    return (jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(shape) % 5 + rank).astype(dtype)


def total(shape: tuple[int, ...], dtype: object = jnp.float32) -> np.ndarray:
    """The sum over all ranks."""
    return sum(np.asarray(mine(shape, dtype, rank), np.float64) for rank in range(hvd.size()))


def on_gpu(array: jax.Array) -> None:
    assert _native.device_stands_in() or all(device.platform == "gpu" for device in array.devices()), array.devices()


def eager() -> None:
    for dtype in TYPES:
        for shape in ((), (17,), (5, 4, 3)):
            summed = hvd.allreduce(mine(shape, dtype), op=hvd.Sum)
            on_gpu(summed)
            np.testing.assert_array_equal(np.asarray(summed, np.float64), total(shape, dtype))


def moves() -> None:
    size, rank = hvd.size(), hvd.rank()
    gathered = hvd.allgather(mine((rank + 1, 2)))
    on_gpu(gathered)
    np.testing.assert_array_equal(gathered, np.concatenate([mine((peer + 1, 2), rank=peer) for peer in range(size)]))
    np.testing.assert_array_equal(hvd.broadcast(mine((6,)), size - 1), mine((6,), rank=size - 1))
    program = jax.jit(lambda array: (hvd.allgather(array), hvd.reducescatter(array, op=hvd.Sum), hvd.alltoall(array)))
    rows = 2 * size
    gathered, scattered, exchanged = program(mine((rows, 3)))
    np.testing.assert_array_equal(gathered, np.concatenate([mine((rows, 3), rank=peer) for peer in range(size)]))
    np.testing.assert_array_equal(scattered, total((rows, 3))[2 * rank : 2 * rank + 2])
    parts = [np.asarray(mine((rows, 3), rank=peer))[2 * rank : 2 * rank + 2] for peer in range(size)]
    np.testing.assert_array_equal(exchanged, np.concatenate(parts))


def tree() -> None:
    """A tree is one call, in jax.jit and hvd.jit, and repeats."""
    arrays = [mine((index + 1, 3)) for index in range(40)]
    for jit in (jax.jit, hvd.jit):
        program = jit(lambda tree: hvd.allreduce(jax.tree.map(lambda leaf: leaf * 2, tree), op=hvd.Sum))
        for _ in range(5):
            for index, summed in enumerate(program(arrays)):
                np.testing.assert_array_equal(summed, 2 * total((index + 1, 3)))


def order() -> None:
    """Work before and behind a collective, in one program: nothing is read too early."""

    @jax.jit
    def program(array: jax.Array) -> jax.Array:
        for _ in range(4):
            array = jnp.tanh(array @ array) * 0 + hvd.psum(jnp.ones_like(array))
        return array

    for _ in range(3):
        assert bool((program(jnp.ones((1024, 1024))) == hvd.size()).all())


def gradients() -> None:
    gradient = jax.jit(jax.grad(lambda array: hvd.psum(array**2).sum()))(mine((4,)))
    np.testing.assert_allclose(gradient, 2 * np.asarray(mine((4,))) * hvd.size())


def adasum() -> None:
    """What the ranks do not work on there goes through host memory."""
    array = jnp.ones(5)
    np.testing.assert_allclose(jax.jit(lambda array: hvd.allreduce(array, op=hvd.Adasum))(array), array, rtol=1e-6)


def refusals() -> None:
    for program in (lambda array: hvd.allreduce(array, name="refused"), jax.jit(lambda a: hvd.psum(a[:-1]))):
        try:
            jax.block_until_ready(program(jnp.ones(20 + hvd.rank())))
            _native.jax_raise_late()
        except (hvd.HorovodInternalError, jax.errors.JaxRuntimeError) as error:
            assert "Mismatched" in str(error), error
        else:
            raise AssertionError("arrays of different shapes were reduced")


def ahead() -> None:
    """A program that has gone well is dispatched while the device computes, if the host may run ahead."""
    if not _native.runs_ahead():
        return

    @jax.jit
    def program(array: jax.Array) -> jax.Array:
        for _ in range(40):
            array = jnp.tanh(array @ array)
        return hvd.allreduce(array * 0 + 1, name="ahead", op=hvd.Sum)

    array = jnp.ones((4096, 4096))
    jax.block_until_ready(program(array))
    jax.block_until_ready(program(array))
    begun = time.perf_counter()
    result = program(array)
    dispatched = time.perf_counter() - begun
    assert bool((result == hvd.size()).all())
    whole = time.perf_counter() - begun
    assert dispatched < whole / 2, (dispatched, whole)


def training() -> None:
    weights = hvd.broadcast(jnp.ones(8) * (hvd.rank() + 1), 0)
    step = hvd.jit(lambda w, x: w - 0.1 * hvd.allreduce(jax.grad(lambda w: ((w * x) ** 2).sum())(w)))
    for index in range(20):
        weights = step(weights, mine((8,)) / (index + 1))
    everybodys = hvd.allgather(weights.reshape(1, -1))
    assert all(bool((other == weights).all()) for other in everybodys)


CHECKS: list[Callable[[], None]] = [
    eager,
    moves,
    tree,
    order,
    gradients,
    adasum,
    ahead,
    training,
    # Last: JAX hands the error of a program to whatever comes next in the order of effects.
    refusals,
]


def main() -> None:
    hvd.init()
    assert jax.default_backend() == "gpu" or _native.device_stands_in(), jax.default_backend()
    if hvd.rank() == 0:
        print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}, {hvd.size()} ranks", flush=True)
    for check in CHECKS:
        begun = time.perf_counter()
        check()
        if hvd.rank() == 0:
            print(f"ok {check.__name__} ({time.perf_counter() - begun:.1f} s)", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
