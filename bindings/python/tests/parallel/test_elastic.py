"""Elastic training on real ranks. All of them come to the boundary by themselves, by raising what a lost rank would
raise, and enter the next job, which has the same ranks; nobody dies here."""

from __future__ import annotations

import pathlib
import tempfile
from collections import Counter
from typing import Any

import pytest
import torch
from models import same_everywhere, small_network
from torch.utils.data import DataLoader
from waiting import lapse, wait_for

import farandole.torch as hvd
from farandole.elastic import native
from farandole.exceptions import HorovodInternalError
from farandole.torch.elastic.training import Training

pytestmark = pytest.mark.usefixtures("job")


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The job takes itself for an elastic one. The sizes of the generations that were entered."""
    sizes: list[int] = []

    def next_generation() -> None:
        original()
        sizes.append(hvd.size())

    original = native.next_generation
    monkeypatch.setattr(native, "enabled", lambda: True)
    monkeypatch.setattr(native, "next_generation", next_generation)
    return sizes


LATER_S = 0.3
"""By then the other ranks have heard what this one has told them before. If not, the test tests less, and passes."""

INPUT = (6,)


def network_and_optimizer(seed: int, momentum: float = 0.9) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(seed)
    network = small_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=momentum)
    return network, hvd.DistributedOptimizer(optimizer, network.named_parameters())


def backward(network: torch.nn.Module, optimizer: Any, number: int = 0) -> None:
    optimizer.zero_grad()
    inputs = torch.full((2, *INPUT), float(number + hvd.rank() + 1) / 8)
    network(inputs).sum().backward()


def all_alike(network: torch.nn.Module, optimizer: Any) -> bool:
    momenta = [state["momentum_buffer"] for state in optimizer.state.values() if "momentum_buffer" in state]
    return all(same_everywhere(tensor) for tensor in [*network.state_dict().values(), *momenta])


def test_a_state_is_saved_restored_and_made_alike() -> None:
    network, optimizer = network_and_optimizer(seed=hvd.rank())
    sampler = hvd.elastic.ElasticSampler(range(100))
    state = hvd.elastic.TorchState(network, optimizer, sampler=sampler, batch=20 + hvd.rank(), seen=[])
    state.sync()
    assert state.batch == 20 and all_alike(network, optimizer)
    # A sync is a commit, also of what handlers have.
    kept = [parameter.detach().clone() for parameter in network.parameters()]
    backward(network, optimizer)
    optimizer.step()
    sampler.record_batch(0, 4)
    state.batch, _ = 21, state.seen.append(1)
    state.restore()
    assert all(torch.equal(one, other) for one, other in zip(network.parameters(), kept, strict=True))
    assert state.batch == 20 and state.seen == [] and sampler.processed_num == 0
    sampler.record_batch(0, 4)
    state.batch = 21
    state.commit()
    state.batch = 22
    state.restore()
    assert state.batch == 21 and sampler.processed_num == 4 * hvd.size()
    # Twice: what was kept is not what the optimizer works on.
    backward(network, optimizer)
    optimizer.step()
    state.restore()
    assert len(sampler) == -(-(100 - 4 * hvd.size()) // hvd.size())


def test_recorded_indices_are_put_together() -> None:
    sampler = hvd.elastic.ElasticSampler(range(40), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_indices([hvd.rank(), 30 + hvd.rank()])
    state.sync()
    shares = hvd.allgather_object(list(sampler))
    used = set().union(*shares)
    assert used == set(range(40)) - {base + rank for base in (0, 30) for rank in range(hvd.size())}


def test_a_value_may_be_replaced_and_handlers_registered() -> None:
    class Clock:
        ticks = 0

    class ClockHandler(hvd.elastic.state.StateHandler):
        def save(self) -> None:
            self.saved = self.value.ticks

        def restore(self) -> None:
            self.value.ticks = self.saved

        def sync(self) -> None:
            self.value.ticks = hvd.broadcast_object(self.value.ticks)

    registry = hvd.elastic.state.get_handler_registry()
    hvd.elastic.state.set_handler_registry([(Clock, ClockHandler), *registry])
    try:
        state = hvd.elastic.TorchState(clock=Clock(), model=small_network())
        other = Clock()
        other.ticks = 5 + hvd.rank()
        state.clock = other
        assert state.clock is other
        other.ticks = 9
        state.restore()
        assert other.ticks == 5 + hvd.rank()
        state.sync()
        assert other.ticks == 5
        replaced = small_network()
        state.model = replaced
        state.save()
        assert state.model is replaced
    finally:
        hvd.elastic.state.set_handler_registry(registry)


def assert_as_without_faults(network: torch.nn.Module, steps: int) -> None:
    """The parameters are those after so many steps of `backward` with the numbers from zero on."""
    expected, optimizer = network_and_optimizer(seed=0)
    hvd.broadcast_parameters(expected.state_dict(), root_rank=0)
    for number in range(steps):
        backward(expected, optimizer, number)
        optimizer.step()
    for mine, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_function_begins_again_with_the_last_commit(entered: list[int]) -> None:
    network, optimizer = network_and_optimizer(seed=hvd.rank())
    state = hvd.elastic.TorchState(network, optimizer, batch=0)
    resets = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state: Any, last: int) -> str:
        while state.batch < last:
            backward(network, optimizer, state.batch)
            if (state.batch, len(entered)) in [(3, 0), (7, 1)]:
                # Gradients are in flight, on some ranks.
                raise HorovodInternalError("a rank is lost")
            optimizer.step()
            state.batch += 1
            if state.batch % 2 == 0:
                state.commit()
        return "done"

    assert train(state, 10) == "done"
    assert state.batch == 10 and resets == [hvd.size()] * 2 and all_alike(network, optimizer)
    assert_as_without_faults(network, 10)


def test_a_function_returns_when_it_has_returned_everywhere(entered: list[int]) -> None:
    state = hvd.elastic.TorchState(rounds=0)
    begun = []

    @hvd.elastic.run
    def train(state: Any) -> int:
        begun.append(state.rounds)
        state.rounds = 1
        state.commit()
        if not entered and hvd.rank() == hvd.size() - 1:
            lapse("the last rank, which returns later", LATER_S)
            raise HorovodInternalError("a rank is lost, in the last moment")
        return hvd.size()

    assert train(state) == hvd.size()
    assert begun == [0, 1] and len(entered) == 1


def test_all_ranks_are_interrupted_if_one_knows_of_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = {"candidates": 0}
    monkeypatch.setattr(native, "candidates", lambda: waiting["candidates"])
    state = hvd.elastic.TorchState(batch=0)
    begun = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        begun.append(state.batch)
        waiting["candidates"] = 0
        while state.batch < 6:
            state.batch += 1
            if len(begun) == 1 and state.batch == 4 and hvd.rank() == hvd.size() - 1:
                waiting["candidates"] = 1
            state.commit()

    train(state)
    assert begun == [0, 4] and state.batch == 6


def test_a_training_begins_with_rank_zeros_state(entered: list[int]) -> None:
    network, optimizer = network_and_optimizer(seed=hvd.rank())
    training = Training(optimizer, network)
    for number in range(3):
        with training.step() as step:
            backward(network, optimizer, number)
            optimizer.step()
        assert step.completed
    assert training.steps == 3 and all_alike(network, optimizer)


@pytest.mark.parametrize("ahead", ["nobody", "the last", "all but the first"])
def test_a_step_that_some_have_made_is_made_by_all(ahead: str, entered: list[int]) -> None:
    network, optimizer = network_and_optimizer(seed=hvd.rank())
    training = Training(optimizer, network)
    is_last = hvd.rank() == hvd.size() - 1
    is_ahead = {"nobody": False, "the last": is_last, "all but the first": hvd.rank() > 0}[ahead]
    ranks_ahead = sum(hvd.allgather_object(is_ahead))
    # Where ranks leave notes for each other.
    place = pathlib.Path(hvd.broadcast_object(tempfile.mkdtemp()))
    made = []
    while training.steps < 6:
        number = training.steps
        with training.step():
            if is_ahead and number == 4 and not entered:
                (place / str(hvd.rank())).touch()
                # One that left at once could end step 3 of another one.
                wait_for("the others that are ahead", lambda: len(list(place.iterdir())) == ranks_ahead)
                raise HorovodInternalError("a rank is lost, heard after step 3")
            backward(network, optimizer, number)
            if not is_ahead and number == 3 and not entered:
                optimizer.synchronize()
                wait_for("those that are ahead", lambda: len(list(place.iterdir())) == ranks_ahead)
                raise HorovodInternalError("a rank is lost, heard within step 3")
            optimizer.step()
            made.append(number)
    assert len(entered) == 1 and all_alike(network, optimizer)
    is_behind = not is_ahead and ahead != "nobody" and hvd.size() > 1
    assert made == ([0, 1, 2, 4, 5] if is_behind else [0, 1, 2, 3, 4, 5])
    assert_as_without_faults(network, 6)


class Replaced(Exception):
    """Ends the training of a rank whose process goes on as the one that replaces it."""


def test_a_rank_that_joins_gets_model_optimizer_and_place(entered: list[int]) -> None:
    """The last rank forgets everything, as its replacement would know nothing."""
    is_replaced = hvd.rank() == hvd.size() - 1 and hvd.size() > 1
    used: Counter[int] = Counter()

    def begin(seed: int) -> tuple[Any, ...]:
        network, optimizer = network_and_optimizer(seed)
        network.register_buffer("statistics", torch.full((3,), float(seed)))
        sampler = hvd.elastic.ElasticSampler(range(37), seed=5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
        training = Training(optimizer, network, sampler=sampler, scheduler=scheduler)
        loader = DataLoader(range(37), batch_sampler=hvd.elastic.ElasticBatchSampler(sampler, 3))
        return network, optimizer, sampler, scheduler, training, loader

    def train(parts: tuple[Any, ...]) -> None:
        network, optimizer, _, scheduler, training, loader = parts
        for _ in training.epochs(2):
            for indices in training.batches(loader):
                with training.step():
                    if training.steps == 2 and not entered:
                        if is_replaced:
                            raise Replaced
                        backward(network, optimizer, 0)
                        lapse("this rank, which hears of it later", LATER_S)
                        raise HorovodInternalError("a rank is lost")
                    backward(network, optimizer, int(indices.sum()))
                    optimizer.step()
                    scheduler.step()
                    used.update(indices.tolist())

    parts = begin(seed=hvd.rank())
    if is_replaced:
        with pytest.raises(Replaced):
            train(parts)
        native.next_generation()
        parts = begin(seed=50)
    train(parts)
    network, optimizer, sampler, scheduler, training, _ = parts
    assert all_alike(network, optimizer)
    places = (training.steps, sampler.epoch, scheduler.last_epoch, optimizer.param_groups[0]["lr"])
    assert len(set(hvd.allgather_object(places))) == 1
    total: Counter[int] = sum(hvd.allgather_object(used), Counter())
    assert total == Counter({sample: 2 for sample in range(37)}), total


def test_calls_are_repeated_and_give_everybody_the_result(entered: list[int]) -> None:
    network, optimizer = network_and_optimizer(seed=1)
    training = Training(optimizer, network)
    calls = []

    def evaluate(word: str) -> str:
        calls.append(word)
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name="evaluation")
        if not entered and hvd.rank() == 0:
            raise HorovodInternalError("a rank is lost")
        return f"{word} {int(total)}"

    assert training.call(evaluate, "ranks") == f"ranks {hvd.size()}"
    assert len(calls) == 2 and len(entered) == 1


def test_candidates_are_taken_in_after_the_same_step(entered: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    network, optimizer = network_and_optimizer(seed=1)
    training = Training(optimizer, network)
    monkeypatch.setattr(native, "candidates", lambda: int(training.steps == 2 and hvd.rank() == hvd.size() - 1))
    generations = []
    for number in range(6):
        with training.step() as step:
            backward(network, optimizer, number)
            optimizer.step()
        assert step.completed
        generations.append(len(entered))
    # Asked after the second step, answered after the third.
    assert generations == [0, 0, 1, 1, 1, 1] and all_alike(network, optimizer)


def test_the_short_name_makes_steps_of_one_training(entered: list[int]) -> None:
    network, optimizer = network_and_optimizer(seed=hvd.rank())
    number = 0
    while number < 4:
        with hvd.elastic.step(optimizer, network) as step:
            backward(network, optimizer, number)
            if number == 2 and not entered:
                raise HorovodInternalError("a rank is lost")
            optimizer.step()
        number = step.training.steps
    assert len(entered) == 1 and all_alike(network, optimizer)
    assert_as_without_faults(network, 4)


@pytest.mark.parametrize("on_loss", ["repeat", "drop"])
def test_a_batch_of_any_loader_comes_again_or_not(on_loss: Any, entered: list[int]) -> None:
    network, optimizer = network_and_optimizer(seed=1)
    training = Training(optimizer, network, on_loss=on_loss)
    used = []
    for epoch in training.epochs(2):
        for number in training.batches(range(4)):
            with training.step():
                backward(network, optimizer, number)
                if number == 2 and not entered:
                    lapse("this rank, which hears of it later", LATER_S)
                    raise HorovodInternalError("a rank is lost")
                optimizer.step()
                used.append((epoch, number))
    expected = [(epoch, number) for epoch in range(2) for number in range(4)]
    assert used == (expected if on_loss == "repeat" else [*expected[:2], *expected[3:]])
    assert training.steps == len(used) and all_alike(network, optimizer)


def test_steps_that_ranks_could_not_agree_about_are_refused() -> None:
    network, optimizer = network_and_optimizer(seed=1)
    training = Training(optimizer, network)
    with training.step():
        backward(network, optimizer)
        optimizer.step()
        with pytest.raises(RuntimeError, match="twice in one block"):
            optimizer.step()
        with pytest.raises(RuntimeError, match="do not nest"):
            training.call(print)
    with pytest.raises(RuntimeError, match="outside of `with"):
        optimizer.step()
    other = Training(torch.optim.SGD(network.parameters(), lr=0.1))
    other.join()
    with pytest.raises(RuntimeError, match="another Training has begun"):
        training.step().__enter__()


def test_without_an_elastic_job_errors_pass() -> None:
    network, optimizer = network_and_optimizer(seed=1)
    with pytest.raises(HorovodInternalError, match="as it is"):
        with hvd.elastic.step(optimizer, network):
            raise HorovodInternalError("as it is")
    with pytest.raises(ZeroDivisionError):
        with hvd.elastic.step(optimizer):
            1 / 0  # noqa: B018


def test_parameters_that_differ_are_noticed_and_the_rank_is_named() -> None:
    network, optimizer = network_and_optimizer(seed=1)
    training = Training(optimizer, network, compare_every=2)
    odd = hvd.size() - 1
    with pytest.raises(hvd.elastic.ParametersDifferError) as found:
        for number in range(8):
            with training.step():
                backward(network, optimizer, number)
                optimizer.step()
                if number == 4 and hvd.rank() == odd:
                    with torch.no_grad():
                        next(network.parameters()).view(-1)[0] += 1e-3
    assert training.steps == 6
    assert found.value.ranks == ([odd] if hvd.size() > 2 else list(range(hvd.size())))
    assert "After step 6" in str(found.value)


def test_a_joiner_of_another_script_is_refused() -> None:
    if hvd.size() == 1:
        return
    is_other = hvd.rank() == hvd.size() - 1
    network = torch.nn.Linear(4, 3 if is_other else 2)
    training = Training(torch.optim.SGD(network.parameters(), lr=0.1), network)
    if is_other:
        with pytest.raises(ValueError, match="is not that of rank 0.*the same script"):
            training.join()
    else:
        # Until the other one ends.
        with pytest.raises(HorovodInternalError):
            training.join()
    native.next_generation()
