"""Every file here is run by all ranks of a job at once: `farandole run -np 2 python -m pytest tests/mxnet`.

The ranks go through the same tests in the same order. A rank that fails ends there, and the others hear of it from the
engine; so the first failure is the one to look at.
"""

import pytest

import farandole.mxnet as hvd


@pytest.fixture(scope="module")
def job():
    """This process as a rank of a dynamic job, for the tests of one file."""
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture(scope="module")
def sets(job):
    """The process sets that this rank is in: the world, one with every other rank, and all but the last rank."""
    size = hvd.size()
    wanted = [range(0, size, 2), range(1, size, 2)]
    if size > 2:
        wanted.append(range(size - 1))
    added = [hvd.add_process_set(list(ranks)) for ranks in wanted]
    yield [hvd.global_process_set] + [process_set for process_set in added if process_set.included()]
    if hvd.is_initialized():
        for process_set in added:
            hvd.remove_process_set(process_set)
