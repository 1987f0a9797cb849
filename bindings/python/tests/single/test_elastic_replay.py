"""What is streamed of a training with PyTorch: a process that takes it over has the same bits as the one that sent it;
and who decides what, when some have got a state in this way."""

from __future__ import annotations

import copy
from typing import Any, Callable

import pytest
import torch

from farandole import _native
from farandole.elastic.agreement import NOTHING, Standing, decide
from farandole.elastic.follower import Follower, Note
from farandole.torch.elastic import replay, transfer

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "nesterov": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3, foreach=True
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2), foreach=False),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, centered=True, momentum=0.5),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters),
}


class Side:
    """One of the two processes."""

    def __init__(self, kind: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(16, 2)
        ).to(memory_format=torch.channels_last)
        self.unused = torch.nn.Parameter(torch.zeros(3))
        self.optimizer = OPTIMIZERS[kind]([*self.model.parameters(), self.unused])
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.parts = replay.Parts(self.model, self.optimizer, {"scheduler": self.scheduler})
        self.recorder = replay.Recorder()
        self.optimizer.register_step_pre_hook(lambda *_unused: self.recorder.optimizer_steps(self.parts, False))

    def step(self, number: int) -> bytearray:
        """Makes a step. What is streamed of it."""
        torch.manual_seed(number)
        self.optimizer.zero_grad()
        self.recorder.clear()
        self.model(torch.randn(5, 3, 4, 4)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        update = self.recorder.update(self.parts)
        assert update is not None
        return as_sent(update)

    def trained(self) -> list[torch.Tensor]:
        parameters = self.parts.parameters
        return [one.detach() for one in parameters] + transfer.optimizer_tensors(self.optimizer, parameters)


def as_sent(streamable: replay.Streamable) -> bytearray:
    content = bytearray(streamable.head)
    for tensor in streamable.tensors:
        content += tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return content


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_replayed_steps_give_the_same_bits(kind: str) -> None:
    here, there = Side(kind, 1), Side(kind, 2)
    for number in range(3):
        here.step(number)
    replay.restore(there.parts, as_sent(replay.snapshot(here.parts)))
    for number in range(3, 8):
        replay.apply(there.parts, here.step(number))
    for mine, other in zip(here.trained(), there.trained(), strict=True):
        assert torch.equal(mine, other)
    assert transfer.digests(here.trained()) == transfer.digests(there.trained())
    assert here.scheduler.state_dict()["last_epoch"] == there.scheduler.state_dict()["last_epoch"] == 8
    assert here.model[0].weight.stride() == there.model[0].weight.stride()


def test_a_snapshot_before_the_first_step_and_a_block_without_one() -> None:
    here, there = Side("adam", 1), Side("adam", 2)
    replay.restore(there.parts, as_sent(replay.snapshot(here.parts)))
    here.recorder.clear()
    nothing = here.recorder.update(here.parts)
    assert nothing is not None and not nothing.tensors
    replay.apply(there.parts, as_sent(nothing))
    replay.apply(there.parts, here.step(0))
    assert all(torch.equal(mine, other) for mine, other in zip(here.trained(), there.trained(), strict=True))


def test_what_does_not_fit_changes_nothing() -> None:
    here, there = Side("adam", 1), Side("adam", 2)
    update, snapshot = here.step(0), as_sent(replay.snapshot(here.parts))
    before = copy.deepcopy(there.trained())
    for take, content in ((replay.restore, snapshot), (replay.apply, update)):
        for end in (0, 7, 20, len(content) - 1):
            with pytest.raises(ValueError):
                take(there.parts, content[:end])
    small = torch.nn.Linear(2, 2)
    other = replay.Parts(small, torch.optim.SGD(small.parameters(), lr=0.1), {})
    with pytest.raises(ValueError, match="the model of this process is not that of a member"):
        replay.restore(other, snapshot)
    with pytest.raises(ValueError, match="shapes"):
        replay.apply(other, update)
    assert all(torch.equal(mine, was) for mine, was in zip(there.trained(), before, strict=True))


def test_closures_and_sparse_gradients_are_not_streamed() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    parts = replay.Parts(table, torch.optim.SparseAdam(table.parameters()), {})
    table(torch.tensor([1])).sum().backward()
    recorder = replay.Recorder()
    recorder.optimizer_steps(parts, False)
    assert recorder.update(parts) is None
    recorder.clear()
    table.weight.grad = None
    recorder.optimizer_steps(parts, True)
    assert recorder.update(parts) is None


def test_digests_see_every_bit() -> None:
    one, other = torch.zeros(1000), torch.zeros(1000)
    other[999] = -0.0
    same, empty = one.reshape(10, 100).t().contiguous().t(), torch.zeros(0)
    digests = transfer.digests([one, other, same, empty])
    assert digests[0] == digests[2] != digests[1]
    with pytest.raises(ValueError, match="null address"):
        _native.state_digests([(0, 8, one)])


class Stream:
    """Words as they come from a member; each is (word, note, content, bytes left)."""

    def __init__(self, *words: tuple[str, bytes, bytearray, int]) -> None:
        self.words = list(words)

    def receive(self, _seconds: float) -> Any:
        return self.words.pop(0) if self.words else None


class Joining:
    """What a process that joins is given by the engine."""

    def __init__(self, *streams: Stream | None) -> None:
        self.streams, self.has_gone, self.looks = streams, False, 0

    @property
    def sources(self) -> int:
        return len(self.streams)

    def connect(self, number: int) -> Stream:
        stream = self.streams[number]
        if stream is None:
            raise OSError("it is gone")
        return stream

    def go(self) -> None:
        self.has_gone = True

    def is_over(self) -> bool:
        self.looks += 1
        return self.looks > 3


def word(kind: str, completed: int = 0, content: bytes = b"", left: int = 0) -> tuple[str, bytes, bytearray, int]:
    return kind, Note(completed, 1, 7 * completed).encode(), bytearray(content), left


def follower() -> tuple[Follower, list[bytes]]:
    state: list[bytes] = []

    def restore(content: bytearray) -> None:
        state[:] = [bytes(content)]

    def apply(content: bytearray) -> None:
        if not content:
            raise ValueError("an update is empty")
        state.append(bytes(content))

    return Follower(restore, apply), state


def test_a_follower_joins_when_little_is_left_and_goes_on() -> None:
    one, state = follower()
    snapshot = word("snapshot", 5, b"state" * 10, left=40)
    stream = Stream(word("wait"), snapshot, word("update", 6, b"a", left=4), word("update", 7, b"b"))
    joining = Joining(None, stream)
    one.follow(joining)
    assert joining.has_gone and state == [b"state" * 10, b"a", b"b"] and one.standing == Note(7, 1, 49)
    stream.words = [word("update", 8, b"c")]
    assert one.catch_up(8) and state[-1] == b"c"
    stream.words = [word("wait"), word("wait")]
    assert not one.catch_up(9), "what has not come does not come"
    one.stop()
    assert one.standing is None


def test_a_follower_asks_another_member_when_one_is_lost() -> None:
    one, state = follower()
    lost = Stream(word("snapshot", 5, b"old", left=10**6), ("lost", b"closed", bytearray(), 0))
    one.follow(Joining(lost, Stream(word("snapshot", 9, b"new"))))
    assert state == [b"new"] and one.standing == Note(9, 1, 63)


def test_a_follower_that_is_refused_or_gets_nonsense_joins_with_nothing(caplog: pytest.LogCaptureFixture) -> None:
    one, state = follower()
    one.follow(Joining(Stream(("join_now", b"the job is full", bytearray(), 0))))
    assert one.standing is None and not state and not one.catch_up(3)
    one.follow(Joining(Stream(word("snapshot", 5, b"state", left=10**6), word("update", 6, b""))))
    assert one.standing is None and "an update is empty" in caplog.text
    one.follow(Joining())
    assert one.standing is None


def test_a_state_that_has_changed_otherwise_is_out_of_date_at_once() -> None:
    one, state = follower()
    stream = Stream(word("snapshot", 5, b"state"))
    one.follow(Joining(stream))
    stream.words = [word("again")]
    assert not one.catch_up(6)
    stream.words = [word("snapshot", 6, b"other")]
    one._take(0)
    assert one.catch_up(6) and state == [b"other"]


def test_what_was_streamed_is_compared_and_has_no_say() -> None:
    streamed = Standing(8, 0, 80, 1)
    ahead = decide([streamed, Standing(7, 0, 70), Standing(7, 0, 70)])
    assert (ahead.source, ahead.is_sent, ahead.is_to_compare, ahead.completed) == (1, False, True, 7)
    assert ahead.position == 70
    missed = decide([Standing(6, 0, 60), Standing(7, 0, 70), streamed])
    assert (missed.source, missed.is_sent, missed.is_to_compare) == (1, True, False)
    assert decide([Standing(7, 0, 70), Standing(NOTHING, 0, 0), streamed]).is_sent


def test_what_was_streamed_is_the_state_if_nobody_else_is_left() -> None:
    decision = decide([Standing(NOTHING, 0, 0), Standing(5, 0, 50, 1), Standing(7, 0, 70, 1)])
    assert (decision.source, decision.is_sent, decision.is_to_compare) == (2, True, False)
    assert (decision.completed, decision.position) == (7, 70)
    assert decide([Standing(7, 0, 70, 1), Standing(7, 0, 70, 1)]).is_sent, "nobody has compared them"
    assert not decide([Standing(7, 0, 70, 1)]).is_sent
