"""What front ends mark by themselves stays nested, with each other and with the program's own phases."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from farandole import _native, phase_tracker, phases


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every mark that was made."""
    made: list[str] = []
    monkeypatch.setattr(_native, "phase_begin", lambda name: made.append(f"+{name}"))
    monkeypatch.setattr(_native, "phase_end", lambda name: made.append(f"-{name}"))
    monkeypatch.setattr(_native, "mark_step_done", lambda number: made.append(f"iteration {number}"))
    monkeypatch.setattr(_native, "mark_epoch", lambda number: made.append(f"epoch {number}"))
    monkeypatch.setattr(phases, "listeners", [])
    return made


@pytest.fixture
def tracker(seen: list[str]) -> phase_tracker.PhaseTracker:
    made = phase_tracker.PhaseTracker()
    assert made.follow_this_thread() and not made.follow_this_thread()
    return made


def test_a_call_inside_of_one_of_its_kind_is_part_of_it(tracker, seen):
    def inner() -> None:
        seen.append("inside")

    tracker.switch_to("forward")
    tracker.marked("checkpoint", tracker.marked("checkpoint", inner))()
    assert seen == ["+forward", "-forward", "+checkpoint", "inside", "-checkpoint"]


def test_what_is_open_stays_open_until_a_call_inside_of_it_is_over(tracker, seen):
    tracker.switch_to("forward")
    tracker.begin("input wait")
    tracker.switch_to("evaluation")
    tracker.end("input wait")
    tracker.switch_to("evaluation")
    tracker.switch_to(None)
    assert seen == ["+forward", "+input wait", "-input wait", "-forward", "+evaluation", "-evaluation"]


def test_a_call_that_raises_is_over(tracker, seen):
    def failing() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError):
        tracker.marked("evaluation", failing)()
    assert seen == ["+evaluation", "-evaluation"] and tracker.inside == 0 and not tracker.evaluates()


def test_phases_of_the_program_nest_with_ours(tracker, seen):
    with phases.phase("epoch"):
        tracker.switch_to("forward")
        with phases.phase("loss"):
            tracker.switch_to(None)
    assert seen == ["+epoch", "+forward", "+loss", "-loss", "-forward", "-epoch"]


def test_other_threads_are_left_alone(tracker, seen):
    thread = threading.Thread(target=tracker.marked("backward", lambda: seen.append("elsewhere")))
    thread.start()
    thread.join()
    assert seen == ["elsewhere"]


def test_one_maker_of_steps_sets_the_pace_until_it_is_gone(tracker, seen, monkeypatch):
    monkeypatch.setattr(phases, "_marked_by_program", False)

    class Optimizer:
        pass

    first, second = Optimizer(), Optimizer()
    for maker in (first, second, first):
        tracker.step_done(maker)
    del maker, first
    tracker.step_done(second)
    tracker.epoch_begins(4)
    assert seen == ["iteration 1", "iteration 2", "iteration 3", "epoch 4"]
    monkeypatch.setattr(phases, "_marked_by_program", True)
    tracker.step_done(second)
    tracker.epoch_begins(5)
    assert len(seen) == 4, "a program that marks iterations itself is not interfered with"


def test_a_method_is_replaced_once_and_one_that_is_missing_is_told_in_the_log(tracker, seen, caplog):
    class Model:
        def save(self) -> str:
            return "saved"

    def change(original: Any) -> Any:
        return tracker.marked("checkpoint", original)

    with caplog.at_level(logging.DEBUG, "farandole"):
        assert phase_tracker.replace(Model, "save", change) and phase_tracker.replace(Model, "save", change)
        assert not phase_tracker.replace(Model, "export", change) and not phase_tracker.replace(None, "save", change)
    assert Model().save() == "saved" and seen == ["+checkpoint", "-checkpoint"]
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2
    assert "Model has no export" in caplog.text, caplog.text


def test_nothing_is_watched_where_the_user_says_so(monkeypatch):
    monkeypatch.delenv("FARANDOLE_PHASES", raising=False)
    assert phase_tracker.is_wanted()
    for word in ("0", "off", "False"):
        monkeypatch.setenv("FARANDOLE_PHASES", word)
        assert not phase_tracker.is_wanted(), word
