"""Signatures as text, for tests that compare ours with Horovod's, and those that all front ends have in common."""

from __future__ import annotations

import inspect
from types import ModuleType

# What all front ends export, with Horovod 0.28's parameters and defaults.
BASICS = {
    "init": "(comm=None, process_sets=None)",
    "is_homogeneous": "()",
    "shutdown": "()",
    "is_initialized": "()",
    "start_timeline": "(file_path, mark_cycles=False)",
    "stop_timeline": "()",
    "size": "()",
    "local_size": "()",
    "cross_size": "()",
    "rank": "()",
    "local_rank": "()",
    "cross_rank": "()",
    "mpi_threads_supported": "()",
    "mpi_enabled": "()",
    "mpi_built": "()",
    "gloo_enabled": "()",
    "gloo_built": "()",
    "nccl_built": "()",
    "ddl_built": "()",
    "ccl_built": "()",
    "cuda_built": "()",
    "rocm_built": "()",
}

PROCESS_SETS = {
    "ProcessSet": "(ranks_or_comm)",
    "add_process_set": "(process_set)",
    "remove_process_set": "(process_set)",
}

OPERATIONS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}


def parameters_of(function: object, hvd: ModuleType) -> list[str]:
    """The parameters of `function`, each as it would stand in a signature. `hvd` has the objects that are defaults."""
    objects = {id(hvd.Compression.none): "Compression.none"}
    if hasattr(hvd, "global_process_set"):
        objects[id(hvd.global_process_set)] = "global_process_set"
    written = []
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is not inspect.Parameter.POSITIONAL_ONLY, parameter
        stars = {inspect.Parameter.KEYWORD_ONLY: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = stars + parameter.name
        if parameter.default is not inspect.Parameter.empty:
            default = objects.get(id(parameter.default), repr(parameter.default))
            # Operations are plain numbers.
            if parameter.name == "op" and default == "0":
                default = "Average"
            text += f"={default}"
        written.append(text)
    return written


def assert_serves(found: list[str], signature: str) -> None:
    """Every call that Horovod's signature allows means the same here. More parameters may follow if they have
    defaults."""
    wanted = signature[1:-1].split(", ") if signature != "()" else []
    if wanted and wanted[-1].startswith("**"):
        assert wanted.pop() in found
    assert found[: len(wanted)] == wanted
    for extra in found[len(wanted) :]:
        assert "=" in extra or extra.startswith("**"), f"{extra} would break calls that were right for Horovod"
