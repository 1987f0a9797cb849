"""Process sets: registering them, by list and later, and leaving them. These tests leave the job and come back."""

import os

import pytest
import torch
from reference import contributions, mine, reduced, same

import farandole.torch as hvd

pytestmark = pytest.mark.usefixtures("job")

basics = hvd.mpi_ops._basics


@pytest.fixture(autouse=True)
def back_in_a_dynamic_job():
    hvd.shutdown()
    yield
    if hvd.is_initialized():
        # Who leaves ends the job for all, also for a rank that still waits for an answer in a set of its own.
        hvd.barrier()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


def halves():
    size = int(os.environ["FARANDOLE_SIZE"])
    return list(range(size // 2)), list(range(size // 2, size))


def test_sets_that_are_given_to_init_have_their_ids_in_order():
    low, high = (hvd.ProcessSet(reversed(ranks)) for ranks in halves())
    hvd.init(process_sets=[low, high])
    assert basics._get_process_set_ids_and_ranks() == {0: list(range(hvd.size())), 1: low.ranks, 2: high.ranks}
    assert (low.process_set_id, high.process_set_id, hvd.global_process_set.process_set_id) == (1, 2, 0)
    assert hvd.global_process_set.ranks == list(range(hvd.size()))
    mine_, other = (low, high) if low.included() else (high, low)
    assert mine_.size() == len(mine_.ranks) and mine_.rank() == mine_.ranks.index(hvd.rank())
    assert not other.included() and other.size() == len(other.ranks)
    with pytest.raises(ValueError, match="not part of provided process set"):
        other.rank()
    expected = reduced(contributions(mine_, (4,)), hvd.Sum)
    same(hvd.allreduce(mine((4,)), op=hvd.Sum, process_set=mine_), expected)
    for ask in (
        lambda: hvd.allreduce(torch.ones(2), process_set=other),
        lambda: hvd.grouped_allreduce([torch.ones(2)], process_set=other),
        lambda: hvd.allgather(torch.ones(2), process_set=other),
        lambda: hvd.broadcast_(torch.ones(2), other.ranks[0], process_set=other),
        lambda: hvd.alltoall(torch.ones(2), process_set=other),
        lambda: hvd.reducescatter(torch.ones(2), process_set=other),
        lambda: hvd.barrier(process_set=other),
        lambda: hvd.join(process_set=other),
    ):
        with pytest.raises(ValueError, match=f"Rank {hvd.rank()} is not a member of the provided process set"):
            ask()


def test_duplicates_are_refused_by_number_and_the_rest_stands():
    low, high = halves()
    size = len(low + high)
    with pytest.raises(ValueError, match="process_sets entry number 0 is a duplicate"):
        hvd.init(process_sets=[hvd.ProcessSet(range(size)), hvd.ProcessSet(low)])
    assert hvd.is_initialized()
    hvd.shutdown()
    for entry, extra in ((2, low), (2, range(size)), (2, reversed(high))):
        wanted = [hvd.ProcessSet(low), hvd.ProcessSet(high), hvd.ProcessSet(extra)]
        with pytest.raises(ValueError, match=f"process_sets entry number {entry} is a duplicate"):
            hvd.init(process_sets=wanted)
        assert wanted[2].process_set_id is None
    proper = [hvd.ProcessSet(low), hvd.ProcessSet(high)]
    hvd.init(process_sets=proper)
    assert [process_set.process_set_id for process_set in proper] == [1, 2]
    hvd.barrier()


def test_a_job_that_runs_takes_no_new_sets_from_init():
    hvd.init()
    with pytest.raises(ValueError, match="not one of its process sets"):
        hvd.init(process_sets=[hvd.ProcessSet([0])])
    hvd.barrier()


def test_ranks_that_do_not_exist():
    with pytest.raises(ValueError):
        hvd.init(process_sets=[hvd.ProcessSet([0, 1000])])
    with pytest.raises(ValueError, match="ProcessSet should be initialized with a list of process ranks"):
        hvd.ProcessSet([0, "one"])
    with pytest.raises(ValueError, match="ProcessSet should be initialized with a list of process ranks"):
        hvd.ProcessSet(3)


def test_static_jobs_take_no_more_sets(monkeypatch):
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS")
    only = hvd.ProcessSet([0])
    hvd.init(process_sets=[only])
    with pytest.raises(ValueError, match="Set FARANDOLE_DYNAMIC_PROCESS_SETS=1 to allow adding process sets"):
        hvd.add_process_set([1])
    with pytest.raises(ValueError, match="Set FARANDOLE_DYNAMIC_PROCESS_SETS=1 to allow removing process sets"):
        hvd.remove_process_set(only)
    hvd.barrier()


def test_sets_come_and_go_in_a_dynamic_job(monkeypatch):
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    low, high = halves()
    for _ in range(3):
        first = hvd.add_process_set(low)
        second = hvd.add_process_set(hvd.ProcessSet(high))
        assert first.process_set_id != second.process_set_id
        with pytest.raises(ValueError, match="Attempted to add a duplicate process set"):
            hvd.add_process_set(reversed(low))
        with pytest.raises(ValueError, match="Attempted to add a duplicate process set"):
            hvd.add_process_set(range(hvd.size()))
        own = first if first.included() else second
        same(hvd.allreduce(mine((4,)), op=hvd.Sum, process_set=own), reduced(contributions(own, (4,)), hvd.Sum))
        assert hvd.remove_process_set(first) and hvd.remove_process_set(second)
        assert first.process_set_id is None and first.size() is None and first.rank() is None
        assert not hvd.remove_process_set(first), "it is gone already"
        assert not hvd.remove_process_set(hvd.global_process_set)
        with pytest.raises(ValueError, match="is not registered"):
            hvd.allreduce(torch.ones(2), process_set=own)
    assert basics._get_process_set_ids_and_ranks() == {0: list(range(hvd.size()))}
    hvd.barrier()


def test_sets_of_an_earlier_job_must_be_registered_again():
    low, high = (hvd.ProcessSet(ranks) for ranks in halves())
    hvd.init(process_sets=[low, high])
    hvd.barrier()
    hvd.shutdown()
    assert low.process_set_id is None and hvd.global_process_set.process_set_id == 0
    hvd.init(process_sets=[low, high])
    assert low.process_set_id == 1
    hvd.barrier(process_set=low if low.included() else high)
    hvd.barrier()


def test_a_job_can_be_left_and_joined_again():
    for _ in range(3):
        hvd.init()
        hvd.init()
        assert hvd.is_initialized()
        place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        assert place[0] < place[1] and place[2] < place[3] and place[4] < place[5]
        same(hvd.allreduce(mine((3,)), op=hvd.Sum), reduced(contributions(hvd.global_process_set, (3,)), hvd.Sum))
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()
        with pytest.raises(ValueError, match=r"Farandole has not been initialized; use hvd.init\(\)."):
            hvd.rank()
        with pytest.raises(ValueError, match="not been initialized"):
            hvd.allreduce(torch.ones(2))


def test_a_list_of_all_ranks_is_the_job_and_a_part_of_it_is_not():
    hvd.init(comm=list(reversed(range(len(sum(halves(), []))))))
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(ValueError, match="Farandole initialization failed"):
        hvd.init(comm=[0])
    assert not hvd.is_initialized()
