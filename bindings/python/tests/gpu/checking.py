"""What the checks of tensors in device memory share (`check.py`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import farandole.torch as hvd
from farandole import _native
from farandole.torch import run_ahead

sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))
import reference

ALONE = hvd.ProcessSet([0])
"""A process set of rank 0."""

Check = Callable[[torch.device], None]


def same(actual: torch.Tensor, expected: torch.Tensor, device: torch.device) -> None:
    """Fails unless a result lies on this device and has these values."""
    assert actual.device == device, (actual.device, device)
    reference.same(actual.cpu().contiguous(), expected)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    # A copy: one element counts as contiguous whatever its stride is.
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


@contextmanager
def no_host_memory() -> Iterator[None]:
    """Whatever goes through host memory fails."""
    refuse = ("allreduce_many", "allreduce_batch", "allgather", "alltoall", "broadcast", "reducescatter")
    kept = {name: getattr(_native, name) for name in refuse}

    def host_memory(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a tensor went through host memory")

    for name in refuse:
        setattr(_native, name, host_memory)
    try:
        yield
    finally:
        for name, call in kept.items():
            setattr(_native, name, call)


def spin(device: torch.device, seconds: float) -> None:
    """Gives the device work for about so long, and returns at once."""
    torch.cuda._sleep(int(seconds * 1.5e9))


def seconds_of(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def median_seconds(run: Callable[[], None]) -> float:
    times = []
    for _ in range(40):
        hvd.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return sorted(times[10:])[15]


def on_devices() -> bool:
    """Whether allreduces of this job are carried out in device memory."""
    return _native.works_on_devices(0, ("allreduce", hvd.Sum, 1.0, 1.0), 11)


def adasum_on_devices() -> bool:
    """Whether Adasums of this job are."""
    return _native.works_on_devices(0, ("allreduce", hvd.Adasum, 1.0, 1.0), 11)


def host_runs_ahead() -> bool:
    """Whether the host goes on while collectives in device memory are under way; not where ranks take turns."""
    takes_turns = hvd.local_size() > torch.cuda.device_count() and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    return on_devices() and run_ahead.is_allowed() and not takes_turns


def small_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
    )
