"""Reductions of MXNet's arrays: every element type and operation, in place and not, grouped, scaled and scattered."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import farandole.mxnet as hvd

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("job")]

DTYPES = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
SHAPES = [(5,), (3, 4), (2, 3, 4)]


def contribution(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small whole numbers, so that every type adds them exactly."""
    return ((np.arange(np.prod(shape)).reshape(shape) + rank) % 5 + 1).astype(dtype)


def contributions(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    return [contribution(rank, shape, dtype) for rank in range(hvd.size())]


def own(shape: tuple[int, ...], dtype: str) -> mx.nd.NDArray:
    return mx.nd.array(contribution(hvd.rank(), shape, dtype), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_exact_in_every_type(dtype: str, shape: tuple[int, ...]) -> None:
    array = own(shape, dtype)
    result = hvd.allreduce(array, op=hvd.Sum)
    assert result.dtype == np.dtype(dtype) and result.shape == shape
    assert np.array_equal(result.asnumpy(), np.sum(contributions(shape, dtype), axis=0, dtype=dtype))
    assert np.array_equal(array.asnumpy(), contribution(hvd.rank(), shape, dtype)), "the input stays as it is"


@pytest.mark.parametrize("op", ["Average", "Min", "Max", "Product"])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_other_operations(op: str, dtype: str) -> None:
    functions = {"Average": np.mean, "Min": np.min, "Max": np.max, "Product": np.prod}
    wanted = functions[op](contributions((3, 4), dtype), axis=0).astype(dtype)
    result = hvd.allreduce(own((3, 4), dtype), op=getattr(hvd, op))
    assert np.allclose(result.asnumpy(), wanted, rtol=1e-6)


def test_the_average_is_the_default_and_the_old_parameter_is_understood() -> None:
    wanted = np.mean(contributions((4,), "float64"), axis=0)
    assert np.allclose(hvd.allreduce(own((4,), "float64")).asnumpy(), wanted)
    with pytest.warns(DeprecationWarning, match="average"):
        summed = hvd.allreduce(own((4,), "float64"), average=False)
    assert np.allclose(summed.asnumpy(), wanted * hvd.size())


def test_bool_is_or_and_bfloat16_is_added_in_single_precision() -> None:
    array = mx.nd.array([hvd.rank() == 0, False, True], dtype="bool")
    assert hvd.allreduce(array, op=hvd.Sum).asnumpy().tolist() == [True, False, True]
    narrow = mx.nd.ones((3,)).astype(np.dtype([("bfloat16", np.uint16)]))
    assert hvd.allreduce(narrow, op=hvd.Sum).astype("float32").asnumpy().tolist() == [float(hvd.size())] * 3


def test_in_place_returns_the_array_itself() -> None:
    array = own((3, 4), "float32")
    assert hvd.allreduce_(array, op=hvd.Sum) is array
    assert np.array_equal(array.asnumpy(), np.sum(contributions((3, 4), "float32"), axis=0))


def test_factors_scale_before_and_after() -> None:
    result = hvd.allreduce(own((4,), "float32"), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert np.allclose(result.asnumpy(), 2.0 * np.sum(contributions((4,), "float32"), axis=0))


def test_adasum_of_equal_arrays_is_their_average() -> None:
    array = mx.nd.array([1.0, 2.0, 3.0])
    assert np.allclose(hvd.allreduce(array, op=hvd.Adasum).asnumpy(), [1.0, 2.0, 3.0], rtol=1e-6)


def test_a_group_may_have_several_types_and_runs_together() -> None:
    arrays = [own((4,), dtype) for dtype in ("float32", "int32", "float64")]
    results = hvd.grouped_allreduce(arrays, op=hvd.Sum, name="mixed")
    for result, dtype in zip(results, ("float32", "int32", "float64")):
        assert np.array_equal(result.asnumpy(), np.sum(contributions((4,), dtype), axis=0, dtype=dtype))
    assert hvd.grouped_allreduce_(arrays, op=hvd.Sum, name="mixed") is arrays
    assert np.array_equal(arrays[0].asnumpy(), results[0].asnumpy())
    assert hvd.grouped_allreduce([]) == []


def test_parts_of_one_array_are_reduced_as_a_group_and_the_rest_of_it_stays() -> None:
    """They share a variable of MXNet's engine: an operation that named it twice would wait for itself."""
    array = mx.nd.arange(8) + hvd.rank()
    hvd.grouped_allreduce_([array[0:2], array[4:6]], op=hvd.Sum)
    alone = np.arange(8) + hvd.rank()
    together = sum(np.arange(8) + rank for rank in range(hvd.size()))
    assert np.array_equal(array.asnumpy(), np.where([1, 1, 0, 0, 1, 1, 0, 0], together, alone))


def test_arrays_with_numpys_interface_come_back_as_such() -> None:
    with mx.util.np_shape(True):
        scalar = mx.np.array(hvd.rank() + 1.0)
        result = hvd.allreduce(scalar, op=hvd.Sum)
        assert isinstance(result, mx.np.ndarray) and result.shape == ()
        assert result.item() == sum(range(1, hvd.size() + 1))


def test_process_sets_reduce_among_themselves(sets) -> None:
    for process_set in sets:
        result = hvd.allreduce(mx.nd.ones((3,)) * (hvd.rank() + 1), op=hvd.Sum, process_set=process_set)
        ranks = process_set.ranks
        assert result.asnumpy().tolist() == [float(sum(rank + 1 for rank in ranks))] * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 7], ids=str)
def test_reducescatter_gives_each_rank_its_rows(dtype: str, rows: int) -> None:
    place, size = hvd.rank(), hvd.size()
    rows += size
    summed = np.sum(contributions((rows, 2), dtype), axis=0, dtype=dtype)
    lengths = [rows // size + (rank < rows % size) for rank in range(size)]
    begin = sum(lengths[:place])
    result = hvd.reducescatter(own((rows, 2), dtype), op=hvd.Sum)
    assert np.array_equal(result.asnumpy(), summed[begin : begin + lengths[place]])


def test_grouped_reducescatter_and_its_factors(sets) -> None:
    for process_set in sets:
        ranks = process_set.ranks
        arrays = [mx.nd.ones((2 * len(ranks), 3)) * (hvd.rank() + 1), mx.nd.ones((len(ranks),)) * hvd.rank()]
        first, second = hvd.grouped_reducescatter(
            arrays, op=hvd.Sum, process_set=process_set, prescale_factor=2.0, postscale_factor=0.5
        )
        assert first.asnumpy().tolist() == [[float(sum(rank + 1 for rank in ranks))] * 3] * 2
        assert second.asnumpy().tolist() == [float(sum(ranks))]
    assert hvd.grouped_reducescatter([]) == []


def test_other_devices_are_copied_to_the_host_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here. The second context of the host stands for one: its arrays are treated as if they lay
    elsewhere, and MXNet copies between contexts all the same."""
    from farandole.mxnet import arrays

    device = mx.cpu(1)
    monkeypatch.setattr(arrays, "is_on_host", lambda array: array.context != device)
    array = mx.nd.ones((3,), ctx=device) * (hvd.rank() + 1)
    total = float(sum(range(1, hvd.size() + 1)))
    result = hvd.allreduce(array, op=hvd.Sum)
    assert result.context == device and result.asnumpy().tolist() == [total] * 3
    hvd.allreduce_(array, op=hvd.Sum)
    assert array.context == device and array.asnumpy().tolist() == [total] * 3
    gathered = hvd.allgather(array)
    assert gathered.context == device and gathered.shape == (3 * hvd.size(),)
    hvd.broadcast_(array, hvd.size() - 1)
    assert hvd.reducescatter(mx.nd.ones((hvd.size(),), ctx=device)).context == device
    assert hvd.alltoall(mx.nd.ones((hvd.size(),), ctx=device)).context == device
