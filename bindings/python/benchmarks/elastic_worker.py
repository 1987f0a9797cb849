"""One process of `elastic_recovery.py` and `elastic_chaos.py`: trains a small network for ever, and notes every step.

A note is a line of its file, `<pid>.steps`: the moment (`time.monotonic_ns`, which all processes of a host share), the
number of the step, the number of ranks, a checksum of the parameters, how often the step was begun on this rank, and
how many samples were used twice so far. What must not happen goes to `<pid>.wrong`, and the process ends. `pid` is the
process number in the namespace of the reader, which `apart.py` passes on.

Checked in every step, for farandole: a sum over all ranks of which each knows the result; and which samples were used,
by a sum of counts that is part of the training's state (`Ledger`).

Gradients follow from parameters, step and rank, and are rounded so that their sum is exact in any order. So the
parameters follow from the number of ranks in each step alone, and `history` computes them in one process, without ranks
that fail.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

WIDTH = 256
"""The network has one layer of so many inputs and outputs: steps take a few milliseconds."""

QUANTUM = 2.0**-20
"""Gradients are multiples of it, and less than a half: sums over eight ranks have 22 bits, and floats have 24."""

SAMPLES, BATCH = 1021, 4
"""A prime number of samples, so that no number of ranks divides it. An epoch has 32 steps of eight ranks."""

PROBE = 20_000
"""Length of the sum that is checked."""

PACE_S = 0.005
"""What a step would compute, times the number of ranks: eight on two processors have to live together."""


class Notes:
    """What this process has done, for the one that measures."""

    def __init__(self, folder: pathlib.Path) -> None:
        pid = os.environ.get("OUTER_PID", os.getpid())
        self._path = folder / f"{pid}.steps"
        self._file = open(self._path, "a", buffering=1)  # noqa: SIM115 - open until the end

    def add(self, step: int, size: int, checksum: int, tries: int = 1, twice: int = 0) -> None:
        """A step is complete."""
        self._file.write(f"{time.monotonic_ns()} {step} {size} {checksum} {tries} {twice}\n")

    def wrong(self, what: str) -> NoReturn:
        """Something has happened that must not."""
        self._path.with_suffix(".wrong").write_text(what + "\n")
        raise SystemExit(what)


class Ledger:
    """Which samples of the epoch are in the model, and how many ranks made the last step; a part of the state."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.epoch, self.twice, self.size = 0, 0, 0
        self.counts = torch.zeros(SAMPLES, dtype=torch.int32)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "twice": self.twice, "size": self.size, "counts": self.counts.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.twice, self.size = state["epoch"], state["twice"], state["size"]
        self.counts = torch.tensor(state["counts"], dtype=torch.int32)

    def add(self, epoch: int, used: torch.Tensor, size: int) -> None:
        """A step has used these samples, each so often."""
        if epoch != self.epoch:
            left = int((self.counts == 0).sum())
            if left > 0 or epoch != self.epoch + 1:
                self._notes.wrong(f"epoch {epoch} begins when {left} samples of epoch {self.epoch} are left")
            self.epoch, self.counts = epoch, torch.zeros_like(self.counts)
        left, self.size = int((self.counts == 0).sum()), size
        self.counts = self.counts + used
        twice = int((self.counts - 1).clamp(min=0).sum())
        # Where fewer samples are left than there are ranks, because somebody has joined, some are used twice.
        if twice > 0 and left >= size:
            self._notes.wrong(f"{twice} samples of epoch {epoch} were used twice, when {left} were left")
        if twice > 0:
            self.counts = self.counts.clamp(max=1)
            self.twice += twice


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The same on all ranks."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Linear(WIDTH, WIDTH)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: (gradient.clamp(-0.49, 0.49) / QUANTUM).round() * QUANTUM)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def compute(model: torch.nn.Module, step: int, rank: int) -> None:
    """Gradients that follow from parameters, step and rank."""
    batch = torch.full((4, WIDTH), 0.125 * (step % 7 + rank + 1))
    model(batch).square().mean().backward()


def checksum(model: torch.nn.Module) -> int:
    """Of all parameters."""
    sum_so_far = 0
    for parameter in model.parameters():
        sum_so_far = zlib.crc32(parameter.detach().numpy().tobytes(), sum_so_far)
    return sum_so_far


def farandole(notes: Notes) -> None:
    """A plain loop of farandole's, which goes on when ranks leave and join."""
    import farandole.torch as hvd

    hvd.init()
    model, optimizer = network()
    wrapped: Any = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
    sampler, ledger = hvd.elastic.ElasticSampler(range(SAMPLES)), Ledger(notes)
    batches = hvd.elastic.ElasticBatchSampler(sampler, BATCH)
    loader: Any = torch.utils.data.DataLoader(torch.arange(SAMPLES), batch_sampler=batches)  # type: ignore[arg-type]
    training = hvd.elastic.Training(wrapped, model, sampler=sampler, ledger=ledger)
    noted, tries = 0, 0

    def note() -> None:
        # A step that a lost rank has ended is not complete, and is repeated. Whoever has missed one was given the state
        # after it, and knows from there how many ranks have made it.
        nonlocal noted, tries
        if training.steps != noted:
            notes.add(training.steps, ledger.size, checksum(model), tries, ledger.twice)
            noted, tries = training.steps, 0

    training.join()
    note()
    for epoch in training.epochs(sys.maxsize):
        for samples in training.batches(loader):
            tries += 1
            with training.step():
                wrapped.zero_grad()
                compute(model, training.steps, hvd.rank())
                time.sleep(PACE_S * hvd.size())
                used = torch.zeros(SAMPLES, dtype=torch.int32)
                used[samples] += 1
                used = hvd.allreduce(used, op=hvd.Sum, name="used")
                check_sum(notes, hvd, training.steps)
                wrapped.step()
                ledger.add(epoch, used, hvd.size())
            note()


def check_sum(notes: Notes, hvd: Any, step: int) -> None:
    """Adds up what every rank knows of every other one."""
    rank, size, factor = hvd.rank(), hvd.size(), step % 97 + 1
    pattern = torch.arange(PROBE, dtype=torch.float32) % 13
    total = hvd.allreduce(pattern + factor * (rank + 1), op=hvd.Sum, name="probe")
    wanted = size * pattern + factor * size * (size + 1) / 2
    if not torch.equal(total, wanted):
        at = int((total != wanted).nonzero()[0])
        notes.wrong(f"step {step}, rank {rank} of {size}: the sum at {at} is {total[at]} and not {wanted[at]}")


def torchrun(notes: Notes) -> None:
    """PyTorch over gloo: all ranks are started again when one is lost."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model, optimizer = network()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    step = 0
    while True:
        optimizer.zero_grad()
        compute(wrapped, step, dist.get_rank())
        time.sleep(PACE_S * dist.get_world_size())
        optimizer.step()
        step += 1
        notes.add(step, dist.get_world_size(), checksum(model))


def torchft(notes: Notes) -> None:
    """torchft over gloo: every process is a replica of its own, and a lighthouse knows who is there.

    Gradients go through the manager, one call for each: torchft 0.2's DistributedDataParallel ended both survivors of
    three when one was killed.
    """
    import datetime

    import torch.distributed as dist
    import torchft as ft

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model, optimizer = network()

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    patience = datetime.timedelta(seconds=5)
    manager = ft.Manager(
        pg=ft.ProcessGroupGloo(timeout=patience),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=patience,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"replica_{os.getpid()}",
    )
    while True:
        optimizer.zero_grad()
        manager.start_quorum()
        compute(model, manager.current_step(), 0)
        time.sleep(PACE_S * manager.num_participants())
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()
        if manager.should_commit():
            optimizer.step()
            notes.add(manager.current_step(), manager.num_participants(), checksum(model), tries=0)


def parameters_of(sizes: Iterator[int]) -> Iterator[int]:
    """The checksum of the parameters after each step of a job that had so many ranks in it."""
    model, optimizer = network()
    for step, size in enumerate(sizes):
        optimizer.zero_grad()
        for rank in range(size):
            # Gradients add up.
            compute(model, step, rank)
        optimizer.step()
        yield checksum(model)


def history(folder: pathlib.Path) -> None:
    """Compares what a job has noted with a run that has as many ranks in each step, and no faults.

    `<folder>/history` has a line for every step: how many ranks it had, and the checksum.
    """
    noted = [tuple(map(int, line.split())) for line in (folder / "history").read_text().splitlines()]
    for step, (found, (_, wanted)) in enumerate(zip(parameters_of(size for size, _ in noted), noted), 1):
        if found != wanted:
            raise SystemExit(f"after step {step} the parameters are not those of a run without faults")
    print(f"{len(noted)} steps give the same parameters in a run without faults")


if __name__ == "__main__":
    mode, place = sys.argv[1], pathlib.Path(sys.argv[2])
    modes: dict[str, Callable[[Notes], None]] = {"farandole": farandole, "torchrun": torchrun, "torchft": torchft}
    history(place) if mode == "history" else modes[mode](Notes(place))
