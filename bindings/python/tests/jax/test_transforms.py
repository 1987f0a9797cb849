"""What JAX does with functions that have collectives in them: gradients, `vmap`, loops, branches, order."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import WAYS, contributions, mine, same
from jax import lax
from jax.experimental import io_callback

import farandole.jax as hvd

pytestmark = pytest.mark.usefixtures("job")


def total(seed=0):
    """The sum of the vectors that the ranks have."""
    return np.asarray(sum(contributions(hvd.global_process_set, (4,), seed=seed)))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_horovods(way):
    size, rank = hvd.size(), hvd.rank()
    weights = jnp.arange(4.0, dtype=jnp.float32) + rank
    # The gradient that every rank has is its weights; ranks' sums of these:
    added = np.asarray(sum(jnp.arange(4.0, dtype=jnp.float32) + other for other in range(size)))
    grad = lambda function: WAYS[way](jax.grad(lambda array: (function(array) * weights).sum()))(mine((4,)))
    same(grad(lambda array: hvd.allreduce(array, op=hvd.Sum)), added)
    same(grad(lambda array: hvd.allreduce(array, prescale_factor=2.0)), 2 * added / size)
    same(grad(lambda array: hvd.broadcast(array, 1)), added / size if rank == 1 else np.zeros(4, np.float32))
    wide = jnp.arange(4.0 * size, dtype=jnp.float32) * (rank + 1)
    gathered = WAYS[way](jax.grad(lambda array: (hvd.all_gather(array, tiled=True) * wide).sum()))(mine((4,)))
    everybody = np.arange(4.0 * size, dtype=np.float32)[4 * rank : 4 * rank + 4]
    same(gathered, everybody * np.float32(sum(range(1, size + 1)) / size))


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_reducescatter_and_alltoall_find_their_way_back(way):
    size, rank = hvd.size(), hvd.rank()
    rows = mine((2 * size,))
    mine_weighs = jnp.arange(2.0, dtype=jnp.float32) + 10 * rank
    every = np.concatenate([np.arange(2, dtype=np.float32) + 10 * other for other in range(size)])
    for op, factor in [(hvd.Sum, size), (hvd.Average, 1)]:
        scatter = jax.grad(lambda array: (hvd.reducescatter(array, op=op) * mine_weighs).sum())
        same(WAYS[way](scatter)(rows), every * factor)
    weights = jnp.arange(2.0 * size, dtype=jnp.float32) + 100 * rank
    exchanged = WAYS[way](jax.grad(lambda array: (hvd.all_to_all(array, 0, 0, tiled=True) * weights).sum()))(rows)
    wanted = [np.arange(2) + 2 * rank + 100 * other for other in range(size)]
    same(exchanged, np.concatenate(wanted).astype("float32"))


def test_operations_that_are_not_linear_have_the_same_operation_as_their_gradient():
    grad = jax.jit(jax.grad(lambda array: (hvd.pmax(array) * (hvd.rank() + 1)).sum()))
    same(grad(mine((4,))), np.full(4, hvd.size(), np.float32))


def test_forward_mode_and_second_derivatives():
    value, tangent = jax.jit(lambda array: jax.jvp(hvd.psum, (array,), (array * 2,)))(mine((4,)))
    same((value, tangent), (total(), 2 * total()))
    hessian = jax.hessian(lambda array: (hvd.allreduce(array, op=hvd.Average) ** 2).sum())(mine((4,)))
    np.testing.assert_allclose(hessian, 2 * np.eye(4), rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_vmap_is_one_call_for_the_whole_array(way):
    array = mine((3, 4))
    everybody = np.asarray(sum(contributions(hvd.global_process_set, (3, 4))))
    same(WAYS[way](jax.vmap(hvd.psum))(array), everybody)
    same(WAYS[way](jax.vmap(hvd.psum, in_axes=1, out_axes=1))(array), everybody)
    arrays = [np.asarray(other) for other in contributions(hvd.global_process_set, (3, 4))]
    same(WAYS[way](jax.vmap(hvd.allgather))(array), np.concatenate(arrays, 1))
    program = jax.jit(jax.vmap(hvd.psum)).lower(array).as_text()
    assert program.count("custom_call @farandole_collective") == 1
    with pytest.raises(NotImplementedError, match="Adasum weighs whole arrays"):
        jax.vmap(lambda array: hvd.allreduce(array, op=hvd.Adasum))(array)


def test_loops_and_branches_in_compiled_functions():
    size = hvd.size()

    @jax.jit
    def program(array):
        ones = jnp.ones((3, 4), jnp.float32)
        carried, every = lax.scan(lambda sums, x: (hvd.pmean(sums) + x, hvd.psum(x)), array, ones)
        turned = lax.fori_loop(0, 4, lambda _, value: hvd.pmean(value) + 1, array)
        while_ = lax.while_loop(lambda value: value.sum() < 40, lambda value: hvd.pmax(value) + 1, array)
        taken = lax.cond(array.shape[0] == 4, hvd.psum, lambda value: value, array)
        return carried, every, turned, while_, taken

    carried, every, turned, while_, taken = program(mine((4,)))
    np.testing.assert_allclose(carried, total() / size + 3, rtol=1e-6)
    same(every, np.full((3, 4), size, np.float32))
    np.testing.assert_allclose(turned, total() / size + 4, rtol=1e-6)
    assert while_.sum() >= 40
    same(taken, total())


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_through_a_scan_with_and_without_recomputing(recompute):
    def layer(carried, weight):
        return hvd.pmean(carried * weight), None

    layer = jax.checkpoint(layer) if recompute else layer
    weights = jnp.full((3,), 2.0)

    @jax.jit
    @jax.grad
    def grad(weights):
        return lax.scan(layer, jnp.ones((4,)), weights)[0].sum()

    np.testing.assert_allclose(grad(weights), np.full(3, 16.0))


def test_collectives_keep_the_order_of_the_program():
    """A function that is called twice, on arrays that do not depend on each other: without an order, ranks could take
    one call for the other."""
    reduce = jax.jit(lambda array: hvd.psum(array))

    @jax.jit
    def program(array):
        slow = jnp.linalg.matrix_power(jnp.eye(60) * 1.0, 5 + 20 * (hvd.rank() % 2))[0, 0]
        return reduce(array * slow), reduce(array * 2), reduce(array * 3)

    for _ in range(5):
        first, second, third = program(mine((4,)))
        np.testing.assert_allclose(first, total(), rtol=1e-6)
        same((second, third), (2 * total(), 3 * total()))


def test_a_rank_that_compiles_again_stays_in_step():
    for rounds in range(4):
        if rounds == 2 and hvd.rank() == 0:
            jax.clear_caches()
        same(jax.jit(lambda array: hvd.psum(hvd.psum(array)))(mine((4,))), total() * hvd.size())


def test_programs_without_order_need_a_name():
    with pytest.raises(ValueError, match="ordered=False needs a name"):
        jax.jit(lambda array: hvd.allreduce(array, ordered=False))(mine((4,)))
    reduce = jax.jit(lambda array: hvd.allreduce(array, op=hvd.Sum, name="mine", ordered=False))
    same(reduce(mine((4,))), total())
    assert not jax.make_jaxpr(reduce)(mine((4,))).effects


def test_programs_have_ordered_callbacks_beside_collectives():
    seen = []

    @jax.jit
    def program(array):
        io_callback(seen.append, None, array, ordered=True)
        reduced = hvd.psum(array)
        io_callback(seen.append, None, reduced, ordered=True)
        return reduced

    same(program(mine((4,))), total())
    jax.effects_barrier()
    same(seen, [mine((4,)), total()])


def test_calls_reach_the_engine_where_jax_compiles_nothing():
    with jax.disable_jit():
        same(jax.jit(lambda array: hvd.psum(array) * 2)(mine((4,))), 2 * total())


def test_donated_arrays_and_programs_in_flight():
    step = jax.jit(lambda array: hvd.pmean(array) + 1, donate_argnums=0)
    array = mine((4,)) * 0
    for _ in range(50):
        array = step(array)
    same(array, np.full(4, 50, np.float32))
    # Many programs that do not depend on each other, dispatched before the first is done.
    results = [jax.jit(hvd.psum)(mine((4,), seed=seed % 3)) for seed in range(30)]
    for seed, result in enumerate(results):
        same(result, total(seed % 3))


def test_threads_make_calls_of_their_own_by_name():
    results = {}

    def reduce(number):
        for _ in range(20):
            results[number] = jax.jit(lambda array: hvd.allreduce(array, op=hvd.Sum, name=f"thread {number}"))(
                mine((4,), seed=number)
            )

    threads = [threading.Thread(target=reduce, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        same(results[number], total(number))
