"""Allgather, alltoall, broadcast, reducescatter: every element type, form and process set, against plain torch."""

import pytest
import torch
from reference import (
    DTYPES,
    FLOATS,
    SHAPES,
    contribution,
    contributions,
    mine,
    reduced,
    rows_of,
    same,
    strided_versions,
)

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")

SCATTERED = [(12,), (7, 3), (2, 5, 2), (1, 2), (0, 3)]


def uneven(rank, dtype=torch.float32, seed=0, rows=None):
    """A tensor with another number of rows on every rank, none on some."""
    return contribution(rank, ((rank * 2) % 5 if rows is None else rows, 3), dtype, seed)


def test_allgather_of_every_type_and_set(sets):
    for process_set in sets:
        for dtype in DTYPES:
            for shape in SHAPES[1:]:
                expected = torch.cat(contributions(process_set, shape, dtype))
                same(hvd.allgather(mine(shape, dtype), process_set=process_set), expected)
            expected = torch.cat([uneven(rank, dtype) for rank in process_set.ranks])
            tensor = uneven(hvd.rank(), dtype)
            same(hvd.allgather(tensor, process_set=process_set), expected)
            same(hvd.synchronize(hvd.allgather_async(tensor, process_set=process_set)), expected)
            same(tensor, uneven(hvd.rank(), dtype))


def test_allgather_of_nothing_at_all(sets):
    for process_set in sets:
        same(hvd.allgather(torch.empty(0, 4), process_set=process_set), torch.empty(0, 4))
        same(hvd.allgather(torch.empty(2, 0), process_set=process_set), torch.empty(2 * process_set.size(), 0))


def test_grouped_allgather_of_every_type(sets):
    for process_set in sets:
        tensors = [uneven(hvd.rank(), dtype, seed=index) for index, dtype in enumerate(DTYPES)]
        expected = [
            torch.cat([uneven(rank, dtype, seed=index) for rank in process_set.ranks])
            for index, dtype in enumerate(DTYPES)
        ]
        for results in (
            hvd.grouped_allgather(tensors, process_set=process_set),
            hvd.synchronize(hvd.grouped_allgather_async(tensors, process_set=process_set)),
        ):
            assert isinstance(results, list)
            for pair in zip(results, expected):
                same(*pair)


def test_broadcast_of_every_type_shape_root_and_set(sets):
    for process_set in sets:
        for root in process_set.ranks:
            for dtype in DTYPES:
                for shape in SHAPES:
                    expected = contribution(root, shape, dtype)
                    tensor = mine(shape, dtype)
                    same(hvd.broadcast(tensor, root, process_set=process_set), expected)
                    same(hvd.synchronize(hvd.broadcast_async(tensor, root, process_set=process_set)), expected)
                    same(tensor, mine(shape, dtype))
                    assert hvd.broadcast_(tensor, root, process_set=process_set) is tensor
                    same(tensor, expected)
                    tensor = mine(shape, dtype)
                    assert hvd.synchronize(hvd.broadcast_async_(tensor, root, process_set=process_set)) is tensor
                    same(tensor, expected)


def test_broadcast_to_strided_tensors_and_parameters():
    root = hvd.size() - 1
    for shape in ((), (6,), (5, 4, 3)):
        for tensor in strided_versions(mine(shape)):
            same(hvd.broadcast(tensor, root), contribution(root, shape))
            hvd.broadcast_(tensor, root)
            torch.testing.assert_close(tensor, contribution(root, shape), rtol=0, atol=0)
    parameter = torch.nn.Parameter(mine((3,)).t())
    hvd.broadcast_(parameter, root_rank=root)
    same(parameter.detach(), contribution(root, (3,)))


def split_rows(rank, process_set):
    """How many rows a rank sends to each rank of the set: another number to each, none to some."""
    return [(rank + 2 * other) % 4 for other in process_set.ranks]


def test_alltoall_with_splits_of_every_type_and_set(sets):
    for process_set in sets:
        place = process_set.rank()
        for dtype in DTYPES:
            splits = split_rows(hvd.rank(), process_set)
            tensor = uneven(hvd.rank(), dtype, rows=sum(splits))
            parts, counts = [], []
            for rank in process_set.ranks:
                theirs = split_rows(rank, process_set)
                parts.append(uneven(rank, dtype, rows=sum(theirs)).split(theirs)[place])
                counts.append(theirs[place])
            for given in (splits, torch.tensor(splits, dtype=torch.int32), torch.tensor(splits)):
                output, received = hvd.alltoall(tensor, given, process_set=process_set)
                same(output, torch.cat(parts))
                assert received.tolist() == counts
                assert received.dtype == (given.dtype if isinstance(given, torch.Tensor) else torch.int32)
                output, received = hvd.synchronize(hvd.alltoall_async(tensor, given, process_set=process_set))
                same(output, torch.cat(parts))
                assert received.tolist() == counts


def test_alltoall_in_equal_parts(sets):
    for process_set in sets:
        size, place = process_set.size(), process_set.rank()
        shape = (2 * size, 3)
        expected = torch.cat([tensor.chunk(size)[place] for tensor in contributions(process_set, shape)])
        same(hvd.alltoall(mine(shape), process_set=process_set), expected)
        output, received = hvd.synchronize(hvd.alltoall_async(mine(shape), process_set=process_set))
        same(output, expected)
        assert received.tolist() == [2] * size
        same(hvd.alltoall(torch.empty(0, 3), process_set=process_set), torch.empty(0, 3))


OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_reducescatter_of_every_type_shape_and_set(op, sets):
    for process_set in sets:
        for dtype in DTYPES:
            for shape in SCATTERED:
                expected = rows_of(process_set, reduced(contributions(process_set, shape, dtype), op))
                tensor = mine(shape, dtype)
                same(hvd.reducescatter(tensor, op=op, process_set=process_set), expected)
                handle = hvd.reducescatter_async(tensor, op=op, process_set=process_set)
                same(hvd.synchronize(handle), expected)
                same(tensor, mine(shape, dtype))
        tensors = [mine(SCATTERED[index % 5], dtype, seed=index) for index, dtype in enumerate(DTYPES)]
        expected = [
            rows_of(process_set, reduced(contributions(process_set, SCATTERED[index % 5], dtype, index), op))
            for index, dtype in enumerate(DTYPES)
        ]
        for results in (
            hvd.grouped_reducescatter(tensors, op=op, process_set=process_set),
            hvd.synchronize(hvd.grouped_reducescatter_async(tensors, op=op, process_set=process_set)),
        ):
            assert isinstance(results, list)
            for pair in zip(results, expected):
                same(*pair)


def test_reducescatter_factors_and_compression(sets):
    for process_set in sets:
        for dtype in FLOATS:
            everybody = contributions(process_set, (6, 2), dtype)
            expected = rows_of(process_set, reduced(everybody, hvd.Sum, prescale=0.5, postscale=4.0))
            how = dict(op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, process_set=process_set)
            same(hvd.reducescatter(mine((6, 2), dtype), **how), expected)
            compressed = hvd.reducescatter(mine((6, 2), dtype), compression=hvd.Compression.fp16, **how)
            same(compressed, expected)
            [grouped] = hvd.grouped_reducescatter([mine((6, 2), dtype)], **how)
            same(grouped, expected)


def test_strided_tensors_are_gathered_sent_and_scattered(sets):
    for process_set in sets:
        shape = (2 * process_set.size(), 3)
        everybody = contributions(process_set, shape)
        for tensor in strided_versions(mine(shape)):
            same(hvd.allgather(tensor, process_set=process_set), torch.cat(everybody))
            expected = rows_of(process_set, reduced(everybody, hvd.Sum))
            same(hvd.reducescatter(tensor, op=hvd.Sum, process_set=process_set), expected)
            sent = torch.cat([theirs.chunk(process_set.size())[process_set.rank()] for theirs in everybody])
            same(hvd.alltoall(tensor, process_set=process_set), sent)


def test_results_outlive_the_engine_that_made_them():
    gathered = hvd.allgather(mine((4,)))
    expected = torch.cat(contributions(hvd.global_process_set, (4,)))
    hvd.barrier()
    gathered.add_(1)
    same(gathered, expected + 1)


def test_tensors_of_our_own_are_in_host_memory_whatever_the_default_device():
    tensor = torch.ones(hvd.size(), 2, requires_grad=True)
    torch.set_default_device("meta")
    try:
        output, received = hvd.alltoall(tensor, splits=[1] * hvd.size())
        gathered = hvd.allgather(tensor)
        gathered.sum().backward()
    finally:
        torch.set_default_device(None)
    assert received.tolist() == [1] * hvd.size() and output.tolist() == tensor.tolist()
    assert gathered.shape == (hvd.size() ** 2, 2) and tensor.grad.tolist() == torch.ones(hvd.size(), 2).tolist()
