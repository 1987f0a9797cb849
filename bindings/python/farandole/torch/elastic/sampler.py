"""Samplers whose shares follow the job: what is left of an epoch is dealt anew whenever the ranks have changed.

`ElasticSampler` is Horovod's, for `DataLoader(sampler=...)`. `ElasticBatchSampler` makes batches of it, for
`DataLoader(batch_sampler=...)`, and repeats no sample at the end of an epoch. The arithmetic is that of
`farandole.elastic.partition`.

**What counts as used.** `processed_num` samples of the epoch's order are in the model. Scripts for Horovod say so with
`record_batch`; `hvd.elastic.Training` does it by itself, in the moment in which the optimizer has made its step. The
number belongs to the state: it is committed, restored and sent with the model, so that both always fit. A sample that a
lost rank had, or that was read for a step that came to nothing, is still to come.

Invariant: two ranks with the same epoch, `processed_num` and `processed_indices` in the same job have shares that do
not overlap and together are everything left, but for the repetitions that `partition` names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch.utils.data

from farandole.elastic import native, partition

__all__ = ["ElasticBatchSampler", "ElasticSampler"]

_OF_SHARES = ("num_replicas", "rank", "remaining_indices", "num_samples", "total_size")
"""What depends on the number of ranks."""


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """Deals the samples of a dataset to the ranks, and what is left of them anew after a change.

    Put it into the `TorchState`, call `record_batch` after each batch and `set_epoch` at the *end* of each epoch: an
    epoch that was interrupted shall go on where it was.

    Arguments:
        dataset: its length stays the same.
        shuffle: whether each epoch has an order of its own.
        seed: of these orders; the same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        #: Counts how often shares were dealt. Whoever iterates over an old share sees it by this.
        self.deals = 0
        self.reset()

    def __getattr__(self, name: str) -> Any:
        # Nothing is dealt before the number of ranks is known. Whoever asks then hears why.
        if name in _OF_SHARES:
            native.size()
            self.reset()
            return vars(self)[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: nothing of it has been used. Call it at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has used a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Iterable[int]) -> None:
        """This rank has used these samples, whatever their order: for loaders that do not follow it.

        What other ranks have recorded is put together when the state is synchronized, so the records of a rank that is
        lost are lost with it, and its samples come once more; `record_batch` has no such gap.
        """
        self.processed_indices.update(int(index) for index in indices)

    def state_dict(self) -> dict[str, Any]:
        """Epoch, and what has been used of it."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": sorted(self.processed_indices),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there, with the ranks of now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Deals what is left to the ranks of now; nothing if this process joins later, and is no rank yet."""
        if native.joins_later():
            return
        self.num_replicas = native.size()
        self.rank = native.rank()
        everything = partition.order(len(self.dataset), self.shuffle, self.seed, self.epoch)
        rest = everything[self.processed_num :]
        if self.processed_indices:
            rest = [sample for sample in rest if sample not in self.processed_indices]
        self.remaining_indices = rest
        self.num_samples = math.ceil(len(rest) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.deals += 1

    def step_end(self, position: int, batch_size: int) -> int:
        """Where in the remaining samples a step of all ranks ends that begins at `position`."""
        return min(position + batch_size * self.num_replicas, len(self.remaining_indices))

    def __iter__(self) -> Iterator[int]:
        self.indices = partition.dealt(self.remaining_indices, self.rank, self.num_replicas)
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


class ElasticBatchSampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """Batches of an `ElasticSampler`'s samples: the same number on all ranks, and no sample twice.

    The last batches of an epoch may be smaller, or have one sample more (see `farandole.elastic.partition`).
    """

    def __init__(self, sampler: ElasticSampler, batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"a batch has at least one sample, not {batch_size}")
        self.sampler = sampler
        self.batch_size = batch_size

    def step_end(self, position: int, batch_size: int) -> int:
        """Where in the remaining samples a step of all ranks ends that begins at `position`."""
        own = self.sampler
        return partition.step_end(position, len(own.remaining_indices), batch_size, own.num_replicas)

    def __iter__(self) -> Iterator[list[int]]:
        own = self.sampler
        return partition.steps(own.remaining_indices, self.batch_size, own.rank, own.num_replicas)

    def __len__(self) -> int:
        own = self.sampler
        return partition.count_steps(len(own.remaining_indices), self.batch_size, own.num_replicas)
