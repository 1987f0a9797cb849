"""What does not fit together is refused on every rank, with Horovod's words, and the job goes on. Needs at least two
ranks."""

import pytest
import torch
from reference import contributions, mine, reduced, same

import farandole.torch as hvd
from farandole.exceptions import MismatchError

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture(autouse=True)
def the_job_goes_on():
    yield
    expected = reduced(contributions(hvd.global_process_set, (3,)), hvd.Sum)
    same(hvd.allreduce(mine((3,)), op=hvd.Sum), expected)


def refused(words):
    return pytest.raises(MismatchError, match=words)


def by_parity(even, odd):
    return even if hvd.rank() % 2 == 0 else odd


@pytest.mark.parametrize(
    "ask",
    [
        lambda tensor: hvd.allreduce(tensor),
        lambda tensor: hvd.allreduce_(tensor),
        lambda tensor: hvd.grouped_allreduce([torch.ones(2), tensor]),
        lambda tensor: hvd.broadcast(tensor, 0),
        lambda tensor: hvd.reducescatter(tensor),
    ],
    ids=["allreduce", "in place", "grouped", "broadcast", "reducescatter"],
)
def test_shapes(ask):
    with refused("Mismatched [A-Z]+ tensor shapes: One rank sent a tensor of shape"):
        ask(torch.ones(by_parity((4, 3), (4, 2))))
    with refused("Mismatched [A-Z]+ tensor shapes: One rank sent a tensor of shape"):
        ask(torch.ones(by_parity((12,), (3, 4))))


@pytest.mark.parametrize(
    "ask",
    [
        lambda tensor: hvd.allreduce(tensor),
        lambda tensor: hvd.allgather(tensor),
        lambda tensor: hvd.grouped_allgather([tensor]),
        lambda tensor: hvd.broadcast_(tensor, 0),
        lambda tensor: hvd.alltoall(tensor),
        lambda tensor: hvd.reducescatter(tensor),
        lambda tensor: hvd.grouped_reducescatter([tensor]),
    ],
    ids=["allreduce", "allgather", "grouped_allgather", "broadcast", "alltoall", "reducescatter", "grouped"],
)
def test_types(ask):
    with refused("Mismatched data types: One rank had type"):
        ask(torch.ones(4 * hvd.size(), dtype=by_parity(torch.float32, torch.int32)))


def test_rows_of_what_is_gathered_or_sent():
    for ask in (hvd.allgather, hvd.alltoall):
        with refused("tensor shapes: One rank sent a tensor with dimension 1 equal to"):
            ask(torch.ones(hvd.size(), by_parity(2, 3)))
        with refused("tensor shapes: One rank sent a tensor of rank"):
            ask(torch.ones(by_parity((hvd.size(),), (hvd.size(), 2))))


def test_scalars_have_no_rows():
    for ask in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with refused("tried to [A-Z]+ a rank-zero tensor"):
            ask(torch.tensor(1.0))
        with refused("tried to [A-Z]+ a rank-zero tensor"):
            ask(torch.tensor(1.0, requires_grad=True))


def test_operations_factors_and_kinds():
    with refused("Mismatched reduce operations"):
        hvd.allreduce(torch.ones(2), op=by_parity(hvd.Sum, hvd.Max))
    with refused("Mismatched prescale and/or postscale factors"):
        hvd.allreduce(torch.ones(2), prescale_factor=by_parity(1.0, 2.0))
    with refused("Mismatched prescale and/or postscale factors"):
        hvd.reducescatter(torch.ones(2), postscale_factor=by_parity(1.0, 2.0))


def test_roots():
    with refused("Mismatched BROADCAST root ranks: One rank specified root rank"):
        hvd.broadcast(torch.ones(2), by_parity(0, 1))
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast(torch.ones(2), hvd.size())
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast_(torch.ones(2), -1)


def test_a_root_outside_of_the_set(sets):
    own = sets[1]
    other = next(rank for rank in range(hvd.size()) if rank not in own.ranks)
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast(torch.ones(2), other, process_set=own)


def test_a_name_that_is_in_flight():
    tensor = torch.ones(3)
    barred = "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor"
    for ask in (
        lambda: hvd.allreduce_async(tensor, name="twice"),
        lambda: hvd.allgather_async(tensor, name="twice"),
        lambda: hvd.broadcast_async(tensor, 0, name="twice"),
        lambda: hvd.reducescatter_async(tensor, name="twice"),
    ):
        # While the other ranks wait in the barrier, rank 0's request cannot be done; then the other way round.
        if hvd.rank() == 0:
            first = ask()
            with pytest.raises(ValueError, match=barred):
                ask()
        hvd.barrier()
        if hvd.rank() != 0:
            first = ask()
        hvd.synchronize(first)


def test_splits_of_one_rank_are_refused_on_all_and_are_its_own_fault_there():
    size = hvd.size()
    tensor = torch.ones(size + 1)
    wrong = hvd.rank() == size - 1
    with pytest.raises(ValueError if wrong else hvd.HorovodInternalError, match="Sum of splits entries is less than"):
        hvd.alltoall(tensor, ([1] * size if wrong else [2] + [1] * (size - 1)))
    with pytest.raises(
        ValueError if wrong else hvd.HorovodInternalError, match="Number of entries in splits does not equal"
    ):
        hvd.alltoall(tensor, ([size + 1] + [0] * size if wrong else [2] + [1] * (size - 1)))


def test_splits():
    size = hvd.size()
    with pytest.raises(ValueError, match="splits not provided, but first dimension of tensor is not an even multiple"):
        hvd.alltoall(torch.ones(size + 1))
    with pytest.raises(ValueError, match="Sum of splits entries is greater than the first dimension"):
        hvd.alltoall(torch.ones(size - 1), torch.ones(size, dtype=torch.int32))
    with pytest.raises(ValueError, match="32-bit"):
        hvd.alltoall(torch.ones(size), torch.ones(size))
    with pytest.raises(ValueError, match="integers"):
        hvd.alltoall(torch.ones(size), [0.5] * size)
    with pytest.raises(ValueError, match="below zero"):
        hvd.alltoall(torch.ones(size), [-1] + [1] * (size - 1))


def test_types_that_no_rank_can_send():
    for tensor in (torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse(), torch.ones(2, device="meta")):
        for ask in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(ValueError, match="Tensor type .* is not supported."):
                ask(tensor)
    with pytest.raises(ValueError, match=r"Tensor type torch.ComplexFloatTensor is not supported\."):
        hvd.broadcast(torch.ones(2, dtype=torch.complex64), 0)


def test_adasum_is_for_allreduce_of_floats():
    with refused("Adasum"):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
    with refused("Adasum needs floating-point tensors"):
        hvd.allreduce(torch.ones(4, dtype=torch.int64), op=hvd.Adasum)


def test_an_operation_that_does_not_exist():
    with pytest.raises(ValueError, match="no reduction operation"):
        hvd.allreduce(torch.ones(2), op=17)


def test_one_member_of_a_group_that_does_not_fit_takes_the_others_along():
    tensors = [torch.ones(3), torch.ones(by_parity(2, 4)), torch.ones(1)]
    with refused("Mismatched ALLREDUCE tensor shapes"):
        hvd.grouped_allreduce(tensors)
    handle = hvd.grouped_allreduce_async_(tensors)
    with refused("Mismatched ALLREDUCE tensor shapes"):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    assert all(torch.all(tensor == 1) for tensor in tensors), "what is refused is left as it was"


def test_a_refused_strided_tensor_is_left_as_it_was():
    tensor = torch.ones(4, by_parity(2, 3)).t()
    with refused("Mismatched ALLREDUCE tensor shapes"):
        hvd.allreduce_(tensor)
    assert torch.all(tensor == 1)
