"""The packages `horovod.tensorflow` and `horovod.keras`: the same objects under Horovod's names, with Horovod's
signatures.

They are looked at in a process of their own, which says in JSON what it found, so that TensorFlow does not stay loaded
in the process of the other tests. Nothing here starts a job.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import farandole
from signatures import BASICS, OPERATIONS, PROCESS_SETS, assert_serves

pytestmark = pytest.mark.timeout(180)

PACKAGE = pathlib.Path(farandole.__file__).parent.parent
ALIAS = PACKAGE / "farandole" / "_alias"
TESTS = pathlib.Path(__file__).parent.parent

VALUES = {
    "broadcast_global_variables": "(root_rank)",
    "allgather": "(value, name=None)",
    "broadcast": "(value, root_rank, name=None)",
    "reducescatter": "(value, name=None, op=Average)",
    "load_model": "(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, "
    "legacy_opts=False)",
}

CALLBACKS = {
    "BroadcastGlobalVariablesCallback": "(root_rank, device='', local_variables=None)",
    "MetricAverageCallback": "(device='')",
    "LearningRateScheduleCallback": "(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
    "momentum_correction=True, steps_per_epoch=None)",
    "LearningRateWarmupCallback": "(initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, "
    "verbose=0)",
}

KERAS_ELASTIC = {
    "KerasState": "(model, optimizer=None, **kwargs)",
    "CommitStateCallback": "(state, batches_per_commit=1)",
    "UpdateBatchStateCallback": "(state)",
    "UpdateEpochStateCallback": "(state)",
}

# What each module exports, with Horovod 0.28's parameters and defaults. A default that is an object stands here as its
# name.
SIGNATURES: dict[str, dict[str, str]] = {
    "horovod.tensorflow": {
        **BASICS,
        **PROCESS_SETS,
        "allreduce": "(tensor, average=None, device_dense='', device_sparse='', compression=Compression.none, op=None, "
        "prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=global_process_set, "
        "ignore_name_scope=False)",
        "grouped_allreduce": "(tensors, average=None, device_dense='', device_sparse='', compression=Compression.none, "
        "op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set, ignore_name_scope=False, "
        "name=None)",
        "reducescatter": "(tensor, device_dense='', compression=Compression.none, op=Average, name=None, "
        "process_set=global_process_set, ignore_name_scope=False, prescale_factor=1.0, postscale_factor=1.0)",
        "grouped_reducescatter": "(tensors, device_dense='', compression=Compression.none, op=Average, "
        "process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0)",
        "allgather": "(tensor, name=None, ignore_name_scope=False, process_set=global_process_set)",
        "grouped_allgather": "(tensors, name=None, ignore_name_scope=False, process_set=global_process_set)",
        "broadcast": "(tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set)",
        "broadcast_": "(variables, root_rank, name=None, process_set=global_process_set)",
        "alltoall": "(tensor, splits=None, name=None, ignore_name_scope=False, process_set=global_process_set)",
        "join": "()",
        "size_op": "(process_set_id=0, name=None)",
        "process_set_included_op": "(process_set_id=0, name=None)",
        "local_size_op": "(name=None)",
        "rank_op": "(name=None)",
        "local_rank_op": "(name=None)",
        "broadcast_variables": "(variables, root_rank, process_set=global_process_set, inplace=False)",
        "broadcast_object": "(obj, root_rank=0, session=None, name=None, process_set=global_process_set)",
        "broadcast_object_fn": "(root_rank=0, session=None, name=None, process_set=global_process_set)",
        "allgather_object": "(obj, session=None, name=None, process_set=global_process_set)",
        "broadcast_global_variables": "(root_rank)",
        "BroadcastGlobalVariablesHook": "(root_rank, device='')",
        "DistributedOptimizer": "(optimizer, name=None, use_locking=False, device_dense='', device_sparse='', "
        "compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average, "
        "gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None, "
        "process_set=global_process_set, scale_local_gradients=True)",
        "DistributedGradientTape": "(gradtape, device_dense='', device_sparse='', compression=Compression.none, "
        "sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
        "process_set=global_process_set, scale_local_gradients=True)",
        "PartialDistributedGradientTape": "(gradtape, device_dense='', device_sparse='', compression=Compression.none, "
        "sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
        "process_set=global_process_set, local_layers=None, scale_local_gradients=True)",
        "SyncBatchNormalization": "(fused=False, **kwargs)",
        "_executing_eagerly": "()",
        "vars_to_refs": "(vars)",
        "refs_to_vars": "(refs)",
        "gpu_available": "(ext_base_name, verbose=False)",
    },
    "horovod.tensorflow.elastic": {
        "run": "(func)",
        "TensorFlowState": "(variables=None, session=None, **kwargs)",
        "TensorFlowKerasState": "(model, optimizer=None, backend=None, **kwargs)",
    },
    "horovod.tensorflow.data.compute_service": {
        "tf_data_service": "(compute_config, rank)",
        "send_to_data_service": "(dataset, compute_config, rank, size=None, processing_mode='distributed_epoch', "
        "reuse_dataset=False, round_robin=False)",
        "compute_worker_fn": "(compute_config)",
        "TfDataServiceConfig": "(dispatchers, workers_per_dispatcher, dispatcher_side, addresses, key, timeout=60)",
    },
    "horovod.tensorflow.data.compute_worker": {"main": "(dispatchers, dispatcher_side, configfile, timeout)"},
    "horovod.tensorflow.keras": {
        **BASICS,
        **PROCESS_SETS,
        **VALUES,
        "DistributedOptimizer": "(optimizer, name=None, device_dense='', device_sparse='', "
        "compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, "
        "backward_passes_per_step=1, average_aggregated_gradients=False, num_groups=0, groups=None, "
        "process_set=global_process_set, scale_local_gradients=True)",
        "allreduce": "(value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, "
        "compression=Compression.none)",
    },
    "horovod.tensorflow.keras.callbacks": {
        **CALLBACKS,
        "BestModelCheckpoint": "(monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', "
        "save_freq='epoch')",
    },
    "horovod.tensorflow.keras.elastic": KERAS_ELASTIC,
    "horovod.keras": {
        **BASICS,
        **VALUES,
        "DistributedOptimizer": "(optimizer, name=None, device_dense='', device_sparse='', "
        "compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, num_groups=0, "
        "groups=None)",
        "PartialDistributedOptimizer": "(optimizer, name=None, device_dense='', device_sparse='', "
        "compression=Compression.none, sparse_as_dense=False, gradient_predivide_factor=1.0, op=Average, "
        "backward_passes_per_step=1, average_aggregated_gradients=False, groups=None, process_set=global_process_set, "
        "local_layers=None, scale_local_gradients=True)",
        # Horovod has average=True here, which means the same, but refuses every `op` that is given without
        # average=None.
        "allreduce": "(value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, "
        "compression=Compression.none)",
    },
    "horovod.keras.callbacks": {
        **CALLBACKS,
        "BestModelCheckpoint": "(monitor='val_loss', verbose=0, mode='auto', save_freq='epoch')",
    },
    "horovod.keras.elastic": KERAS_ELASTIC,
    "horovod._keras": {
        "create_distributed_optimizer": "(keras, optimizer, name, device_dense, device_sparse, compression, "
        "sparse_as_dense, gradient_predivide_factor, op, backward_passes_per_step=1, "
        "average_aggregated_gradients=False, groups=None, process_set=global_process_set, scale_local_gradients=True)",
        "allreduce": "(backend, value, name, average, prescale_factor, postscale_factor, op, compression)",
        "allgather": "(backend, value, name)",
        "broadcast": "(backend, value, root_rank, name)",
        "reducescatter": "(backend, value, name, op)",
        "broadcast_global_variables": "(backend, root_rank)",
        "load_model": "(keras, wrap_optimizer, filepath, custom_optimizers, custom_objects, legacy_opts=False)",
    },
}

SUBMODULES = [
    "tensorflow.mpi_ops",
    "tensorflow.util",
    "tensorflow.compression",
    "tensorflow.functions",
    "tensorflow.gradient_aggregation",
    "tensorflow.gradient_aggregation_eager",
    "tensorflow.sync_batch_norm",
    "tensorflow.elastic",
    "tensorflow.data.compute_service",
    "tensorflow.data.compute_worker",
    "tensorflow.keras.callbacks",
    "tensorflow.keras.elastic",
    "keras.callbacks",
    "keras.elastic",
]

LOOK = """
import importlib, json, sys
from signatures import parameters_of
names, submodules = json.load(sys.stdin)
import horovod.tensorflow as hvd
found = {"signatures": {}, "same": {}, "reached": {}}
for module_name, exported in names.items():
    module = importlib.import_module(module_name)
    found["signatures"][module_name] = {
        name: parameters_of(getattr(module, name), hvd) for name in exported if hasattr(module, name)
    }
for name in submodules:
    package, _, last = name.rpartition(".")
    ours = importlib.import_module("farandole." + name)
    found["same"][name] = importlib.import_module("horovod." + name) is ours
    found["reached"][name] = getattr(importlib.import_module("horovod." + package), last) is ours
import farandole.tensorflow, horovod._keras.callbacks, horovod._keras.elastic
pairs = [(horovod._keras.callbacks, "callbacks"), (horovod._keras.elastic, "elastic")]
found["parts"] = {
    f"{package} {name}": issubclass(
        getattr(importlib.import_module(f"horovod.{package}.{module}"), name.removesuffix("Impl")), getattr(parts, name)
    )
    for parts, module in pairs for name in parts.__all__ for package in ("keras", "tensorflow.keras")
}
found["set"] = hvd.global_process_set is farandole.tensorflow.global_process_set
found["operations"] = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
found["torch"] = "torch" in sys.modules
print(json.dumps(found))
"""


def run_python(script: str, *, path: list[pathlib.Path], given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a script with the alias on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "KERAS_BACKEND": "tensorflow"}
    return subprocess.run(
        [sys.executable, "-c", script], input=given, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What a process that has imported everything says about it."""
    names = {module: list(exported) for module, exported in SIGNATURES.items()}
    done = run_python(LOOK, path=[ALIAS, PACKAGE, TESTS], given=json.dumps([names, SUBMODULES]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", SIGNATURES)
def test_every_export_has_horovods_signature(module: str, found: dict[str, Any]) -> None:
    for name, signature in SIGNATURES[module].items():
        assert name in found["signatures"][module], f"{module} has no {name}"
        assert_serves(found["signatures"][module][name], signature)


def test_submodules_are_farandoles_own(found: dict[str, Any]) -> None:
    assert found["same"] == dict.fromkeys(SUBMODULES, True)
    assert found["reached"] == dict.fromkeys(SUBMODULES, True)
    assert found["set"]


def test_callbacks_are_made_of_the_parts_that_both_packages_share(found: dict[str, Any]) -> None:
    assert len(found["parts"]) == 14
    assert all(found["parts"].values()), found["parts"]


def test_operations_have_horovods_numbers(found: dict[str, Any]) -> None:
    assert found["operations"] == list(OPERATIONS.values())


def test_tensorflow_does_not_bring_pytorch_along(found: dict[str, Any]) -> None:
    assert not found["torch"]


@pytest.mark.parametrize(
    "module, missing",
    [("horovod.tensorflow", "tensorflow"), ("horovod.tensorflow.keras", "tensorflow"), ("horovod.keras", "keras")],
)
def test_a_missing_framework_is_named_with_the_command_that_installs_it(module: str, missing: str) -> None:
    script = f"""
import importlib.util, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == {missing!r} else real(name, package)
try:
    import {module}
except ImportError as error:
    print(error)
"""
    done = run_python(script, path=[ALIAS, PACKAGE])
    assert done.returncode == 0, done.stderr
    assert f"pip install {missing}" in done.stdout


def test_the_compute_worker_is_a_program_under_both_names() -> None:
    for name in ("horovod", "farandole"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ALIAS), str(PACKAGE)])}
        words = [sys.executable, "-m", f"{name}.tensorflow.data.compute_worker", "--help"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in ("configfile", "--dispatchers", "--dispatcher-side", "--timeout"))
