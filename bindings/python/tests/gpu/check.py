"""What can only be seen on a machine with a GPU: tensors in device memory, through every operation and the optimizer.

    farandole run -np 2 python bindings/python/tests/gpu/check.py

The ranks may share one GPU. The modules `check_…` beside this one have the checks. Not a part of the test command,
which runs on machines without a GPU; there the logic of `staging` is tested with events that are not a device's.
Without a GPU this program fails.

Every check compares with the same computation on the CPU in plain torch, Adasum with that of host memory, bit by bit.
Rank 0 prints one line for each, and at the end how long gradients of ResNet-50's size take. FARANDOLE_PLANE=staged does
the same through host memory; the checks of what runs ahead of the device are left out then. Names of checks on the
command line run only these, and measure nothing.
"""

from __future__ import annotations

import sys
import time

import torch
from check_adasum import adasum, adasum_optimizer, adasum_speed
from check_ahead import calls_that_wait, distributed_ahead, refused_ahead, runs_ahead, step_ahead
from check_collectives import (
    allreduce,
    captured,
    dropped,
    everything_stays,
    grouped,
    grouped_moves,
    mixed,
    moves,
    no_leak,
    other_stream,
    refusals,
    sets,
    stream_order,
    strided,
    uneven,
)
from check_data import batches_ahead, batches_on_device, batches_pinned
from check_training import (
    compressed,
    gradients,
    mixed_precision,
    optimizer,
    replaced,
    speed,
    sync_batch_norm,
    together,
)
from checking import ALONE, Check

import farandole.torch as hvd

CHECKS: list[Check] = [
    allreduce,
    grouped,
    strided,
    moves,
    grouped_moves,
    uneven,
    everything_stays,
    adasum,
    adasum_optimizer,
    sets,
    mixed,
    stream_order,
    dropped,
    other_stream,
    refusals,
    gradients,
    optimizer,
    together,
    replaced,
    mixed_precision,
    sync_batch_norm,
    compressed,
    runs_ahead,
    calls_that_wait,
    step_ahead,
    refused_ahead,
    captured,
    no_leak,
    distributed_ahead,
    batches_on_device,
    batches_pinned,
    batches_ahead,
]


def main() -> None:
    hvd.init(process_sets=[ALONE])
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if hvd.rank() == 0:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {hvd.size()} ranks", flush=True)
    for check in [check for check in CHECKS if not sys.argv[1:] or check.__name__ in sys.argv[1:]]:
        begun = time.perf_counter()
        check(device)
        if hvd.rank() == 0:
            print(f"ok {check.__name__} ({time.perf_counter() - begun:.1f} s)", flush=True)
    for measured in () if sys.argv[1:] else (speed, adasum_speed):
        words = measured(device)
        if hvd.rank() == 0:
            print(words, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
