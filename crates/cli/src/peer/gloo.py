"""Gloo, through torch.distributed, as a contestant of `farandole bench`.

One process for each rank. It takes orders from the driver, one line of JSON each, and answers in kind; the words are
those of the driver's own ranks, and so is the order of work within a round; only the checked values are its own. It
ends when the driver hangs up.

usage: gloo.py RANK RANKS RENDEZVOUS_FILE DRIVER_SOCKET [core=CORE] [address=ADDRESS]
"""

import fcntl
import json
import math
import os
import socket
import struct
import sys
import time

RANK, RANKS, RENDEZVOUS, DRIVER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
OPTIONS = dict(word.split("=", 1) for word in sys.argv[5:])
SIOCGIFADDR = 0x8915  # ioctl: the IPv4 address of a named interface


def interface_with(address):
    """The network interface that has this address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # It has none.
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    sys.exit(f"no network interface here has the address {address}")


if "core" in OPTIONS:
    # Before torch is imported: threads inherit the affinity of the thread that starts them.
    os.sched_setaffinity(0, {int(OPTIONS["core"])})
# Without this Gloo asks the name service for its own address, which fails on many machines.
if "address" in OPTIONS:
    os.environ["GLOO_SOCKET_IFNAME"] = interface_with(OPTIONS["address"])
else:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

PERIOD = 7
OPS = {"Sum": "SUM", "Min": "MIN", "Max": "MAX", "Product": "PRODUCT"}


class Unsupported(Exception):
    pass


def value(task, rank, index):
    """What a rank contributes at a place: small whole numbers, whose combinations every dtype holds exactly."""
    small = (index % PERIOD * 5 + rank * 3) % PERIOD
    if task["dtype"] == "bool":
        return small % 2
    return 1 + (small % 2 if task["op"] == "Product" else small)


def sequence(dtype, value_at, first, elems):
    """`elems` elements of a periodic sequence from `first` on."""
    period = torch.tensor([value_at(first + i) for i in range(PERIOD)], dtype=torch.int64).to(dtype)
    return period.repeat(elems // PERIOD + 1)[:elems]


def combine(task, index):
    values = [value(task, rank, index) for rank in range(RANKS)]
    return {"Sum": sum, "Product": math.prod, "Min": min, "Max": max}[task["op"]](values)


class Prepared:
    """Buffers of a task, and the call that runs it once."""

    def __init__(self, task):
        self.task, self.kind = task, task["kind"]
        self.dtype = getattr(torch, task["dtype"])
        elems = task["bytes"] // self.dtype.itemsize
        self.part = elems // RANKS
        if self.kind in ("allreduce", "reducescatter"):
            if task["op"] not in OPS or self.dtype == torch.bool:
                raise Unsupported(f"Gloo has no {task['op']} on {task['dtype']}")
            reduce_op = getattr(dist.ReduceOp, OPS[task["op"]])
        if self.kind == "allreduce":
            self.input = self.output = torch.zeros(elems, dtype=self.dtype)
            self.run = lambda: dist.all_reduce(self.input, reduce_op)
        elif self.kind == "broadcast":
            self.input = self.output = torch.zeros(elems, dtype=self.dtype)
            self.run = lambda: dist.broadcast(self.input, 0)
        elif self.kind == "allgather":
            self.input = torch.zeros(self.part, dtype=self.dtype)
            self.output = torch.zeros(elems, dtype=self.dtype)
            parts = list(self.output.chunk(RANKS))
            self.run = lambda: dist.all_gather(parts, self.input)
        elif self.kind == "alltoall":
            self.input = torch.zeros(elems, dtype=self.dtype)
            self.output = torch.zeros(elems, dtype=self.dtype)
            self.run = lambda: dist.all_to_all_single(self.output, self.input)
        elif self.kind == "reducescatter":
            self.input = torch.zeros(elems, dtype=self.dtype)
            self.output = torch.zeros(self.part, dtype=self.dtype)
            self.run = lambda: dist.reduce_scatter_tensor(self.output, self.input, reduce_op)
        else:
            self.input = self.output = torch.zeros(0)
            self.run = dist.barrier

    def wrong(self):
        """Runs once on known inputs and counts the elements of the result that differ from what they should be."""
        if self.kind == "barrier":
            return 0
        self.input.copy_(sequence(self.dtype, lambda i: value(self.task, RANK, i), 0, self.input.numel()))
        dist.barrier()
        self.run()
        return int((self.output != self.expected()).sum())

    def expected(self):
        elems = self.output.numel()
        if self.kind == "broadcast":
            return sequence(self.dtype, lambda i: value(self.task, 0, i), 0, elems)
        if self.kind in ("allgather", "alltoall"):
            first = RANK * self.part if self.kind == "alltoall" else 0
            return torch.cat(
                [sequence(self.dtype, lambda i, r=r: value(self.task, r, i), first, self.part) for r in range(RANKS)]
            )
        first = RANK * self.part if self.kind == "reducescatter" else 0
        return sequence(self.dtype, lambda i: combine(self.task, i), first, elems)


def time_aligned(run, iterations):
    times_ns = []
    for _ in range(iterations):
        dist.barrier()
        start = time.perf_counter_ns()
        run()
        times_ns.append(time.perf_counter_ns() - start)
    return times_ns


def time_back_to_back(run, iterations):
    times_ns = []
    dist.barrier()
    start = time.perf_counter_ns()
    for _ in range(iterations):
        run()
        end = time.perf_counter_ns()
        times_ns.append(end - start)
        start = end
    return times_ns


def measure(order, prepared):
    wrong = prepared.wrong()
    prepared.input.zero_()
    dist.barrier()
    for _ in range(order["warmup"]):
        prepared.run()
    take = time_aligned if order["task"]["pace"] == "aligned" else time_back_to_back
    return {"measured": {"times_ns": take(prepared.run, order["iterations"]), "wrong": wrong}}


def main():
    dist.init_process_group("gloo", init_method=f"file://{RENDEZVOUS}", rank=RANK, world_size=RANKS)
    line = socket.socket(socket.AF_UNIX)
    line.connect(DRIVER)
    stream = line.makefile("rw")

    def say(answer):
        stream.write(json.dumps(answer) + "\n")
        stream.flush()

    say({"hello": {"rank": RANK, "product": f"Gloo (torch {torch.__version__})"}})
    task, prepared = None, None
    for text in stream:
        order = json.loads(text)["measure"]
        try:
            if order["task"] != task:
                task, prepared = None, None
                prepared = Prepared(order["task"])
                task = order["task"]
            answer = measure(order, prepared)
        except Unsupported as lack:
            answer = {"unsupported": {"why": str(lack)}}
        except Exception as error:
            # Gloo says so in words alone when it lacks a dtype or a collective.
            lacking = any(words in str(error) for words in ("scalar type", "not support", "not implemented"))
            verdict = "unsupported" if lacking else "failed"
            answer = {verdict: {"why": f"{type(error).__name__}: {error}"}}
        say(answer)
    dist.destroy_process_group()


main()
