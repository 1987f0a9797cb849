"""What becomes of learning rate and batch when the number of ranks changes. Each is a function to be called after the
change: give it to `state.register_reset_callbacks`, or as `policy` to `hvd.elastic.Training`.

With as many samples for each rank as before, fewer ranks make a smaller total batch. There are two ways out. Both keep
the expected size of an update for each sample, which is what a learning rate was tuned for:

- `LinearScaling` lets the total batch shrink or grow, and the learning rate with it (Goyal et al., 2017).
- `KeepTotalBatch` leaves the learning rate alone and has each rank accumulate gradients over more backward passes.

Without a policy nothing is changed: the rate stays what it was for another number of ranks.

Invariant: the size that a learning rate is meant for is kept beside it, in the options of its parameter group. It
travels with them, into checkpoints and to ranks that join, and back with a restored commit; so a change is applied once
to every rate, whatever has happened in between.
"""

from __future__ import annotations

from typing import Any

from farandole.elastic import native

__all__ = ["KeepTotalBatch", "LinearScaling"]

_SIZE = "lr_is_for_ranks"
"""The option of a parameter group that holds the size its learning rate is meant for."""


class LinearScaling:
    """Multiplies learning rates by new size / old size.

    Arguments:
        optimizer: of torch, or any with `param_groups`.
        scheduler: one of torch that computes rates from `base_lrs` (LambdaLR, OneCycleLR), which are scaled, too.
        ranks: how many ranks the rates are meant for; by default those of the job as it is now or, in a process that
            is no rank yet (`hvd.init(elastic_join="later")`), those with which the training begins.
    """

    def __init__(self, optimizer: Any, scheduler: Any = None, ranks: int | None = None) -> None:
        if ranks is not None and ranks < 1:
            raise ValueError(f"ranks counts those that the rates are meant for, from 1 on; {ranks} does not")
        self._optimizer = optimizer
        self._scheduler = scheduler
        if ranks is None and native.joins_later():
            return
        for group in optimizer.param_groups:
            group.setdefault(_SIZE, native.size() if ranks is None else ranks)

    def __call__(self) -> None:
        """The size of the job may have changed."""
        size = native.size()
        base_lrs = getattr(self._scheduler, "base_lrs", None)
        for number, group in enumerate(self._optimizer.param_groups):
            before = group.setdefault(_SIZE, size)
            if before == size:
                continue
            for key in ("lr", "initial_lr", "max_lr", "min_lr"):
                if key in group:
                    # A tensor keeps its place: programs that were captured read it there.
                    group[key] *= size / before
            if base_lrs is not None:
                base_lrs[number] *= size / before
            group[_SIZE] = size


class KeepTotalBatch:
    """Has ranks accumulate over as many backward passes as bring the total batch nearest to what it was.

    Arguments:
        total_batch: samples of one step of all ranks.
        batch: samples of one backward pass of one rank.
        optimizer: what `DistributedOptimizer` returned; it is told the number of passes.

    `passes` is that number: `hvd.elastic.Training.batches(loader, together=policy)` brings as many batches for each
    step. Gradients of several passes add up, so divide each loss by their number. `total` is what the total batch is
    now: `total_batch` where it can be divided by batch and ranks, otherwise the nearest multiple.
    """

    def __init__(self, total_batch: int, batch: int, optimizer: Any = None) -> None:
        if total_batch < 1 or batch < 1:
            raise ValueError(f"total_batch and batch count samples; {total_batch} and {batch} do not")
        self.total_batch = total_batch
        self.batch = batch
        self._optimizer = optimizer
        self.passes = 1
        if not native.joins_later():
            self()

    def __call__(self) -> None:
        """The size of the job may have changed."""
        self.passes = max(1, round(self.total_batch / (self.batch * native.size())))
        if self._optimizer is not None:
            self._optimizer.set_backward_passes_per_step(self.passes)

    @property
    def total(self) -> int:
        """Samples of one step of all ranks, as it is now."""
        return self.passes * self.batch * native.size()
