"""`horovod.mxnet`: the same objects under Horovod's names, with Horovod's signatures."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from collections.abc import Iterator

import pytest

import farandole
import farandole.mxnet
from jobs import run_job
from signatures import BASICS, OPERATIONS, PROCESS_SETS, assert_serves, parameters_of

pytestmark = pytest.mark.timeout(90)

ALIAS = pathlib.Path(farandole.__file__).parent / "_alias"

_FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
_REDUCES = f"average=None, name=None, priority=0, {_FACTORS}, process_set=global_process_set, op=None"
_MOVES = "name=None, priority=0, process_set=global_process_set"
_SCATTERS = f"op=Average, {_MOVES}, {_FACTORS}"

# What `horovod.mxnet` exports, with Horovod 0.28's parameters and defaults.
SIGNATURES = {
    **{name: text for name, text in BASICS.items() if name != "is_homogeneous"},
    **PROCESS_SETS,
    "allreduce": f"(tensor, {_REDUCES})",
    "allreduce_": f"(tensor, {_REDUCES})",
    "grouped_allreduce": f"(tensors, {_REDUCES})",
    "grouped_allreduce_": f"(tensors, {_REDUCES})",
    "allgather": f"(tensor, {_MOVES})",
    "grouped_allgather": f"(tensors, {_MOVES})",
    "broadcast": f"(tensor, root_rank, {_MOVES})",
    "broadcast_": f"(tensor, root_rank, {_MOVES})",
    "alltoall": f"(tensor, splits=None, {_MOVES})",
    "reducescatter": f"(tensor, {_SCATTERS})",
    "grouped_reducescatter": f"(tensors, {_SCATTERS})",
    "broadcast_parameters": "(params, root_rank=0, prefix=None)",
    "broadcast_object": "(obj, root_rank=0, name=None)",
    "allgather_object": "(obj, name=None)",
    "DistributedOptimizer": "(optimizer, gradient_predivide_factor=1.0, num_groups=0, process_set=global_process_set)",
    "DistributedTrainer": "(params, optimizer, optimizer_params=None, compression=Compression.none, "
    "gradient_predivide_factor=1.0, prefix=None, num_groups=0, process_set=global_process_set)",
}


@pytest.fixture(autouse=True)
def alias_on_the_path() -> Iterator[None]:
    """The alias can be imported within a test and leaves no trace after it."""
    before = os.environ.get("FARANDOLE_JOIN_EVERYTHING")
    sys.path.insert(0, str(ALIAS))
    try:
        yield
    finally:
        sys.path.remove(str(ALIAS))
        for name in [name for name in sys.modules if name == "horovod" or name.startswith("horovod.")]:
            del sys.modules[name]
        if before is None:
            os.environ.pop("FARANDOLE_JOIN_EVERYTHING", None)


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_everything_has_horovods_signature(name: str) -> None:
    hvd = importlib.import_module("horovod.mxnet")
    assert_serves(parameters_of(getattr(hvd, name), hvd), SIGNATURES[name])
    assert getattr(hvd, name) is getattr(farandole.mxnet, name)


def test_modules_and_operations_are_farandoles_own() -> None:
    for part in ("mpi_ops", "functions", "compression"):
        alias = importlib.import_module(f"horovod.mxnet.{part}")
        assert alias is importlib.import_module(f"farandole.mxnet.{part}")
    hvd = importlib.import_module("horovod.mxnet")
    assert {name: getattr(hvd, name) for name in OPERATIONS} == OPERATIONS
    assert hvd.Compression.fp16 is farandole.mxnet.Compression.fp16


def test_the_extension_is_there_and_sees_no_gpu() -> None:
    from horovod.common import util

    util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    assert util.extension_available("mxnet") and not util.gpu_available("mxnet")


def test_a_script_for_horovod_runs_unmodified() -> None:
    job = run_job(
        2,
        """
        import horovod.mxnet as hvd
        import mxnet as mx
        hvd.init()
        print(hvd.allreduce(mx.nd.ones((2,)), average=False).asnumpy().tolist(), flush=True)
        """,
        flags=["--horovod"],
        seconds=60,
    )
    assert job.code == 0 and job.lines(0) == ["[2.0, 2.0]"], job
