"""Elastic training without a job: arithmetic of samples, whose state goes on, the loop around a training function."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import farandole.torch as hvd
from farandole import _native, elastic
from farandole.elastic import HostsUpdatedInterrupt, HostUpdateResult, native, partition
from farandole.elastic.agreement import NOTHING, Decision, Standing, decide
from farandole.exceptions import HorovodInternalError
from farandole.torch.parameter_pieces import pieces

# Samples


@pytest.mark.parametrize("size", range(1, 9))
def test_ranks_make_the_same_steps_and_use_every_sample_once(size: int) -> None:
    for batch, length in itertools.product(range(1, 6), range(60)):
        rest = list(range(100, 100 + length))
        shares = [list(partition.steps(rest, batch, rank, size)) for rank in range(size)]
        assert {len(share) for share in shares} == {partition.count_steps(length, batch, size)}
        used = Counter(itertools.chain(*itertools.chain(*shares)))
        assert set(used) == set(rest)
        if length >= size:
            assert set(used.values()) <= {1}, (batch, length)
        assert all(1 <= len(step) <= batch + 1 for share in shares for step in share)


@pytest.mark.parametrize("size", range(1, 9))
def test_after_any_step_what_was_used_is_the_beginning_of_the_order(size: int) -> None:
    for batch, length in itertools.product(range(1, 5), range(40)):
        rest = list(range(length))
        shares = [list(partition.steps(rest, batch, rank, size)) for rank in range(size)]
        position = 0
        for step in zip(*shares, strict=True):
            position = partition.step_end(position, length, batch, size)
            assert set(itertools.chain(*step)) == set(rest[:position]) - set(rest[: position - len(set().union(*step))])
        assert position == length


def test_horovods_shares_are_equally_long_and_miss_nothing() -> None:
    for size, length in itertools.product(range(1, 9), range(40)):
        rest = list(range(length))
        shares = [partition.dealt(rest, rank, size) for rank in range(size)]
        assert len({len(share) for share in shares}) == 1
        used = Counter(itertools.chain(*shares))
        assert set(used) == set(rest) and sum(used.values()) - length < size


def test_samples_are_used_once_over_many_histories_of_ranks() -> None:
    """Positions alone, for many more seeds than whole trainings could have."""
    for seed in range(20_000):
        dice = random.Random(seed)
        length, batch, size = dice.randrange(1, 60), dice.randrange(1, 5), dice.randrange(1, 7)
        order = partition.order(length, shuffle=True, seed=seed, epoch=0)
        used: Counter[int] = Counter()
        position, has_grown = 0, False
        while position < length:
            rest = order[position:]
            steps = list(zip(*(partition.steps(rest, batch, rank, size) for rank in range(size))))
            done = dice.randrange(len(steps) + 1)
            for step in steps[:done]:
                used.update(itertools.chain(*step))
                position += partition.step_end(0, length - position, batch, size)
            before, size = size, dice.randrange(1, 7)
            has_grown = has_grown or size > before
        assert set(used) == set(order), f"seed {seed}"
        if not has_grown and length >= 6:
            assert set(used.values()) == {1}, f"seed {seed}"
        assert sum(used.values()) - length < 6, f"seed {seed}"


def test_a_sampler_goes_on_where_its_state_says() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    loader = DataLoader(range(10), batch_size=2, sampler=sampler)
    for number, _ in enumerate(loader):
        sampler.record_batch(number, 2)
        if number == 1:
            break
    state = sampler.state_dict()
    assert state["epoch"] == 0 and state["processed_num"] == 4
    other = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    other.load_state_dict(state)
    assert list(other) == [4, 5, 6, 7, 8, 9] and len(other) == 6
    other.record_indices([5, 9])
    other.reset()
    assert list(other) == [4, 6, 7, 8]
    other.set_epoch(1)
    assert list(other) == list(range(10))
    # What Horovod saved has no indices.
    other.load_state_dict({"epoch": 2, "processed_num": 9})
    assert list(other) == [9] and other.epoch == 2


def test_shuffling_is_horovods() -> None:
    expected = list(range(20))
    random.Random(7 + 3).shuffle(expected)
    sampler = hvd.elastic.ElasticSampler(range(20), seed=7)
    sampler.set_epoch(3)
    assert list(sampler) == expected


# Whose state goes on


@pytest.mark.parametrize(
    ("standings", "decision"),
    [
        # The job begins: rank 0's state, and its place in the samples.
        ([(NOTHING, 2, 5), (NOTHING, 0, 0)], (0, True, 0, 2, 5)),
        # Nobody is ahead.
        ([(7, 1, 40), (7, 1, 40)], (0, False, 7, 1, 40)),
        # One has completed the step; its samples are used.
        ([(7, 1, 40), (8, 1, 44), (7, 1, 40)], (1, True, 8, 1, 44)),
        # It has even begun the next epoch.
        ([(7, 1, 40), (8, 2, 0)], (1, True, 8, 2, 0)),
        # A newcomer has no say, wherever its script begins.
        ([(7, 1, 40), (NOTHING, 9, 99)], (0, True, 7, 1, 40)),
        # A step is to be dropped that one rank had not begun.
        ([(7, 1, 40), (7, 1, 44)], (0, False, 7, 1, 44)),
        # The step that one rank would drop is done.
        ([(7, 1, 48), (8, 1, 44)], (1, True, 8, 1, 44)),
    ],
)
def test_the_newest_complete_state_goes_on(standings: list[tuple[int, ...]], decision: tuple[Any, ...]) -> None:
    assert decide([Standing(*standing) for standing in standings]) == Decision(*decision)


def test_outside_of_a_job_a_fence_lets_everything_through() -> None:
    assert hvd.elastic.fence() == 0


# The loop


class Recorded(elastic.State):
    """Writes down what happens to it."""

    def __init__(self) -> None:
        super().__init__(bcast_object=lambda value: value, get_rank=lambda: 0)
        self.happened: list[str] = []

    def save(self) -> None:
        self.happened.append("save")

    def restore(self) -> None:
        self.happened.append("restore")

    def sync(self) -> None:
        self.happened.append("sync")

    def reset(self) -> None:
        self.happened.append("reset")


def run_with(state: Recorded, *raised: BaseException) -> Any:
    """Runs a function that raises one after the other, and then returns."""
    left = list(raised)

    def train(state: Recorded, word: str) -> str:
        state.happened.append("train")
        if left:
            raise left.pop(0)
        return word

    return elastic.run_fn(train, lambda: state.happened.append("init"))(state, "done")


def test_a_lost_rank_costs_what_was_not_committed() -> None:
    state = Recorded()
    assert run_with(state, HorovodInternalError("lost")) == "done"
    assert state.happened == ["sync", "train", "restore", "init", "reset", "sync", "train"]


@pytest.mark.parametrize("skip_sync", [False, True])
def test_an_interrupt_costs_nothing(skip_sync: bool) -> None:
    state = Recorded()
    assert run_with(state, HostsUpdatedInterrupt(skip_sync)) == "done"
    again = ["train"] if skip_sync else ["sync", "train"]
    assert state.happened == ["sync", "train", "init", "reset", *again]


def test_a_rank_that_could_do_without_synchronizes_with_one_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each deciding for itself was a deadlock: Horovod's issue 3494."""
    monkeypatch.setattr(native, "largest", lambda values, name: [1, *values[1:]])
    state = Recorded()
    run_with(state, HostsUpdatedInterrupt(skip_sync=True))
    assert state.happened == ["sync", "train", "init", "reset", "sync", "train"]


def test_other_errors_end_the_function_and_the_listening() -> None:
    state = Recorded()
    with pytest.raises(ZeroDivisionError):
        run_with(state, ZeroDivisionError())
    elastic.notification_manager.handle_hosts_updated(1.0, HostUpdateResult.added)
    state.check_host_updates()


def test_callbacks_run_after_each_reset() -> None:
    state, called = Recorded(), []
    state.register_reset_callbacks([lambda: called.append(1), lambda: called.append(2)])
    run_with(state, HorovodInternalError("lost"), HostsUpdatedInterrupt())
    assert called == [1, 2, 1, 2]


# News of hosts


@pytest.mark.parametrize(
    ("updates", "skip_sync"),
    [
        ([HostUpdateResult.removed], True),
        ([HostUpdateResult.added], False),
        ([HostUpdateResult.removed, HostUpdateResult.added], False),
        ([HostUpdateResult.mixed], False),
    ],
)
def test_news_interrupt_at_the_next_check_and_once(updates: list[HostUpdateResult], skip_sync: bool) -> None:
    state = Recorded()
    elastic.notification_manager.register_listener(state)
    try:
        for number, update in enumerate(updates):
            elastic.notification_manager.handle_hosts_updated(1.0 + number, update)
        assert not state._host_messages.empty()
        with pytest.raises(HostsUpdatedInterrupt) as interrupt:
            state.commit()
        assert interrupt.value.skip_sync == skip_sync and state.happened == ["save"]
        state.check_host_updates()
        # Nothing happens twice for a message of the past.
        elastic.notification_manager.handle_hosts_updated(0, HostUpdateResult.added)
        state.check_host_updates()
    finally:
        elastic.notification_manager.remove_listener(state)


def test_processes_that_wait_interrupt_until_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Recorded()
    state.check_host_updates()
    assert state._host_messages.empty()
    monkeypatch.setattr(native, "candidates", lambda: 2)
    assert not state._host_messages.empty()
    with pytest.raises(HostsUpdatedInterrupt) as interrupt:
        state.check_host_updates()
    assert not interrupt.value.skip_sync


# Policies


def test_a_rate_is_scaled_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "size", lambda: 4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    policy = elastic.LinearScaling(optimizer, scheduler)
    committed = optimizer.state_dict()
    for size in (2, 2, 8):
        monkeypatch.setattr(native, "size", lambda: size)
        policy()
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.5 * size / 4
    # A commit of four ranks comes back on eight.
    optimizer.load_state_dict(committed)
    policy()
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_a_total_batch_is_kept_by_more_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "size", lambda: 8)
    policy = elastic.KeepTotalBatch(total_batch=256, batch=16)
    for size, passes, total in [(8, 2, 256), (4, 4, 256), (5, 3, 240), (100, 1, 1600)]:
        monkeypatch.setattr(native, "size", lambda: size)
        policy()
        assert (policy.passes, policy.total) == (passes, total)
    with pytest.raises(ValueError, match="count samples"):
        elastic.KeepTotalBatch(0, 16)


# Parameters


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int8]
)
def test_any_bit_changes_the_hash(dtype: torch.dtype) -> None:
    parameters = [torch.arange(12).reshape(3, 4).to(dtype), torch.arange(5).to(dtype)]

    def fingerprint(tensors: list[torch.Tensor]) -> list[int]:
        named = [("", tensor) for tensor in tensors]
        return _native.state_digests([(address, size, owner) for _, address, size, _, owner in pieces(named, True)])

    before = fingerprint(parameters)
    assert fingerprint([tensor.clone() for tensor in parameters]) == before
    for tensor in parameters:
        data = tensor.view(torch.uint8).flatten() if not tensor.is_complex() else torch.view_as_real(tensor).view(
            torch.uint8
        ).flatten()
        for at, bit in itertools.product(range(len(data)), range(8)):
            data[at] ^= 1 << bit
            assert fingerprint(parameters) != before
            data[at] ^= 1 << bit
    assert fingerprint(parameters[::-1]) != before


# Misuse


def test_misuse_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    with pytest.raises(ValueError, match='"repeat" or "drop"'):
        hvd.elastic.Training(optimizer, on_loss="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="check_every"):
        hvd.elastic.Training(optimizer, check_every=0)
    with pytest.raises(ValueError, match="at least one sample"):
        hvd.elastic.ElasticBatchSampler(hvd.elastic.ElasticSampler(range(3)), 0)
    training = hvd.elastic.Training(optimizer)
    loader = DataLoader(range(3), sampler=hvd.elastic.ElasticSampler(range(3)))
    with pytest.raises(ValueError, match=r"Training\(sampler="):
        next(training.batches(loader))
