"""Ranks that have no more data, while the others go on."""

import pytest
import torch
from reference import contribution, reduced, rows_of, same

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")


def those_who_go_on(joined, process_set=hvd.global_process_set):
    return [rank for rank in process_set.ranks if rank != joined]


def test_every_operation_goes_on_without_the_rank_that_joined():
    size = hvd.size()
    for joined in range(size):
        others = those_who_go_on(joined)
        if hvd.rank() != joined:
            tensor = contribution(hvd.rank(), (4, 2))
            theirs = [contribution(rank, (4, 2)) for rank in others]
            zeros = torch.zeros(4, 2)
            same(hvd.allreduce(tensor, op=hvd.Sum, name="sum"), reduced(theirs, hvd.Sum))
            same(hvd.allreduce(tensor, name="average"), reduced([*theirs, zeros], hvd.Average))
            same(hvd.allreduce(tensor, op=hvd.Max, name="max"), reduced(theirs, hvd.Max))
            same(hvd.allreduce(tensor, op=hvd.Product, name="product"), reduced(theirs, hvd.Product))
            same(hvd.allgather(tensor, name="gather"), torch.cat(theirs))
            same(hvd.broadcast(tensor, others[-1], name="weights"), contribution(others[-1], (4, 2)))
            scattered = rows_of(hvd.global_process_set, reduced(theirs, hvd.Sum))
            same(hvd.reducescatter(tensor, op=hvd.Sum, name="scatter"), scattered)
            rows = [1 if rank in others else 0 for rank in range(size)]
            output, received = hvd.alltoall(torch.full((len(others),), hvd.rank()), rows, name="rows")
            assert output.tolist() == others and received.tolist() == rows
            with pytest.raises(hvd.HorovodInternalError, match="has joined and has nothing to send"):
                hvd.broadcast(tensor, joined, name="no root")
        last = hvd.join()
        assert last != joined
        assert hvd.allgather(torch.tensor([last])).tolist() == [last] * size


def test_join_within_a_set(sets):
    for process_set in sets[1:]:
        first = process_set.ranks[0]
        others = those_who_go_on(first, process_set)
        if hvd.rank() != first:
            theirs = [contribution(rank, (3,)) for rank in others]
            result = hvd.allreduce(contribution(hvd.rank(), (3,)), op=hvd.Sum, process_set=process_set)
            same(result, reduced(theirs, hvd.Sum))
        last = hvd.join(process_set=process_set)
        assert last in process_set.ranks and (last != first or not others)


def test_uneven_numbers_of_batches():
    steps = hvd.rank() + 1
    for step in range(steps):
        result = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="gradient")
        assert torch.all(result == hvd.size() - step)
    assert hvd.join(device=-1) == hvd.size() - 1


def test_groups_go_on_too():
    if hvd.rank() != 0:
        pair = hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], op=hvd.Sum, name="pair")
        assert all(torch.all(result == hvd.size() - 1) for result in pair)
    hvd.join()


def test_nameless_operations_find_each_other_after_a_join_of_ranks_that_made_fewer_of_them():
    for joined in range(hvd.size()):
        if hvd.rank() != joined:
            others = those_who_go_on(joined)
            assert hvd.allgather(torch.tensor([hvd.rank()])).tolist() == others
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == len(others)
        hvd.join()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_jobs_that_behave_like_horovod_refuse_what_it_refuses(monkeypatch):
    monkeypatch.setenv("FARANDOLE_JOIN_EVERYTHING", "0")
    hvd.shutdown()
    hvd.init()
    try:
        for joined in range(hvd.size()):
            if hvd.rank() != joined:
                tensor = torch.ones(hvd.size())
                for word, ask in {
                    "Allgather": lambda tensor=tensor: hvd.allgather(tensor),
                    "Broadcast": lambda tensor=tensor: hvd.broadcast(tensor, hvd.size() - 1),
                    "Alltoall": lambda tensor=tensor: hvd.alltoall(tensor),
                    "Reducescatter": lambda tensor=tensor: hvd.reducescatter(tensor),
                }.items():
                    with pytest.raises(
                        hvd.HorovodInternalError, match=f"{word} is not supported with Join at this time"
                    ):
                        ask()
                assert torch.all(hvd.allreduce(tensor, op=hvd.Sum) == hvd.size() - 1)
            assert hvd.join() != joined
    finally:
        hvd.shutdown()
        monkeypatch.undo()
        hvd.init()
