"""`hvd.jit`: the same as `jax.jit`, in order, and dispatched from C++."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import contributions, mine, same
from jax import lax
from jax.experimental import io_callback

import farandole.jax as hvd

pytestmark = pytest.mark.usefixtures("job")


def total(seed=0):
    """The sum of the vectors that the ranks have."""
    return np.asarray(sum(contributions(hvd.global_process_set, (4,), seed=seed)))


def python_frames(function, *args):
    """How many of JAX's functions in Python a call takes that is not the first."""
    jax.block_until_ready([function(*args) for _ in range(3)])
    frames = []

    def note(frame, event, _):
        if event == "call" and "/jax/_src/" in frame.f_code.co_filename:
            frames.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        results = function(*args)
    finally:
        sys.setprofile(None)
    jax.block_until_ready(results)
    return len(frames)


def collectives_in_order(function, *args):
    """How many collectives a program has, all of which must have a token that comes from the program's only one."""
    lowered = function.lower(*args)
    lines = [line for line in lowered.as_text().splitlines() if "custom_call @farandole_collective" in line]
    assert all(" : (!stablehlo.token" in line for line in lines)
    assert lowered.as_text().count("stablehlo.create_token") == 1
    # XLA has removed none.
    assert lowered.compile().as_text().count('custom_call_target="farandole_collective"') == len(lines)
    return len(lines)


def test_results_are_those_of_jax():
    constant = jnp.arange(4.0)

    def function(tree, scale, *, shift=0.0):
        reduced = hvd.psum({"first": tree["first"] * scale, "rest": tree["rest"]})
        return reduced, (shift + constant, scale, None), hvd.pmax(tree["first"])

    tree = {"first": mine((4,)), "rest": [mine((2, 3), "int32"), mine((), "bfloat16", seed=1)]}
    for args, kwargs in [((tree, 2.0), {}), ((tree, jnp.float32(2)), {"shift": 3}), ((tree,), {"scale": 2})]:
        found, wanted = hvd.jit(function)(*args, **kwargs), jax.jit(function)(*args, **kwargs)
        same(found, wanted)
        assert jax.tree.map(lambda leaf: leaf.weak_type, found) == jax.tree.map(lambda leaf: leaf.weak_type, wanted)
    assert hvd.jit(function).eval_shape(tree, 2.0) == jax.jit(function).eval_shape(tree, 2.0)
    same(hvd.jit(lambda array: array + 1)(mine((4,))), mine((4,)) + 1)


def test_dispatch_is_not_pythons():
    arrays = [mine((4,), seed=seed) for seed in range(100)]
    reduce = lambda arrays: hvd.allreduce(arrays, op=hvd.Sum)
    assert python_frames(hvd.jit(reduce), arrays) < 50
    assert python_frames(jax.jit(reduce), arrays) > 500


def test_order_is_kept_between_calls_and_through_loops_and_branches():
    reduce = hvd.jit(lambda array: hvd.psum(array))

    @hvd.jit
    def program(array):
        slow = jnp.linalg.matrix_power(jnp.eye(60) * 1.0, 5 + 20 * (hvd.rank() % 2))[0, 0]
        hvd.psum(array * 9)  # Nobody needs it.
        _, every = lax.scan(lambda sums, x: (sums, hvd.psum(x)), array, jnp.ones((3, 4), jnp.float32))
        taken = lax.cond(array.sum() < 1e6, hvd.psum, lambda value: value, array)
        return reduce(array * slow), hvd.psum(array * 2), every, taken

    assert collectives_in_order(program, mine((4,))) == 5
    for _ in range(5):
        first, second, every, taken = program(mine((4,)))
        np.testing.assert_allclose(first, total(), rtol=1e-6)
        same((second, taken), (2 * total(), total()))
        same(every, np.full((3, 4), hvd.size(), np.float32))


def test_programs_in_flight_run_one_after_the_other():
    """Whoever dispatches them. All have the same name, and ranks are slow in different ones."""
    work = lambda turns: jnp.linalg.matrix_power(jnp.eye(100, dtype=jnp.float32), turns)[0, 0]
    programs = [
        hvd.jit(hvd.psum),
        hvd.jit(lambda array: hvd.psum(work(2 + 30 * (hvd.rank() % 2)) * array)),
        jax.jit(lambda array: hvd.psum(work(32 - 30 * (hvd.rank() % 2)) * array)),
    ]
    results = [programs[turn % 3](mine((4,), seed=turn)) for turn in range(60)]
    for turn, result in enumerate(results):
        same(result, total(turn))


def test_every_form_of_decorator_and_static_arguments():
    @hvd.jit
    def plain(array, times):
        """Multiplies."""
        return hvd.psum(array) * times

    @functools.partial(hvd.jit, static_argnums=1)
    def by_number(array, times):
        assert isinstance(times, tuple)
        return hvd.psum(array) * times[0]

    @hvd.jit(static_argnames="times")
    def by_name(array, times=1):
        assert isinstance(times, int)
        return hvd.psum(array) * times

    class Model:
        @functools.partial(hvd.jit, static_argnums=0)
        def method(self, array):
            assert isinstance(self, Model)
            return hvd.psum(array) * 3

    assert (plain.__name__, plain.__doc__) == ("plain", "Multiplies.")
    array, wanted = mine((4,)), 3 * total()
    for found in [plain(array, 3), by_number(array, (3,)), by_name(array, 3), by_name(array, times=3)]:
        same(found, wanted)
    same(by_name(array, times=2), 2 * total())
    same(Model().method(array), wanted)
    by_name.clear_cache()
    same(by_name(array, times=3), wanted)


def test_donated_arrays_are_gone_and_unused_ones_are_not_handed_over():
    step = hvd.jit(lambda array, unused: hvd.pmean(array) + 1, donate_argnums=0)
    array, unused = mine((4,)) * 0, mine((5,))
    for _ in range(50):
        given, array = array, step(array, unused)
        assert given.is_deleted()
    same(array, np.full(4, 50, np.float32))
    text = step.lower(array, unused).as_text()
    assert "tensor<5xf32>" not in text and "tf.aliasing_output" in text


def test_transformations_see_through_it():
    weights = jnp.arange(4.0, dtype=jnp.float32)
    weighted = hvd.jit(lambda array: (hvd.psum(array) * weights).sum())
    for way in (lambda function: function, jax.jit, hvd.jit):
        same(way(jax.grad(weighted))(mine((4,))), np.asarray(weights * hvd.size()))
        same(way(jax.vmap(hvd.jit(hvd.psum)))(mine((3, 4))), jax.vmap(hvd.psum)(mine((3, 4))))
        value, tangent = way(lambda array: jax.jvp(hvd.jit(hvd.psum), (array,), (array * 2,)))(mine((4,)))
        same((value, tangent), (total(), 2 * total()))


@pytest.mark.parametrize("outer, inner", [(jax.jit, hvd.jit), (hvd.jit, jax.jit), (hvd.jit, hvd.jit)])
def test_inside_of_each_other_the_outermost_has_the_order(outer, inner):
    reduce = inner(lambda array: hvd.psum(array))
    program = outer(lambda array: (reduce(array), hvd.psum(array * 2), reduce(array * 3)))
    same(program(mine((4,))), (total(), 2 * total(), 3 * total()))
    # What is being traced here has the effect still; what was compiled above has it only in JAX's case.
    assert jax.make_jaxpr(program)(mine((4,))).effects
    assert bool(program.trace(mine((4,))).jaxpr.effects) == (outer is jax.jit)


def test_other_effects_and_programs_without_results_stay_what_they_are(capfd):
    seen = []

    @hvd.jit
    def program(array):
        jax.debug.print("a print from {}", array[0])
        io_callback(seen.append, None, array, ordered=True)
        return hvd.psum(array)

    same(program(mine((4,))), total())
    hvd.jit(hvd.barrier)()
    jax.effects_barrier()
    assert "a print from" in capfd.readouterr().out
    same(seen, [mine((4,))])
    assert hvd.jit(hvd.barrier).lower().as_text().count("custom_call @farandole_collective") == 1


def test_references_are_written():
    kept = jax.new_ref(jnp.zeros(4, jnp.float32))

    @hvd.jit
    def program(kept, array):
        kept[...] = hvd.psum(array)
        return array

    same(program(kept, mine((4,))), mine((4,)))
    same(kept[...], total())


def test_where_nothing_is_compiled_it_is_the_function():
    with jax.disable_jit():
        same(hvd.jit(lambda array: hvd.psum(array) * 2)(mine((4,))), 2 * total())


def test_what_does_not_match_is_refused_by_name():
    program = hvd.jit(hvd.psum)
    # The second time it is JAX's C++ that raises.
    for _ in range(2):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="jax.call.0"):
            jax.block_until_ready(program(jnp.ones(3 + hvd.rank())))
    assert program(1) == hvd.size()
