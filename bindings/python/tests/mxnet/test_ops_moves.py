"""Operations that move arrays and change none: allgather, broadcast, alltoall; barrier, join and objects."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import farandole.mxnet as hvd

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("job")]

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_joins_rows_of_any_number(dtype: str) -> None:
    rows = [np.full((rank + 1, 2), rank % 2, dtype) for rank in range(hvd.size())]
    result = hvd.allgather(mx.nd.array(rows[hvd.rank()], dtype=dtype))
    assert result.dtype == np.dtype(dtype)
    assert np.array_equal(result.asnumpy(), np.concatenate(rows))


def test_grouped_allgather_keeps_the_order(sets) -> None:
    for process_set in sets:
        arrays = [mx.nd.ones((2, 3)) * hvd.rank(), mx.nd.ones((1,), dtype="int64") * hvd.rank()]
        wide, flat = hvd.grouped_allgather(arrays, process_set=process_set)
        ranks = process_set.ranks
        assert wide.shape == (2 * len(ranks), 3) and wide[::2, 0].asnumpy().tolist() == [float(rank) for rank in ranks]
        assert flat.dtype == np.int64 and flat.asnumpy().tolist() == ranks
    assert hvd.grouped_allgather([]) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_gives_everybody_the_arrays_of_each_root(dtype: str) -> None:
    for root in range(hvd.size()):
        own = mx.nd.array(np.full((2, 3), (hvd.rank() + 1) % 2), dtype=dtype)
        wanted = np.full((2, 3), (root + 1) % 2, dtype)
        result = hvd.broadcast(own, root)
        assert np.array_equal(result.asnumpy(), wanted)
        assert np.array_equal(own.asnumpy(), np.full((2, 3), (hvd.rank() + 1) % 2, dtype)), "the input stays"
        assert hvd.broadcast_(own, root) is own
        assert np.array_equal(own.asnumpy(), wanted)


def test_broadcast_numbers_its_root_in_the_world(sets) -> None:
    for process_set in sets:
        root = process_set.ranks[-1]
        result = hvd.broadcast(mx.nd.array([hvd.rank()]), root, process_set=process_set)
        assert result.asnumpy().tolist() == [float(root)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_alltoall_sends_each_rank_its_rows(dtype: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = [other + 1 for other in range(size)]
    rows = np.concatenate([np.full((count, 2), (rank + other) % 2) for other, count in enumerate(splits)])
    result, received = hvd.alltoall(mx.nd.array(rows, dtype=dtype), splits=mx.nd.array(splits, dtype="int32"))
    wanted = np.concatenate([np.full((rank + 1, 2), (other + rank) % 2) for other in range(size)]).astype(dtype)
    assert result.dtype == np.dtype(dtype) and np.array_equal(result.asnumpy(), wanted)
    assert received.dtype == np.int32 and received.asnumpy().tolist() == [rank + 1] * size


def test_alltoall_without_splits_gives_equal_parts(sets) -> None:
    for process_set in sets:
        ranks = process_set.ranks
        result = hvd.alltoall(mx.nd.ones((2 * len(ranks),)) * hvd.rank(), process_set=process_set)
        assert result.asnumpy().tolist() == [float(rank) for rank in ranks for _ in range(2)]


def test_results_without_rows() -> None:
    """Everything goes to rank 0."""
    with mx.util.np_shape(True):
        splits = [1] + [0] * (hvd.size() - 1)
        result, received = hvd.alltoall(mx.nd.ones((1, 2)), splits=splits)
        count = hvd.size() if hvd.rank() == 0 else 0
        assert result.shape == (count, 2) and received.asnumpy().sum() == count
        part = hvd.reducescatter(mx.nd.ones((1, 2)), op=hvd.Sum)
        assert part.shape == (1 if hvd.rank() == 0 else 0, 2)


def test_objects_of_any_kind() -> None:
    root = hvd.size() - 1
    assert hvd.broadcast_object({"root": hvd.rank(), "list": [1, "a"]}, root) == {"root": root, "list": [1, "a"]}
    assert hvd.allgather_object("x" * hvd.rank()) == ["x" * rank for rank in range(hvd.size())]


def test_a_barrier_waits_for_this_ranks_operations(sets) -> None:
    for process_set in sets:
        array = mx.nd.ones((1000,))
        hvd.allreduce_(array, op=hvd.Sum, process_set=process_set)
        hvd.barrier(process_set)
        assert array.asnumpy()[0] == len(process_set.ranks)


def test_ranks_that_have_joined_add_nothing() -> None:
    last = hvd.size() - 1
    for step in range(hvd.rank() + 1):
        result = hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name=f"joined.{step}")
        assert result.asnumpy().tolist() == [float(hvd.size() - step)] * 2
    assert hvd.join() == last
