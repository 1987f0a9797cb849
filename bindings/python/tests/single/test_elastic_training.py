"""`hvd.elastic.Training` on ranks that die and join at any moment: every sample is in the model once, on all ranks.

The ranks are threads of one process, and the engine is a substitute (`elastic_world`). The model counts: its parameter
has an element for each sample, and a step adds one for each sample of its batch. So at the end it says how often each
sample was used in an update.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import torch
from elastic_world import World
from torch.utils.data import DataLoader

from farandole.elastic import agreement, native
from farandole.elastic.policies import KeepTotalBatch, LinearScaling
from farandole.exceptions import HorovodInternalError
from farandole.torch.elastic import ElasticBatchSampler, ElasticSampler, Training
from farandole.torch.elastic import training as training_module


SEEDS = int(os.environ.get("ELASTIC_SEEDS", "150"))
"""For each of the long tests. More of them, for whoever changes what is tested here, take about 0.04 s each."""


def sum_of(world: World, name: str, tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack(world.gather(name, tensor.clone())).sum(0)


def counting(samples: int, epochs: int, batch: int, padded: bool = False, together: Any = None, **options: Any) -> Any:
    """A script that trains the model that counts, and returns the counts and the training."""

    def script(world: World) -> tuple[list[int], Training]:
        counts = torch.nn.Parameter(torch.zeros(samples))
        optimizer = torch.optim.SGD([counts], lr=1.0)
        sampler = ElasticSampler(range(samples), seed=3)
        training = Training(optimizer, sampler=sampler, **options)
        loader: Any = DataLoader(range(samples), batch_sampler=ElasticBatchSampler(sampler, batch))
        if padded:
            loader = DataLoader(range(samples), batch_size=batch, sampler=sampler)
        for epoch in training.epochs(epochs):
            for group in training.batches(loader, together):
                with training.step():
                    optimizer.zero_grad()
                    gradient = torch.zeros(samples)
                    for indices in group if together else [group]:
                        gradient[indices] -= 1
                    counts.grad = sum_of(world, "gradient", gradient)
                    optimizer.step()
                    # Something may go wrong in a step after the optimizer has made it.
                    sum_of(world, "loss", torch.ones(1))
            ranks, at = training.call(lambda: (sum_of(world, "test", torch.ones(1)).item(), training.epoch))
            assert ranks >= 1 and at == epoch
        return counts.tolist(), training

    return script


def run_world(patch: pytest.MonkeyPatch, seed: int, script: Any, **options: Any) -> tuple[World, list[list[int]]]:
    world = World(seed, ranks=1 + seed % 5, script=script, most_ranks=6, **options)
    world.replace_engine(patch)
    results = world.run()
    assert results, f"seed {seed}: nobody is left"
    counts = [counts for counts, _ in results.values()]
    assert all(other == counts[0] for other in counts), f"seed {seed}: ranks differ"
    steps = {training.steps for _, training in results.values()}
    assert len(steps) == 1, f"seed {seed}: {steps}"
    return world, counts


@pytest.mark.timeout(60 + SEEDS / 4)
def test_every_sample_is_used_once_whoever_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = 0
    for seed in range(SEEDS):
        samples, batch = 20 + seed % 37, 1 + seed % 4
        world, counts = run_world(monkeypatch, seed, counting(samples, 2, batch), kills=0.04, joins=0)
        assert set(counts[0]) == {2}, f"seed {seed}: {counts[0]}"
        deaths += world.deaths
    assert deaths > 100, deaths


@pytest.mark.timeout(60 + SEEDS / 4)
def test_every_sample_is_used_once_whoever_dies_and_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = arrivals = repeated = 0
    for seed in range(SEEDS):
        samples, batch = 30 + seed % 41, 1 + seed % 4
        world, counts = run_world(monkeypatch, seed, counting(samples, 2, batch), kills=0.04, joins=0.02)
        # Fewer samples than ranks may be left when somebody joins at the end of an epoch.
        assert min(counts[0]) == 2 and sum(counts[0]) - 2 * samples <= 2 * 5, f"seed {seed}: {counts[0]}"
        deaths, arrivals = deaths + world.deaths, arrivals + world.arrivals
        repeated += sum(counts[0]) != 2 * samples
    assert deaths > 100 and arrivals > 100, (deaths, arrivals)
    assert repeated < 30, repeated


@pytest.mark.timeout(60 + SEEDS / 4)
def test_a_dropped_step_is_used_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = 0
    for seed in range(80):
        script = counting(30, 2, 2, on_loss="drop")
        world, counts = run_world(monkeypatch, seed, script, kills=0.04, joins=0)
        assert max(counts[0]) <= 2, f"seed {seed}: {counts[0]}"
        missing = 2 * 30 - sum(counts[0])
        # A step has two samples of each of five ranks, and two more where the last step would have been too small.
        assert missing <= 14 * world.deaths, f"seed {seed}: {missing}"
        dropped += missing > 0
    assert dropped > 20, dropped


def test_horovods_sampler_repeats_samples_only_to_make_shares_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        script = counting(31, 2, 2, padded=True)
        world, counts = run_world(monkeypatch, seed, script, kills=0.04, joins=0)
        assert min(counts[0]) == 2 and sum(counts[0]) - 2 * 31 <= 2 * 4, f"seed {seed}: {counts[0]}"


def test_steps_of_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):

        def script(world: World) -> Any:
            policy = KeepTotalBatch(total_batch=12, batch=2)
            return counting(50, 2, 2, together=policy, policy=policy)(world)

        _, counts = run_world(monkeypatch, seed, script, kills=0.04, joins=0)
        assert set(counts[0]) == {2}, f"seed {seed}: {counts[0]}"


@pytest.mark.parametrize("on_loss", ["repeat", "drop"])
def test_ranks_with_loaders_of_their_own_are_at_the_same_batch(on_loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(world: World) -> tuple[list[int], Training]:
        counts = torch.nn.Parameter(torch.zeros(12))
        optimizer = torch.optim.SGD([counts], lr=1.0)
        training = Training(optimizer, on_loss=on_loss)
        for _ in training.epochs(2):
            for number in training.batches(range(12)):
                with training.step() as step:
                    steps = training.steps
                    assert len(set(world.gather("gradient", number))) == 1
                    counts.grad = torch.zeros(12)
                    counts.grad[number] = -1
                    optimizer.step()
                    sum_of(world, "loss", torch.ones(1))
                assert step.completed == (training.steps > steps)
        return counts.tolist(), training

    fewer = 0
    for seed in range(80):
        _, counts = run_world(monkeypatch, seed, script, kills=0.03, joins=0.02)
        assert max(counts[0]) == 2, f"seed {seed}: {counts[0]}"
        fewer += min(counts[0]) < 2
    assert fewer > 20 if on_loss == "drop" else fewer == 0, fewer


def test_a_job_of_one_rank_and_no_faults_makes_the_expected_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0, ranks=1, script=counting(10, 3, 4), kills=0, joins=0, most_ranks=1)
    world.replace_engine(monkeypatch)
    ((counts, training),) = world.run().values()
    assert set(counts) == {3} and training.steps == 9


def test_the_learning_rate_follows_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(world: World) -> Any:
        counts = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([counts], lr=0.125 * native.size())
        training = Training(optimizer, policy=LinearScaling(optimizer))
        # As many as will do for everybody to have come and gone.
        while training.steps < 30:
            with training.step():
                counts.grad = sum_of(world, "gradient", torch.ones(1))
                optimizer.step()
        return optimizer.param_groups[0]["lr"], native.size()

    changed = 0
    for seed in range(30):
        world = World(seed, ranks=4, script=script, kills=0.02, joins=0.02, most_ranks=6)
        world.replace_engine(monkeypatch)
        for rate, size in world.run().values():
            assert rate == pytest.approx(0.125 * size), f"seed {seed}"
            changed += size != 4
    assert changed > 20, changed


def test_a_script_that_always_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = itertools.count()

    def script(world: World) -> None:
        counts = torch.nn.Parameter(torch.zeros(1))
        training = Training(torch.optim.SGD([counts], lr=1.0))
        while True:
            with training.step():
                next(tries)
                raise HorovodInternalError("ranks refuse each other's shapes")

    # As often as in a real job, without the pauses.
    monkeypatch.setattr(
        training_module, "retry_pause", lambda failed: None if agreement.retry_pause(failed) is None else 0.0
    )
    world = World(1, ranks=3, script=script, kills=0, joins=0, most_ranks=3)
    world.replace_engine(monkeypatch)
    with pytest.raises(HorovodInternalError, match="refuse each other's shapes"):
        world.run()
    assert 10 <= next(tries) <= 30  # Ten on each rank, less those in which it heard of another's failure first.
