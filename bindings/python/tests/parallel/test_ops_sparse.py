"""Sparse tensors: sums and averages by gathering."""

import pytest
import torch

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")


def sparse(rank, dtype=torch.float32, shape=(6, 3), entries=None):
    """Rows of a table, some of them twice, others on several ranks."""
    rows = [rank % 6, rank % 6, 2, 5] if entries is None else entries
    values = torch.arange(1, len(rows) + 1).to(dtype).unsqueeze(1).expand(len(rows), shape[1]) * (rank + 1)
    indices = torch.tensor([rows], dtype=torch.int64).reshape(1, -1)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["Sum", "Average"])
def test_sums_and_averages(op, sets):
    for process_set in sets:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            wait = hvd.sparse_allreduce_async(sparse(hvd.rank(), dtype), "table", op, process_set=process_set)
            result = wait()
            assert result.is_sparse and result.dtype == dtype and result.shape == (6, 3)
            expected = sum(sparse(rank, torch.float64).to_dense() for rank in process_set.ranks)
            if op == hvd.Average:
                expected = expected / process_set.size()
            # Entries are averaged one by one, each rounded for itself.
            tolerance = process_set.size() if dtype == torch.int64 else 0.05
            torch.testing.assert_close(result.to_dense().double(), expected, rtol=0.02, atol=tolerance)


def test_entries_at_the_same_place_travel_once():
    result = hvd.sparse_allreduce_async(sparse(hvd.rank()), "once", hvd.Sum)()
    assert result._nnz() == sum(sparse(rank).coalesce()._nnz() for rank in range(hvd.size()))


def test_ranks_without_entries_and_scalar_entries():
    own = sparse(hvd.rank(), entries=None if hvd.rank() == 0 else [])
    result = hvd.sparse_allreduce_async(own, "mostly nothing", hvd.Sum)()
    torch.testing.assert_close(result.to_dense(), sparse(0).to_dense())
    nothing = hvd.sparse_allreduce_async(sparse(0, entries=[]), "nothing", hvd.Average)()
    assert torch.count_nonzero(nothing.to_dense()) == 0
    matrix = torch.eye(3).to_sparse()
    result = hvd.sparse_allreduce_async(matrix, "all dimensions sparse", hvd.Sum)()
    torch.testing.assert_close(result.to_dense(), torch.eye(3) * hvd.size())


def test_several_at_once_also_without_names():
    waits = [hvd.sparse_allreduce_async(sparse(hvd.rank()), None, hvd.Sum) for _ in range(5)]
    for wait in reversed(waits):
        torch.testing.assert_close(wait().to_dense(), sum(sparse(rank).to_dense() for rank in range(hvd.size())))


def test_misuse():
    with pytest.raises(ValueError, match="sparse COO"):
        hvd.sparse_allreduce_async(torch.ones(3), "dense", hvd.Sum)
    with pytest.raises(ValueError, match="summed and averaged only"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "max", hvd.Max)
