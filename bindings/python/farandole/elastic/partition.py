"""Which samples a rank takes, so that over an epoch every sample is taken once, whoever leaves and joins.

The *order* of an epoch is a permutation of all samples that depends on seed and epoch alone, so every rank has it. What
has been used is a *position*: the samples before it are in the model, those behind it are not. Ranks deal the rest like
cards: of the samples from the position on, rank r of w takes every w-th, beginning with the r-th. After any number of
steps, the samples that the ranks have taken together are again the first ones of the rest, so the position says it all,
and it can be cut anew for any other number of ranks.

A *step* takes `batch` samples for each rank. All ranks must make the same number of steps, and a rank without a sample
cannot make one, so the last step needs care (`step_end`): where it would have fewer samples than ranks, they go to the
step before, in which some ranks then have one sample more. Only if all that is left are fewer samples than ranks
(after a change in the last moment of an epoch) some ranks take a sample that another one has, too.

`dealt` is Horovod's way, for samplers that do not know the size of batches: it makes all shares equally long, and
the last of them repeat up to w - 1 samples at the end of an epoch.

Steps end where those of Rust's trainings do (`crates/farandole/src/elastic/samples.rs`). Here are the parts in which
Python differs: Horovod's order, and a sample for every rank.

Pure, and without any framework.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from farandole import _native


def order(length: int, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """The samples in the order of an epoch. The same as Horovod's."""
    samples = list(range(length))
    if shuffle:
        random.Random(seed + epoch).shuffle(samples)
    return samples


def dealt(rest: Sequence[int], rank: int, size: int) -> list[int]:
    """A rank's share of the rest, as long as everybody's: the first samples are repeated if need be."""
    if not rest:
        return []
    length = -(-len(rest) // size)
    return [rest[at % len(rest)] for at in range(rank, length * size, size)]


def step_end(position: int, length: int, batch: int, size: int) -> int:
    """Where the step ends that begins at `position` of `length` samples."""
    return _native.elastic_step_end(position, length, batch, size)


def step_share(samples: Sequence[int], rank: int, size: int) -> list[int]:
    """A rank's share of the samples of one step; at least one."""
    share = list(samples[rank::size])
    return share or [samples[rank % len(samples)]]


def steps(rest: Sequence[int], batch: int, rank: int, size: int) -> Iterator[list[int]]:
    """A rank's share of every step through the rest."""
    position = 0
    while position < len(rest):
        end = step_end(position, len(rest), batch, size)
        yield step_share(rest[position:end], rank, size)
        position = end


def count_steps(length: int, batch: int, size: int) -> int:
    """How many steps `length` samples make."""
    return _native.elastic_step_count(length, batch, size)
