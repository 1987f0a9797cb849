"""What the ranks contribute, and what must come of it, worked out in numpy.

Every rank can make every other rank's contribution, so that each knows the right result without communication. Values
are small integers: sums, products and averages over up to eight ranks are exact in every element type.
"""

import jax
import jax.numpy as jnp
import numpy as np

import farandole.jax as hvd

FLOATS = ["float16", "bfloat16", "float32", "float64"]
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
DTYPES = ["bool", *UNSIGNED, *SIGNED, *FLOATS]
SHAPES = [(), (1,), (17,), (0, 3), (5, 4, 3)]

#: Inside and outside of compiled functions.
WAYS = {"now": lambda function: function, "jit": jax.jit}


def contribution(rank, shape, dtype="float32", seed=0):
    """The array of one rank."""
    chance = np.random.default_rng(1000 * seed + rank)
    low = 0 if dtype == "bool" or dtype in UNSIGNED else -3
    high = 2 if dtype == "bool" else 4
    return jnp.asarray(chance.integers(low, high, shape)).astype(dtype)


def contributions(process_set, shape, dtype="float32", seed=0):
    """The arrays of all ranks of a set, in order."""
    return [contribution(rank, shape, dtype, seed) for rank in process_set.ranks]


def mine(shape, dtype="float32", seed=0):
    """This rank's array."""
    return contribution(hvd.rank(), shape, dtype, seed)


def same(found, wanted):
    """Asserts that trees of arrays are the same, bit by bit, and of the same types."""
    found_leaves, found_structure = jax.tree.flatten(found)
    wanted_leaves, wanted_structure = jax.tree.flatten(wanted)
    assert found_structure == wanted_structure
    for one, other in zip(found_leaves, wanted_leaves):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype and one.shape == other.shape, f"{one} is not {other}"
        np.testing.assert_array_equal(one.astype(other.dtype), other)
