"""Pairs of ranks with the backend "farandole", of which rank 1 fails: `python survivors.py FOLDER WAY:FAULT...`.

The pairs are forked from this process one after the other, so that torch is imported once. For each it prints a line of
JSON: the exit codes (negative for a signal, null where the deadline has passed), whether rank 1 had exited when rank 0
had, and what the ranks wrote. Rank 0 prints what it catches, destroys the process group and exits with `CAUGHT`; with
the way `uncaught` it catches nothing.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
import farandole.torch.distributed

CAUGHT = 7
DEADLINE_SECONDS = 120
FAULT_STEP = 3
STEPS = 6

OPTIONS: dict[str, dict[str, Any]] = {
    "view": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
}


def coalesced() -> None:
    with dist._coalescing_manager(async_ops=True) as works:
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))
    works.wait()


def asynchronous() -> dist.Work:
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    return work


COLLECTIVES: dict[str, Callable[[], Any]] = {
    "sync": lambda: dist.all_reduce(torch.ones(1000)),
    "wait": lambda: asynchronous().wait(),
    "future": lambda: asynchronous().get_future().wait(),
    "coalesced": coalesced,
    "gather": lambda: dist.all_gather_into_tensor(torch.empty(2000), torch.ones(1000)),
}


def model_of(way: str) -> torch.nn.Module:
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300))
    if way == "fsdp1":
        return FullyShardedDataParallel(network, device_id=torch.device("cpu"))
    if way == "fsdp2":
        fully_shard(network[0])
        fully_shard(network)
        return network
    # Small buckets, so that there are several.
    # Except with PowerSGD, whose callbacks make calls beside those of the next bucket, in any order.
    bucket_mb = 25 if way == "powersgd" else 0.01
    parallel = DistributedDataParallel(network, bucket_cap_mb=bucket_mb, **OPTIONS.get(way, {}))
    if way == "hook":
        parallel.register_comm_hook(None, hvd.ddp_comm_hook)
    elif way == "hook of torch":
        parallel.register_comm_hook(None, default_hooks.allreduce_hook)
    elif way == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return parallel


def fail(fault: str) -> None:
    """What rank 1 does where the fault strikes."""
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "raises":
        raise ValueError("a bad batch")
    elif fault == "exits":
        sys.exit(0)
    elif fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "shape":
        dist.all_reduce(torch.ones(7))


def work(rank: int, way: str, fault: str) -> None:
    """Collectives or training steps; in one of them rank 1 fails."""
    model = None if way in COLLECTIVES else model_of(way)
    for step in range(STEPS):
        strikes = rank == 1 and step == FAULT_STEP
        if strikes and fault != "in backward":
            fail(fault)
        if model is None:
            COLLECTIVES[way]()
            continue
        loss = model(torch.ones(16, 64)).square().mean()
        if strikes:
            loss.register_hook(lambda _gradient: fail("raises"))
        loss.backward()


def run(rank: int, way: str, fault: str, store: str) -> None:
    """One rank."""
    limit = timedelta(seconds=1 if fault == "stopped" else DEADLINE_SECONDS)
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    if rank == 1 or way == "uncaught":
        work(rank, "unused" if way == "uncaught" else way, fault)
    else:
        try:
            work(rank, way, fault)
        except dist.DistBackendError as error:
            print("caught:", error, flush=True)
            dist.destroy_process_group()
            sys.exit(CAUGHT)
    dist.destroy_process_group()


def start(rank: int, folder: pathlib.Path) -> Optional[int]:
    """Forks a rank whose output goes to a file: its process id; `None` in the child."""
    process = os.fork()
    if process:
        return process
    output = os.open(folder / str(rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return None


def code_of(process: int) -> Optional[int]:
    """Waits for the end of a process; ends it at the deadline."""
    ended = select.poll()
    descriptor = os.pidfd_open(process)
    ended.register(descriptor, select.POLLIN)
    in_time = ended.poll(1000 * DEADLINE_SECONDS)
    os.close(descriptor)
    if not in_time:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if in_time else None


def main() -> None:
    for number, case in enumerate(sys.argv[2:]):
        way, _, fault = case.partition(":")
        folder = pathlib.Path(sys.argv[1], str(number))
        folder.mkdir()
        processes = []
        for rank in range(2):
            process = start(rank, folder)
            if process is None:
                run(rank, way, fault, str(folder / "store"))
                return
            processes.append(process)
        codes = [code_of(processes[0])]
        first = os.waitid(os.P_PID, processes[1], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if fault == "stopped":
            os.kill(processes[1], signal.SIGKILL)
        codes.append(code_of(processes[1]))
        outputs = [(folder / str(rank)).read_text(errors="replace") for rank in range(2)]
        print(json.dumps({"case": case, "codes": codes, "first": first, "outputs": outputs}), flush=True)


if __name__ == "__main__":
    main()
