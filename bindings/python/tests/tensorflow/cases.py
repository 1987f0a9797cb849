"""What the ranks contribute, what must come of it, worked out in NumPy, and the ways in which TensorFlow runs it.

Every rank can make every other rank's contribution, so that each knows the right result without communication. Values
are small integers: sums, products and averages over up to eight ranks are exact in every element type.
"""

import numpy as np
import tensorflow as tf

import farandole.tensorflow as hvd

BFLOAT16 = tf.bfloat16.as_numpy_dtype
FLOATS = [np.float16, BFLOAT16, np.float32, np.float64]
SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
DTYPES = [np.bool_, *UNSIGNED, *SIGNED, *FLOATS]
SHAPES = [(), (1,), (17,), (0, 3), (5, 4, 3)]


def eager(compute, arrays):
    """Operation by operation."""
    return compute([tf.constant(array) for array in arrays])


def function(compute, arrays):
    """In a `tf.function`, with tensors as its arguments."""
    return tf.function(compute)([tf.constant(array) for array in arrays])


def graph(compute, arrays):
    """In a graph and a session of TensorFlow 1."""
    with tf.Graph().as_default():
        tensors = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in arrays]
        results = compute(tensors)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(results, dict(zip(tensors, arrays)))


MODES = {"eager": eager, "function": function, "graph": graph}


def run(mode, compute, arrays):
    """What `compute` makes of tensors with these values, as arrays: a list if it returns one."""
    results = MODES[mode](compute, [np.asarray(array) for array in arrays])
    return tf.nest.map_structure(array_of, results)


def array_of(value):
    """The array in a tensor or a variable; sessions return arrays, and numbers for scalars."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def contribution(rank, shape, dtype=np.float32, seed=0):
    """The array of one rank."""
    generator = np.random.default_rng([seed, rank])
    low = 0 if dtype == np.bool_ or dtype in UNSIGNED else -3
    high = 2 if dtype == np.bool_ else 4
    return generator.integers(low, high, shape).astype(dtype)


def contributions(process_set, shape, dtype=np.float32, seed=0):
    """The arrays of all ranks of a set, in order."""
    return [contribution(rank, shape, dtype, seed) for rank in process_set.ranks]


def mine(shape, dtype=np.float32, seed=0):
    """This rank's array."""
    return contribution(hvd.rank(), shape, dtype, seed)


def is_float(dtype):
    """Whether a NumPy type is a floating-point one; NumPy itself does not say so of bfloat16."""
    return any(dtype == floating for floating in FLOATS)


def wide(array):
    """In a type in which NumPy can do everything."""
    return np.asarray(array).astype(np.float64 if is_float(array.dtype) else np.int64)


def reduced(arrays, op, prescale=1.0, postscale=1.0):
    """The combination of the ranks' arrays."""
    dtype = arrays[0].dtype
    stacked = np.stack([wide(array) for array in arrays]) * (prescale if prescale != 1.0 else 1)
    if dtype == np.bool_:
        return (stacked.max(0) if op in (hvd.Sum, hvd.Max) else stacked.min(0)).astype(dtype)
    combine = {
        hvd.Sum: np.sum,
        hvd.Average: np.sum,
        hvd.Min: np.min,
        hvd.Max: np.max,
        hvd.Product: np.prod,
    }[op]
    result = combine(stacked, axis=0)
    if op == hvd.Average:
        # Integers are truncated towards zero.
        result = result / len(arrays) if is_float(dtype) else np.trunc(result / len(arrays))
    return (result * postscale).astype(dtype)


def rows_of(process_set, array, place=None):
    """The rows that a rank gets of a scattered array."""
    place = process_set.rank() if place is None else place
    few, more = divmod(array.shape[0], process_set.size())
    start = place * few + min(place, more)
    return array[start : start + few + (1 if place < more else 0)]


def same(actual, expected):
    """Fails unless two arrays are equal in type, shape and value; averages of floats may differ by a rounding."""
    actual = array_of(actual)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if is_float(actual.dtype):
        # NumPy does not know bfloat16, which has seven bits after the leading one.
        rounding = 2.0**-7 if actual.dtype == BFLOAT16 else float(np.finfo(actual.dtype).eps)
        np.testing.assert_allclose(wide(actual), wide(expected), rtol=2 * rounding, atol=0)
    else:
        np.testing.assert_array_equal(actual, expected)


def all_same(actual, expected):
    """`same`, for lists."""
    assert len(actual) == len(expected)
    for pair in zip(actual, expected):
        same(*pair)


def by_parity(even, odd):
    """One thing on ranks 0, 2, …, another on the others."""
    return even if hvd.rank() % 2 == 0 else odd
