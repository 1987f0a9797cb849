"""`horovod.common.util`: the small functions that scripts and Horovod's own tests import from there.

Horovod asks here which of its extensions were compiled, by loading each in a process of its own. Farandole compiles
none, so the same questions are answered by looking whether the framework is installed, and cost nothing. Not there:
everything that only Horovod's installation used.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from farandole.basics import basics

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

# The front ends that Farandole has.
_FRONT_ENDS = {"mxnet": "mxnet", "tensorflow": "tensorflow", "torch": "torch"}

Answer = TypeVar("Answer")


def _cache(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """Remembers the answers of `function`, one for each set of arguments."""
    answers: dict[Any, Answer] = {}

    @wraps(function)
    def remembering(*args: Any, **kwargs: Any) -> Answer:
        key = (args, frozenset(kwargs.items()))
        if key not in answers:
            answers[key] = function(*args, **kwargs)
        return answers[key]

    return remembering


def get_ext_suffix() -> str:
    """How the name of a compiled extension ends on this Python."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where Horovod would have put the compiled extension of the package at `pkg_path`."""
    return os.path.join(os.path.dirname(pkg_path), *args[:-1], args[-1] + get_ext_suffix())


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises `ImportError` unless Farandole serves the framework that `ext_name` ends with, and it is installed."""
    framework = ext_name.rsplit(".", 1)[-1]
    if framework not in _FRONT_ENDS:
        raise ImportError(
            f"Extension {ext_name} has not been built: Farandole has no front end for {framework} yet. "
            f"{ext_env_var} changes nothing, because Farandole compiles nothing on this machine."
        )
    if not extension_available(framework):
        raise ImportError(f"Extension {ext_name} cannot be used: {_FRONT_ENDS[framework]} is not installed.")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether `horovod.<ext_base_name>` can be used here."""
    module = _FRONT_ENDS.get(ext_base_name)
    spec = None if module is None else importlib.util.find_spec(module)
    # A folder of that name somewhere on the path is no framework; to Python it is a package without a file.
    available = spec is not None and spec.origin is not None
    if verbose:
        print(f"Extension {ext_base_name} {'can' if available else 'cannot'} be used.")
    return available


@_cache
def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    return importlib.import_module(f"horovod.{ext_base_name}")._check_has_gpu()


def mpi_built(verbose: bool = False) -> bool:
    """Whether jobs can be started by `mpirun`."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Whether jobs can be started without MPI."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """The version code of NCCL where it can be used, otherwise 0."""
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM's DDL can be used."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Whether Intel's oneCCL can be used."""
    return basics.ccl_built()


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables for a while; those given as None are left alone."""
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function that makes one operation of the parameters `op` and, deprecated, `average`."""

    def operation(op: Any, average: bool | None) -> Any:
        if op is not None:
            if average is not None:
                raise ValueError("The op parameter supersedes average. Please provide only one of them.")
            return op
        if average is None:
            return reduce_ops.Average
        warnings.warn("Parameter `average` has been replaced with `op` and will be removed in v1.0", DeprecationWarning)
        return reduce_ops.Average if average else reduce_ops.Sum

    return operation


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether `num_rank` is a power of two. Horovod's Adasum needs one; Farandole's does not."""
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(l: list[Any], n: int) -> list[list[Any]]:  # noqa: E741
    """`l` in `n` consecutive parts whose lengths differ by one at most, longer ones first."""
    length, longer = divmod(len(l), n)
    ends = [part * length + min(part, longer) for part in range(n + 1)]
    return [l[begin:end] for begin, end in zip(ends, ends[1:])]


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Horovod must be built again for each version of a framework. Farandole need not, so every version will do."""


def is_iterable(x: Any) -> bool:
    """Whether one can iterate over `x`."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


@_cache
def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target`, which has the form major.minor.patch, or newer."""
    from packaging import version

    if not (isinstance(ver, str) and isinstance(target, str)):
        raise ValueError(f"versions are given as strings, not as {type(ver)} and {type(target)}")
    if target.count(".") != 2:
        raise ValueError(f"a target version has the form major.minor.patch; {target} has not")
    return version.parse(ver) >= version.parse(target)
