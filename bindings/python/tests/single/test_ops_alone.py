"""One process that nobody launched is a job of one rank, in which every operation works."""

import os

import pytest
import torch

import farandole.torch as hvd
from farandole import basics, process_sets

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def job():
    hvd.init()
    yield
    hvd.shutdown()


def test_place():
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)


def test_every_operation():
    for dtype in FLOATS + [torch.int64, torch.bool, torch.uint32]:
        tensor = torch.ones(3, 2).to(dtype)
        for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
            assert torch.equal(hvd.allreduce(tensor, op=op), tensor)
            assert torch.equal(hvd.reducescatter(tensor, op=op), tensor)
        if dtype in FLOATS:
            assert torch.equal(hvd.allreduce(tensor, op=hvd.Adasum), tensor)
        for result in (hvd.allgather(tensor), hvd.broadcast(tensor, 0), hvd.alltoall(tensor), hvd.allreduce_(tensor)):
            assert torch.equal(result, tensor)
        output, received = hvd.alltoall(tensor, [3])
        assert torch.equal(output, tensor) and received.tolist() == [3]
        for results in (
            hvd.grouped_allreduce([tensor, tensor]),
            hvd.grouped_allgather([tensor, tensor]),
            hvd.grouped_reducescatter([tensor, tensor]),
        ):
            assert all(torch.equal(result, tensor) for result in results)
    assert hvd.join() == 0
    hvd.barrier()


def test_a_new_tensor_is_not_the_old_one():
    tensor = torch.ones(3)
    for result in (hvd.allreduce(tensor), hvd.broadcast(tensor, 0), hvd.allgather(tensor), hvd.reducescatter(tensor)):
        result += 1
        assert torch.all(tensor == 1)


def test_gradients():
    for operation in (
        lambda tensor: hvd.allreduce(tensor),
        lambda tensor: hvd.allgather(tensor),
        lambda tensor: hvd.broadcast(tensor, 0),
        lambda tensor: hvd.alltoall(tensor),
        lambda tensor: hvd.reducescatter(tensor),
        lambda tensor: hvd.grouped_allreduce([tensor])[0],
        lambda tensor: hvd.grouped_allgather([tensor])[0],
        lambda tensor: hvd.grouped_reducescatter([tensor])[0],
    ):
        tensor = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(operation, (tensor,))


def test_factors():
    assert hvd.allreduce(torch.ones(2), prescale_factor=2.0, postscale_factor=3.0).tolist() == [6, 6]


def test_what_is_built():
    assert hvd.gloo_built() and hvd.gloo_enabled() and hvd.mpi_built()
    for built in (hvd.mpi_enabled, hvd.ddl_built, hvd.ccl_built, hvd.rocm_built):
        assert built() is False
    assert hvd.cuda_built() is torch.cuda.is_available()
    if torch.version.cuda is None:
        assert hvd.nccl_built() >= 0
    else:
        major, minor, patch = torch.cuda.nccl.version()[:3]
        assert hvd.nccl_built() == major * 10000 + minor * 100 + patch
    with pytest.raises(ValueError, match="MPI is not enabled"):
        hvd.mpi_threads_supported()


def test_a_process_without_a_job_has_no_place():
    hvd.shutdown()
    for ask in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size):
        with pytest.raises(ValueError, match=r"Farandole has not been initialized; use hvd.init\(\)."):
            ask()
    for ask in (lambda: hvd.start_timeline("never"), hvd.stop_timeline, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(ValueError, match="has not been initialized"):
            ask()


def test_timelines_are_for_jobs_that_were_started_with_the_variable(monkeypatch):
    for variable in ("HOROVOD_TIMELINE", "FARANDOLE_TIMELINE"):
        monkeypatch.delenv(variable, raising=False)
    hvd.shutdown()
    hvd.init()
    with pytest.raises(ValueError, match="Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage."):
        hvd.start_timeline("never")
    assert not os.path.exists("never")


def test_the_global_set_and_sets_of_their_own():
    assert hvd.global_process_set.ranks == [0] and hvd.global_process_set.included()
    assert (hvd.global_process_set.size(), hvd.global_process_set.rank()) == (1, 0)
    unregistered = hvd.ProcessSet([0])
    assert unregistered.size() is None and unregistered.rank() is None and unregistered.included()
    with pytest.raises(ValueError, match="is not registered"):
        hvd.allreduce(torch.ones(1), process_set=unregistered)
    with pytest.raises(ValueError, match="entry number 0 is a duplicate"):
        hvd.init(process_sets=[unregistered])
    with pytest.raises(ValueError, match='or "dynamic"'):
        hvd.init(process_sets="static")


class Communicator:
    """What we need of mpi4py's."""

    def __init__(self, rank=0, size=1, gathered=None):
        self.rank, self.size, self.gathered = rank, size, gathered

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def allgather(self, value):
        return [value] if self.gathered is None else self.gathered


def test_a_communicator_of_the_whole_job_is_accepted_and_another_is_not():
    hvd.shutdown()
    whole = Communicator()
    hvd.init(comm=whole)
    assert hvd.global_process_set.mpi_comm is whole
    assert hvd.mpi_ops._basics._comm_process_set_id(whole) == 0
    hvd.shutdown()
    with pytest.raises(ValueError, match="Farandole initialization failed. comm has rank 1 of 2"):
        hvd.init(comm=Communicator(1, 2))
    with pytest.raises(ValueError, match="Invalid type of argument comm"):
        hvd.init(comm=3)


def test_sets_of_communicators_are_registered_on_all_ranks_in_the_same_order():
    """What each of four ranks works out that has split the job into even and odd ranks."""
    low_rank_first = [[0, 2], [1, 3], [0, 2], [1, 3]]
    for rank in range(4):
        split = hvd.ProcessSet(Communicator(rank // 2, 2, gathered=low_rank_first[rank]))
        listed = hvd.ProcessSet([0])
        job_wide = Communicator(rank, 4, gathered=low_rank_first)
        assert basics._distinct_ranks([split, listed, listed], job_wide) == [[0, 2], [1, 3], [0]]
        assert split.ranks == low_rank_first[rank]
    with pytest.raises(NotImplementedError):
        basics._distinct_ranks([hvd.ProcessSet(Communicator())], None)
    with pytest.raises(NotImplementedError):
        hvd.add_process_set(hvd.ProcessSet(Communicator()))


def test_horovods_other_names():
    from farandole.torch import mpi_ops

    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0]}
    assert mpi_ops._basics._process_set_size(0) == 1 and mpi_ops._basics._process_set_rank(0) == 0
    assert process_sets._temp_process_set_object(0).size() == 1
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
