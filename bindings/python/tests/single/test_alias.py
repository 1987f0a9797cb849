"""The package `horovod` that comes with Farandole: the same objects under Horovod's names, with Horovod's signatures.

Each test runs in this process, with the folder of the alias on the path for as long as it runs; nothing here starts a
job.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

import farandole
from farandole import _native
from signatures import BASICS, OPERATIONS, PROCESS_SETS, assert_serves, parameters_of

pytestmark = pytest.mark.timeout(120)

ALIAS = pathlib.Path(farandole.__file__).parent / "_alias"


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
        _native.set_imported_as_horovod(False)
        if before is None:
            os.environ.pop("FARANDOLE_JOIN_EVERYTHING", None)
        else:
            os.environ["FARANDOLE_JOIN_EVERYTHING"] = before


# What `horovod.torch` exports, with Horovod 0.28's parameters and defaults. A default that is an object stands here as
# its name.
SIGNATURES = {
    **BASICS,
    **PROCESS_SETS,
    "allreduce": "(tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set)",
    "allreduce_async": "(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=global_process_set)",
    "allreduce_": "(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=global_process_set)",
    "allreduce_async_": "(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=global_process_set)",
    "grouped_allreduce": "(tensors, average=None, name=None, compression=Compression.none, op=None, "
    "prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set)",
    "grouped_allreduce_async": "(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=global_process_set)",
    "grouped_allreduce_": "(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=global_process_set)",
    "grouped_allreduce_async_": "(tensors, average=None, name=None, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=global_process_set)",
    "sparse_allreduce_async": "(tensor, name, op, process_set=global_process_set)",
    "allgather": "(tensor, name=None, process_set=global_process_set)",
    "allgather_async": "(tensor, name=None, process_set=global_process_set)",
    "grouped_allgather": "(tensors, name=None, process_set=global_process_set)",
    "grouped_allgather_async": "(tensors, name=None, process_set=global_process_set)",
    "broadcast": "(tensor, root_rank, name=None, process_set=global_process_set)",
    "broadcast_async": "(tensor, root_rank, name=None, process_set=global_process_set)",
    "broadcast_": "(tensor, root_rank, name=None, process_set=global_process_set)",
    "broadcast_async_": "(tensor, root_rank, name=None, process_set=global_process_set)",
    "alltoall": "(tensor, splits=None, name=None, process_set=global_process_set)",
    "alltoall_async": "(tensor, splits=None, name=None, process_set=global_process_set)",
    "reducescatter": "(tensor, name=None, compression=Compression.none, op=Average, process_set=global_process_set, "
    "prescale_factor=1.0, postscale_factor=1.0)",
    "reducescatter_async": "(tensor, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0, "
    "postscale_factor=1.0)",
    "grouped_reducescatter": "(tensors, name=None, compression=Compression.none, op=Average, "
    "process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0)",
    "grouped_reducescatter_async": "(tensors, name=None, op=Average, process_set=global_process_set, "
    "prescale_factor=1.0, postscale_factor=1.0)",
    "join": "(device=-1)",
    "barrier": "(process_set=global_process_set)",
    "poll": "(handle)",
    "synchronize": "(handle)",
    "broadcast_parameters": "(params, root_rank)",
    "broadcast_optimizer_state": "(optimizer, root_rank, model=None)",
    "broadcast_object": "(obj, root_rank=0, name=None, process_set=global_process_set)",
    "allgather_object": "(obj, name=None)",
    "DistributedOptimizer": "(optimizer, named_parameters=None, compression=Compression.none, "
    "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
    "sparse_as_dense=False, process_set=global_process_set)",
    "SyncBatchNorm": "(num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)",
}

# `horovod.run`, likewise.
RUN = (
    "(func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, reset_limit=None, "
    "cooldown_range=None, hosts=None, hostfile=None, host_discovery_script=None, start_timeout=None, ssh_port=None, "
    "ssh_identity_file=None, disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None, "
    "mpi_args=None, network_interface=None, network_interfaces=None, executable=None, np=None, min_np=None, "
    "max_np=None)"
)


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_every_export_has_horovods_signature(name: str) -> None:
    import horovod.torch as hvd

    assert_serves(parameters_of(getattr(hvd, name), hvd), SIGNATURES[name])


def test_run_has_horovods_signature() -> None:
    import horovod
    import horovod.torch as hvd

    assert_serves(parameters_of(horovod.run, hvd), RUN)


def test_operations_have_horovods_numbers() -> None:
    import horovod.torch as hvd

    assert {name: getattr(hvd, name) for name in OPERATIONS} == OPERATIONS


def test_compressors_are_those_of_horovod() -> None:
    import torch

    import horovod.torch as hvd

    for compressor in (hvd.Compression.none, hvd.Compression.fp16):
        small, note = compressor.compress(torch.ones(3))
        assert torch.equal(compressor.decompress(small, note), torch.ones(3))
    assert hvd.Compression.fp16.compress(torch.ones(3))[0].dtype == torch.float16


@pytest.mark.parametrize("submodule", ["mpi_ops", "functions", "optimizer", "compression", "sync_batch_norm"])
def test_submodules_of_torch_are_farandoles_own(submodule: str) -> None:
    import horovod.torch as hvd

    ours = importlib.import_module(f"farandole.torch.{submodule}")
    assert importlib.import_module(f"horovod.torch.{submodule}") is ours
    assert getattr(hvd, submodule) is ours


@pytest.mark.parametrize("submodule", ["basics", "exceptions", "process_sets"])
def test_submodules_of_common_are_farandoles_own(submodule: str) -> None:
    ours = importlib.import_module(f"farandole.{submodule}")
    assert importlib.import_module(f"horovod.common.{submodule}") is ours


def test_exports_are_farandoles_objects() -> None:
    import farandole.torch
    import horovod.torch as hvd
    from horovod.torch.mpi_ops import synchronize

    for name in [*SIGNATURES, "global_process_set", "HorovodInternalError", "Compression"]:
        # Methods of one instance are made anew at each look, but are equal.
        assert getattr(hvd, name) == getattr(farandole.torch, name), name
    assert synchronize is farandole.torch.synchronize


def test_exceptions_have_horovods_bases() -> None:
    from horovod.common.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt

    assert issubclass(HorovodInternalError, RuntimeError)
    assert issubclass(HorovodVersionMismatchError, ImportError)
    assert HostsUpdatedInterrupt(True).skip_sync is True


def test_the_version_satisfies_whoever_asks_for_horovods_last_release() -> None:
    from packaging.version import Version

    import horovod

    assert Version(horovod.__version__) >= Version("0.28.1")
    assert Version(horovod.__version__).local is not None


def test_joining_is_as_in_horovod_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARANDOLE_JOIN_EVERYTHING", raising=False)
    import horovod

    assert os.environ["FARANDOLE_JOIN_EVERYTHING"] == "0"
    monkeypatch.setenv("FARANDOLE_JOIN_EVERYTHING", "1")
    importlib.reload(horovod)
    assert os.environ["FARANDOLE_JOIN_EVERYTHING"] == "1"


ELASTIC = {
    "horovod.torch.elastic": {
        "run": "(func)",
        "TorchState": "(model=None, optimizer=None, **kwargs)",
        "ElasticSampler": "(dataset, shuffle=True, seed=0)",
    },
    "horovod.torch.elastic.state": {
        "StateHandler": "(value)",
        "ModelStateHandler": "(value)",
        "OptimizerStateHandler": "(value)",
        "SamplerStateHandler": "(value)",
        "get_handler_registry": "()",
        "set_handler_registry": "(registry)",
    },
    "horovod.common.elastic": {
        "State": "(bcast_object, get_rank)",
        "ObjectState": "(bcast_object, get_rank, **kwargs)",
        "run_fn": "(func, reset)",
    },
    "horovod.common.exceptions": {"HostsUpdatedInterrupt": "(skip_sync=False)"},
    "horovod.runner.elastic.discovery": {
        "HostDiscoveryScript": "(discovery_script, slots)", "FixedHosts": "(host_slots)"
    },
}


@pytest.mark.parametrize("module_name", sorted(ELASTIC))
def test_the_elastic_api_is_horovods(module_name: str) -> None:
    import horovod.torch as hvd

    module = importlib.import_module(module_name)
    for name, wanted in ELASTIC[module_name].items():
        assert_serves(parameters_of(getattr(module, name), hvd), wanted)


def test_elastic_modules_are_farandoles() -> None:
    import farandole.elastic
    import farandole.torch.elastic
    import horovod.common.elastic
    import horovod.torch.elastic.sampler
    from horovod.runner.elastic import constants, discovery, worker

    assert horovod.torch.elastic is farandole.torch.elastic
    assert horovod.torch.elastic.sampler is farandole.torch.elastic.sampler
    assert horovod.common.elastic is farandole.elastic
    assert worker.HostUpdateResult.mixed == 3
    assert "exceeded limit: 4" in constants.RESET_LIMIT_EXCEEDED_MESSAGE.format(4)
    assert discovery.FixedHosts({"a": 2}).find_available_hosts_and_slots() == {"a": 2}


def test_a_discovery_script_is_asked(tmp_path: pathlib.Path) -> None:
    from horovod.runner.elastic.discovery import HostDiscoveryScript

    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho one:2\necho\necho two\n")
    script.chmod(0o755)
    found = HostDiscoveryScript(str(script), 4).find_available_hosts_and_slots()
    assert list(found.items()) == [("one", 2), ("two", 4)]
    with pytest.raises(ValueError, match="'two'.*names no slots"):
        HostDiscoveryScript(str(script), None).find_available_hosts_and_slots()
    script.write_text("#!/bin/sh\necho no hosts today >&2\nexit 3\n")
    with pytest.raises(RuntimeError, match="(?s)Exit code: 3.*no hosts today"):
        HostDiscoveryScript(str(script), 4).find_available_hosts_and_slots()


def test_extensions_are_those_that_farandole_serves() -> None:
    from horovod.common import util

    assert util.extension_available("torch") and util.extension_available("tensorflow")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    # MXNet is not installed beside the others: it needs an older NumPy.
    assert not util.extension_available("mxnet")
    with pytest.raises(ImportError, match="horovod.mxnet cannot be used: mxnet is not installed"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    with pytest.raises(ImportError, match="pip install mxnet==1.9.1"):
        importlib.import_module("horovod.mxnet")
    with pytest.raises(ImportError, match="farandole.mxnet needs MXNet"):
        importlib.import_module("farandole.mxnet")
    with pytest.raises(ImportError, match="no front end for caffe"):
        util.check_extension("horovod.caffe", "HOROVOD_WITH_CAFFE", __file__, "mpi_lib")
    assert util.gloo_built()


def test_env_sets_variables_for_a_while() -> None:
    from horovod.common.util import env

    os.environ.pop("FARANDOLE_TEST_ABSENT", None)
    with env(FARANDOLE_TEST_ABSENT="there", FARANDOLE_TEST_IGNORED=None):
        assert os.environ["FARANDOLE_TEST_ABSENT"] == "there"
        assert "FARANDOLE_TEST_IGNORED" not in os.environ
    assert "FARANDOLE_TEST_ABSENT" not in os.environ


def test_lists_are_split_into_even_parts() -> None:
    from horovod.common.util import split_list

    assert split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert split_list([1], 2) == [[1], []]


def test_average_and_op_become_one() -> None:
    import horovod.torch as hvd
    from horovod.common.util import get_average_backwards_compatibility_fun

    operation = get_average_backwards_compatibility_fun(hvd)
    assert operation(None, None) == hvd.Average
    assert operation(hvd.Max, None) == hvd.Max
    with pytest.warns(DeprecationWarning):
        assert operation(None, False) == hvd.Sum
    with pytest.raises(ValueError, match="supersedes average"):
        operation(hvd.Sum, True)


def test_functions_run_in_threads() -> None:
    import threading

    from horovod.runner.util.threads import execute_function_multithreaded, in_thread, on_event

    seen: list[int] = []
    in_thread(seen.append, (1,)).join(10)
    assert seen == [1]
    with pytest.raises(ValueError, match="must be a tuple"):
        in_thread(seen.append, 1)
    event, stop = threading.Event(), threading.Event()
    waiting = on_event(event, seen.append, (2,), stop=stop, check_stop_interval_s=0.01)
    event.set()
    waiting.join(10)
    assert seen == [1, 2]
    assert execute_function_multithreaded(lambda a, b: a + b, [[1, 2], [3, 4]]) == {0: 3, 1: 7}
    with pytest.raises(RuntimeError, match="did not complete"):
        execute_function_multithreaded(int, [["no number"]])


def test_the_environment_tells_rank_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.common.util.env import get_env_rank_and_size

    for name in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        monkeypatch.delenv(f"{name}_RANK", raising=False)
        monkeypatch.delenv(f"{name}_SIZE", raising=False)
    assert get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(RuntimeError, match="PMI_SIZE"):
        get_env_rank_and_size()
    monkeypatch.setenv("PMI_SIZE", "4")
    assert get_env_rank_and_size() == (1, 4)


def test_importing_the_alias_costs_no_framework() -> None:
    """`import horovod` alone must load no framework: launchers and notebooks import it in processes that never
    train."""
    check = (
        "import sys, horovod; "
        "assert not {'torch', 'tensorflow', 'keras'} & set(sys.modules), 'a framework was loaded'"
    )
    path = os.pathsep.join([str(ALIAS), str(ALIAS.parent.parent)])
    subprocess.run([sys.executable, "-c", check], env={**os.environ, "PYTHONPATH": path}, check=True, timeout=60)


def test_importing_the_front_end_does_not_load_torchs_compiler() -> None:
    """It takes as long as torch itself, and scripts that make no optimizer and compile nothing do without it."""
    check = "import sys, farandole.torch; assert 'torch._dynamo' not in sys.modules, 'the compiler was loaded'"
    path = str(ALIAS.parent.parent)
    subprocess.run([sys.executable, "-c", check], env={**os.environ, "PYTHONPATH": path}, check=True, timeout=60)


def test_horovodrun_becomes_the_launcher(tmp_path: pathlib.Path) -> None:
    launcher = tmp_path / "farandole"
    launcher.write_text('#!/bin/sh\necho "$@"\n')
    launcher.chmod(0o755)
    script = f"""
import sys
sys.executable = {str(tmp_path / "python")!r}
sys.argv = ["horovodrun", "-np", "2", "python", "train.py", "--lr", "0.1"]
from horovod.runner.launch import run_commandline
run_commandline()
"""
    path = os.pathsep.join([str(ALIAS), str(ALIAS.parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "run --horovod -np 2 python train.py --lr 0.1\n"


def test_messages_call_the_library_what_the_script_imports() -> None:
    def message() -> str:
        with pytest.raises(ValueError) as raised:
            _native.rank()
        return str(raised.value)

    assert message() == "Farandole has not been initialized; use hvd.init()."
    importlib.import_module("horovod.torch")
    assert message() == "Horovod has not been initialized; use hvd.init()."
