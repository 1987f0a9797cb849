"""Allreduce and reducescatter: every element type and operation, trees, process sets, factors, JAX's names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DTYPES, FLOATS, SHAPES, WAYS, contribution, contributions, mine, same

import farandole.jax as hvd

pytestmark = pytest.mark.usefixtures("job")


def wide(array):
    """Numbers that numpy can add without an overflow."""
    return np.asarray(array).astype("float64" if array.dtype == jnp.bfloat16 else array.dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type_is_added_in_every_shape(dtype, way):
    # All shapes in one call, which is a tree.
    tree = {str(shape): mine(shape, dtype) for shape in SHAPES}
    found = WAYS[way](lambda tree: hvd.allreduce(tree, op=hvd.Sum))(tree)
    for shape in SHAPES:
        total = sum(wide(array) for array in contributions(hvd.global_process_set, shape, dtype))
        same(found[str(shape)], jnp.asarray(total).astype(dtype))


@pytest.mark.parametrize("way", WAYS)
def test_every_operation(way):
    everybody = np.stack([np.asarray(array) for array in contributions(hvd.global_process_set, (5, 3))])
    wanted = {
        hvd.Sum: everybody.sum(0),
        hvd.Average: everybody.mean(0),
        hvd.Min: everybody.min(0),
        hvd.Max: everybody.max(0),
        hvd.Product: everybody.prod(0),
    }
    for op, result in wanted.items():
        same(WAYS[way](lambda array: hvd.allreduce(array, op=op))(mine((5, 3))), result.astype("float32"))


@pytest.mark.parametrize("way", WAYS)
def test_an_average_of_integers_is_cut_off_towards_zero(way):
    array = jnp.full((3,), -hvd.rank() - 1, jnp.int32)
    total = -sum(range(1, hvd.size() + 1))
    same(WAYS[way](hvd.allreduce)(array), np.full((3,), int(total / hvd.size()), np.int32))


def test_adasum_of_equal_arrays_is_the_array():
    array = jnp.arange(1.0, 5.0, dtype=jnp.float32)
    np.testing.assert_allclose(jax.jit(lambda array: hvd.allreduce(array, op=hvd.Adasum))(array), array, rtol=1e-6)
    with pytest.raises(TypeError, match="Adasum takes floating-point arrays, not int32"):
        hvd.allreduce(jnp.ones(3, jnp.int32), op=hvd.Adasum)


@pytest.mark.parametrize("way", WAYS)
def test_process_sets_and_factors(sets, way):
    for process_set in sets:
        total = sum(contributions(process_set, (7,), "float64"))
        reduce = WAYS[way](
            lambda array: hvd.allreduce(
                array, op=hvd.Sum, process_set=process_set, prescale_factor=0.5, postscale_factor=4.0
            )
        )
        same(reduce(mine((7,), "float64")), total * 2.0)


@pytest.mark.parametrize("way", WAYS)
def test_complex_numbers_travel_as_pairs(way):
    array = mine((4,), "float32") + 1j * mine((4,), "float32", seed=1)
    wanted = sum(
        contribution(rank, (4,)) + 1j * contribution(rank, (4,), seed=1) for rank in range(hvd.size())
    )
    same(WAYS[way](hvd.psum)(array.astype("complex64")), wanted.astype("complex64"))
    with pytest.raises(TypeError, match="neither be compared nor multiplied"):
        hvd.pmax(array)


@pytest.mark.parametrize("dtype", FLOATS)
def test_compression_sends_less_and_gives_back_the_type(dtype):
    total = sum(wide(array) for array in contributions(hvd.global_process_set, (6,), dtype))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none):
        reduce = jax.jit(lambda array: hvd.allreduce(array, op=hvd.Sum, compression=compression))
        same(reduce(mine((6,), dtype)), jnp.asarray(total).astype(dtype))


def test_numbers_and_numpy_arrays_and_empty_trees():
    assert hvd.allreduce(hvd.rank(), op=hvd.Sum) == sum(range(hvd.size()))
    same(hvd.psum(np.ones(3, np.float32)), np.full(3, hvd.size(), np.float32))
    assert hvd.allreduce({}) == {} and hvd.grouped_allreduce([]) == []
    with pytest.raises(TypeError, match="takes arrays and numbers, not str"):
        hvd.allreduce("text")
    with pytest.raises(TypeError, match="arrays of float8_e4m3fn"):
        hvd.allreduce(jnp.ones(3, jnp.float8_e4m3fn))


@pytest.mark.parametrize("way", WAYS)
def test_jax_names(way):
    arrays = [np.asarray(array) for array in contributions(hvd.global_process_set, (2 * hvd.size(), 3))]
    for function, reduce in [(hvd.psum, np.sum), (hvd.pmean, np.mean), (hvd.pmax, np.max), (hvd.pmin, np.min)]:
        same(WAYS[way](function)(mine((2 * hvd.size(), 3))), reduce(np.stack(arrays), 0).astype("float32"))
    total = sum(arrays)
    mine_of_total = total[2 * hvd.rank() : 2 * hvd.rank() + 2]
    same(WAYS[way](lambda array: hvd.psum_scatter(array, tiled=True))(mine((2 * hvd.size(), 3))), mine_of_total)
    square = contributions(hvd.global_process_set, (3, hvd.size()))
    scattered = WAYS[way](lambda array: hvd.psum_scatter(array, scatter_dimension=1))(mine((3, hvd.size())))
    same(scattered, np.asarray(sum(square))[:, hvd.rank()])
    with pytest.raises(ValueError, match=f"dimension 0 has {hvd.size() + 1} elements, and needs {hvd.size()}"):
        hvd.psum_scatter(jnp.ones(hvd.size() + 1))


@pytest.mark.parametrize("way", WAYS)
def test_reducescatter_shares_rows_that_do_not_divide(way):
    rows = 2 * hvd.size() + 1
    total = np.asarray(sum(contributions(hvd.global_process_set, (rows, 2))))
    # The first rank has one row more.
    start = 2 * hvd.rank() + min(hvd.rank(), 1)
    wanted = total[start : start + 2 + (hvd.rank() < 1)]
    same(WAYS[way](lambda array: hvd.reducescatter(array, op=hvd.Sum))(mine((rows, 2))), wanted)
    grouped = WAYS[way](lambda array: hvd.grouped_reducescatter([array, array * 2], op=hvd.Sum))(mine((rows, 2)))
    same(grouped, [wanted, wanted * 2])


def test_a_thousand_arrays_are_one_call():
    arrays = [jnp.full((5,), index + hvd.rank(), jnp.float32) for index in range(1000)]
    program = jax.jit(hvd.psum).lower(arrays).as_text()
    assert program.count("stablehlo.custom_call @farandole_collective") == 1
    wanted = [np.full((5,), index * hvd.size() + sum(range(hvd.size())), np.float32) for index in range(1000)]
    same(jax.jit(hvd.psum)(arrays), wanted)
    same(hvd.psum(arrays), wanted)
