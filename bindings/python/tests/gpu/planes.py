"""Whether collectives on GPU tensors give the same bits on every plane: through host memory, in device memory by
kernels of our own, and by NCCL.

    farandole run -np 2 python bindings/python/tests/gpu/planes.py
    farandole run -np 4 python bindings/python/tests/gpu/planes.py --planes staged,nccl
    farandole run -np 2 python bindings/python/tests/gpu/planes.py --kill nccl

The ranks may share one GPU: where they do, each gets a `NCCL_HOSTID` of its own, without which NCCL refuses that. Not a
part of the test command, which runs on machines without a GPU; there the same code runs on pretended devices, in Rust.
Without a GPU, or without NCCL, this program fails.

Data are small whole numbers, so that every sum and product is exact in every element type and in every order. Each
result is compared with plain torch on the CPU, and with that of every other plane.

`--kill` lets the last rank die in the middle of allreduces; the others print what they are told, and after how long.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import torch

import farandole.torch as hvd
from farandole.exceptions import HorovodInternalError

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
]
SIZES = [1, 130, 70_001]
OPS = {"sum": hvd.Sum, "average": hvd.Average, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
# Prescale and postscale; powers of two, so that results stay exact.
FACTORS = [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (2.0, 0.25)]

Results = dict[str, torch.Tensor]


def contribution(rank: int, dtype: torch.dtype, rows: int, salt: int = 0) -> torch.Tensor:
    """What a rank has, on the CPU: numbers from one to three."""
    numbers = (torch.arange(rows, dtype=torch.int64) * 7 + rank * 5 + salt) % 3 + 1
    return numbers > 1 if dtype == torch.bool else numbers.to(dtype)


def combined(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """What torch makes of the contributions of all ranks, in double precision or as whole numbers."""
    dtype = tensors[0].dtype
    stacked = torch.stack([tensor.to(torch.float64 if dtype.is_floating_point else torch.int64) for tensor in tensors])
    if dtype == torch.bool:
        return stacked.bool().any(0) if op in ("sum", "max") else stacked.bool().all(0)
    whole = {
        "sum": lambda: stacked.sum(0),
        "average": lambda: stacked.sum(0),
        "min": lambda: stacked.amin(0),
        "max": lambda: stacked.amax(0),
        "product": lambda: stacked.prod(0),
    }[op]()
    if op == "average":
        size = len(tensors)
        whole = whole / size if dtype.is_floating_point else torch.div(whole, size, rounding_mode="trunc")
    return whole.to(dtype)


def reductions(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Every reduction: its name, its result and the right one."""
    ranks = range(hvd.size())
    for dtype in DTYPES:
        for op, number in OPS.items():
            if dtype == torch.bool and op == "average":
                continue
            for rows in SIZES:
                tensors = [contribution(rank, dtype, rows) for rank in ranks]
                expected = combined(tensors, op)
                mine = tensors[hvd.rank()].to(device)
                case = f"{dtype} {op} {rows}"
                yield f"allreduce {case}", hvd.allreduce(mine, name="a", op=number), expected
                hvd.allreduce_(mine, name="b", op=number)
                yield f"allreduce_ {case}", mine, expected
            if dtype != torch.bool:
                # Even, and with rows that are left over.
                for rows in (4 * hvd.size(), 4 * hvd.size() + 1):
                    tensors = [contribution(rank, dtype, rows) for rank in ranks]
                    share, extra = divmod(rows, hvd.size())
                    first = hvd.rank() * share + min(hvd.rank(), extra)
                    last = first + share + (hvd.rank() < extra)
                    result = hvd.reducescatter(tensors[hvd.rank()].to(device), name="c", op=number)
                    yield f"reducescatter {dtype} {op} {rows}", result, combined(tensors, op)[first:last]
    yield from scaled(device)


def scaled(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Factors, and many tensors that travel together."""
    ranks = range(hvd.size())
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for before, after in FACTORS:
            lengths = [1, 5, 64, 1000, 33_333]
            every = [[contribution(rank, dtype, rows, rows) for rows in lengths] for rank in ranks]
            mine = [tensor.to(device) for tensor in every[hvd.rank()]]
            results = hvd.grouped_allreduce(mine, op=hvd.Sum, prescale_factor=before, postscale_factor=after, name="d")
            for place, result in enumerate(results):
                total = combined([tensors[place] for tensors in every], "sum")
                expected = (total.double() * before * after).to(dtype)
                yield f"grouped_allreduce {dtype} {before} {after} {lengths[place]}", result, expected


def movements(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Everything that only moves elements."""
    size, me = hvd.size(), hvd.rank()
    for dtype in DTYPES:
        for kind, rows in (("even", [3] * size), ("uneven", [rank + 1 for rank in range(size)])):
            tensors = [contribution(rank, dtype, rows[rank] * 2).reshape(-1, 2) for rank in range(size)]
            result = hvd.allgather(tensors[me].to(device), name="e")
            yield f"allgather {dtype} {kind}", result, torch.cat(tensors)
            groups = hvd.grouped_allgather([tensors[me].to(device), tensors[me].to(device)], name="f")
            yield f"grouped_allgather {dtype} {kind}", groups[1], torch.cat(tensors)
        for root in range(size):
            tensor = contribution(root, dtype, 1001)
            mine = tensor if me == root else torch.zeros_like(tensor)
            yield f"broadcast {dtype} {root}", hvd.broadcast(mine.to(device), root, name="g"), tensor
        for kind, splits in (
            ("even", [[2] * size for _ in range(size)]),
            ("uneven", [[(sender + receiver) % 3 for receiver in range(size)] for sender in range(size)]),
        ):
            tensors = [contribution(rank, dtype, sum(splits[rank])) for rank in range(size)]
            expected = torch.cat([torch.split(tensors[rank], splits[rank])[me] for rank in range(size)])
            result, _ = hvd.alltoall(tensors[me].to(device), torch.tensor(splits[me], dtype=torch.int32), name="h")
            yield f"alltoall {dtype} {kind}", result, expected


def begin(plane: str) -> torch.device:
    """Starts this rank on a plane. Ranks that share a GPU get what NCCL needs for that."""
    os.environ["FARANDOLE_PLANE"] = plane
    hvd.init()
    devices = torch.cuda.device_count()
    if hvd.local_size() > devices:
        os.environ["NCCL_HOSTID"] = f"farandole-check-{hvd.rank()}"
    device = torch.device("cuda", hvd.local_rank() % devices)
    torch.cuda.set_device(device)
    return device


def run(plane: str) -> Results:
    """All results on this plane, on the CPU."""
    device = begin(plane)
    began, results = time.monotonic(), {}
    for produce in (reductions, movements):
        for name, result, expected in produce(device):
            assert result.device == device, f"{plane}: the result of {name} lies on {result.device}"
            result = result.cpu()
            assert result.dtype == expected.dtype and torch.equal(result, expected), f"{plane}: {name} is wrong"
            results[name] = result
    if hvd.rank() == 0:
        print(f"ok {plane}: {len(results)} results are right ({time.monotonic() - began:.1f} s)", flush=True)
    hvd.shutdown()
    return results


def compare(planes: list[str]) -> None:
    """Runs every plane and compares their results bit by bit."""
    every = {plane: run(plane) for plane in planes}
    first = planes[0]
    for plane in planes[1:]:
        assert every[plane].keys() == every[first].keys()
        for name, result in every[plane].items():
            same = torch.equal(result.view(torch.uint8), every[first][name].view(torch.uint8))
            assert same, f"{name} has other bits on {plane} than on {first}"
    hvd.init()
    if hvd.rank() == 0:
        print(f"ok {', '.join(planes)}: the same bits on {hvd.size()} ranks", flush=True)


def kill(plane: str) -> None:
    """The last rank dies in the middle of allreduces; the others say what they are told, and when."""
    device = begin(plane)
    tensor = torch.ones(1 << 24, device=device)
    for _ in range(5):
        hvd.allreduce_(tensor, name="warm", op=hvd.Average)
    # Ranks of one host have one clock.
    died = float(hvd.allreduce(torch.tensor(time.time() + 1.0, dtype=torch.float64), name="when", op=hvd.Max))
    if hvd.rank() == hvd.size() - 1:
        dies_in = max(0.0, died - time.time())
        threading.Timer(dies_in, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    try:
        while time.time() < died + 30:
            hvd.allreduce_(tensor, name="x", op=hvd.Average)
            torch.cuda.synchronize(device)
    except HorovodInternalError as error:
        say_what_was_told(died, error)
    except torch.AcceleratorError as error:
        # MPS lets all its clients fail if one of them is killed when its kernels run. The job knows why.
        print(f"rank {hvd.rank()}, from PyTorch: {str(error).splitlines()[0]}", flush=True)
        try:
            hvd.barrier()
        except HorovodInternalError as error:
            say_what_was_told(died, error)
    raise AssertionError("nobody died")


def say_what_was_told(died: float, error: Exception) -> NoReturn:
    """Prints why a rank ends, and ends it."""
    print(f"rank {hvd.rank()} was told {time.time() - died:.2f} s after the death: {error}", flush=True)
    raise SystemExit(3)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planes", default="staged,own,nccl", help="the planes to compare")
    parser.add_argument("--kill", metavar="PLANE", help="let a rank die on this plane")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here")
    if arguments.kill:
        kill(arguments.kill)
    else:
        compare(arguments.planes.split(","))


if __name__ == "__main__":
    main()
