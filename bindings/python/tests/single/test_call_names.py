"""Names of calls: alike on all ranks, never twice at once, and the same again when calls repeat."""

from __future__ import annotations

import random

from farandole.torch.distributed.call_names import CallNames


def names_of(signatures: list[str]) -> list[str]:
    names = CallNames()
    return [names.next(signature)[0] for signature in signatures]


def test_calls_that_do_not_repeat_are_numbered() -> None:
    assert names_of([f"s{number}" for number in range(100)]) == [f"c10d.{number}" for number in range(100)]


def test_a_training_loop_comes_to_use_the_same_names_in_each_step() -> None:
    step = ["bucket of 3", "bucket of 3", "bucket of 3", "bucket of 1", "loss"]
    names = names_of(["broadcast"] * 7 + step * 100)
    # The smallest multiple of five calls that is at least 64.
    cycle = 65
    assert names[-cycle:] == names[-2 * cycle : -cycle]
    assert len(set(names[-cycle:])) == cycle


def test_calls_that_are_all_alike_repeat_as_well() -> None:
    names = names_of(["barrier"] * 300)
    assert names[-64:] == names[-128:-64] and len(set(names[-64:])) == 64


def test_a_call_that_does_not_fit_ends_the_cycle_after_itself() -> None:
    training = ["gradients", "loss"] * 100
    fits, differs = names_of([*training, "gradients"]), names_of([*training, "evaluation"])
    assert fits[-1] == differs[-1]
    names = names_of([*training, "evaluation", *training])
    assert names[len(training) + 1].count(".") == 1, "numbered again"
    before, after = set(names[: len(training)]), set(names[len(training) + 1 :])
    assert not before & after


def test_a_name_that_may_be_under_way_is_told() -> None:
    names = CallNames()
    used: set[str] = set()
    chance = random.Random(1)
    for _ in range(20):
        part = [f"s{chance.randrange(4)}" for _ in range(chance.randrange(1, 9))]
        for signature in part * chance.randrange(1, 60):
            name, again = names.next(signature)
            assert (name in used) == again
            used.add(name)


def test_a_period_longer_than_is_looked_for_is_numbered() -> None:
    step = [f"s{number}" for number in range(5000)]
    assert names_of(step * 3)[-1] == f"c10d.{3 * len(step) - 1}"


def test_calls_of_many_requests_come_again_after_few_calls() -> None:
    names = CallNames()
    together = [names.next("a thousand tensors", 1000)[0] for _ in range(20)]
    assert together[-4:] == together[-8:-4] and len(set(together[-4:])) == 4
    assert len(set(together)) == 3 + 4, "three calls foretell the others"
    names = CallNames()
    pairs = [names.next("two tensors", 2)[0] for _ in range(200)]
    assert len(set(pairs[-32:])) == 32 and pairs[-32:] == pairs[-64:-32]
