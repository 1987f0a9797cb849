"""What a GPU does behind the script's back, on a device that is none: pauses, waits of its stream, phases that end
there."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from farandole import _native
from farandole.torch import device_times, device_work, run_ahead, staging

pytestmark = pytest.mark.timeout(60)


class Device:
    """Its clock is a number of seconds that the test sets; the host's clock is the same."""

    def __init__(self) -> None:
        self.now = 100.0
        self.done_at = 0.0

    def compute(self, seconds: float) -> None:
        self.done_at = max(self.done_at, self.now) + seconds

    def event(self, at: float) -> Event:
        return Event(self, at)


class Event:
    def __init__(self, device: Device, at: float) -> None:
        self.device = device
        self.at = at

    def query(self) -> bool:
        return self.device.now >= self.at

    def elapsed_time(self, end_event: Event) -> float:
        return 1e3 * (end_event.at - self.at)


class Requests:
    """Ranks that are done after some seconds."""

    names = ("first", "last")

    def __init__(self, device: Device, seconds: float) -> None:
        self.device = device
        self.seconds = seconds

    def follow(self, stream: int) -> None:
        assert stream == 7
        self.device.compute(self.seconds)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(_native, "wants_device_times", lambda: True)
    monkeypatch.setattr(device_times, "_measuring", device_times._Measuring())
    monkeypatch.setattr(device_times, "can_record", lambda: True)
    monkeypatch.setattr(device_times, "record", lambda: device.event(max(device.done_at, device.now)))
    monkeypatch.setattr(device_times, "record_now", lambda: device.event(device.now))
    monkeypatch.setattr(time, "monotonic_ns", lambda: round(1e9 * device.now))
    device_times.follow_this_thread()
    return device


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    told: list[Any] = []

    def tell(name: str) -> Any:
        def seconds(word: Any) -> Any:
            return round(word / 1e9, 3) if isinstance(word, int) else word

        return lambda *words: told.append((name, *map(seconds, words)))

    for name in ("device_idle", "device_waited", "phase_of"):
        monkeypatch.setattr(_native, name, tell(name))
    return told


def pause(device: Device, seconds: float) -> None:
    device_times.begin_pause()
    device.now += seconds
    device_times.end_pause()


def test_a_pause_is_idle_from_when_the_device_has_done_its_work(device: Device, told: list[Any]):
    pause(device, 2)
    device.compute(3)
    pause(device, 5)
    assert told == [("device_idle", 100, 102, 2), ("device_idle", 102, 107, 2)]
    device.compute(3)
    pause(device, 1)
    assert len(told) == 2, "the device has not come so far"
    device.now += 10
    pause(device, 1)
    assert told[2:] == [("device_idle", 107, 108, 0), ("device_idle", 118, 119, 1)]


def test_what_was_no_pause_is_not_told(device: Device, told: list[Any]):
    device_times.begin_pause()
    device.now += 1
    device_times.discard_pause()
    device_times.end_pause()
    assert told == []


def test_a_stream_that_waits_is_told_on_the_clock_of_the_host(device: Device, told: list[Any]):
    device.compute(3)
    device_times.follow(Requests(device, 4), 7)
    device.now += 20
    pause(device, 1)
    assert told == [("device_waited", "last", 103, 107), ("device_idle", 120, 121, 1)]


def test_work_that_nobody_waits_for_is_measured(
    device: Device, told: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_ahead, "_under_way", [])
    monkeypatch.setattr(staging, "current_place", lambda device: (0, 7))
    requests: Any = Requests(device, 4)
    requests.poll = lambda: False
    requests.runs_ahead = True
    staging.carry_over("evaluation", device.event(device.now + 2))
    device_work.DeviceWork(requests, torch.device("cpu")).wait()
    device.now += 20
    pause(device, 1)
    row = device_times.DEVICE_ROW
    waited = ("device_waited", "last", 100, 104)
    assert told == [("phase_of", row, "evaluation", 100, 102), waited, ("device_idle", 120, 121, 1)]


def test_a_phase_that_nobody_waits_for_ends_on_the_device(device: Device, told: list[Any]):
    device.compute(3)
    staging.carry_over("evaluation", device.event(device.done_at))
    device.now += 1
    staging.leave_carried_over()
    device.now += 5
    pause(device, 1)
    assert told == [("phase_of", device_times.DEVICE_ROW, "evaluation", 100, 103), ("device_idle", 106, 107, 1)]
    staging.carry_over("evaluation", device.event(device.done_at))
    staging.leave_carried_over()
    pause(device, 1)
    assert len(told) == 3, "it was over"


def test_without_a_trace_and_on_other_threads_there_are_no_events(
    device: Device, told: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device_times._measuring, "thread", 1)
    pause(device, 1)
    device_times.follow_this_thread()
    monkeypatch.setattr(_native, "wants_device_times", lambda: False)
    pause(device, 1)
    device_times.follow(Requests(device, 1), 7)
    assert told == []
    assert device.done_at == device.now + 1, "the stream waits all the same"


def test_a_device_that_refuses_is_left_alone(device: Device, told: list[Any], monkeypatch: pytest.MonkeyPatch):
    def refuse() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(device_times, "record", refuse)
    pause(device, 1)
    monkeypatch.setattr(device_times, "record", lambda: device.event(device.now))
    pause(device, 1)
    device_times.follow(Requests(device, 1), 7)
    assert told == []


def test_without_a_gpu_nothing_is_recorded():
    assert torch.cuda.is_initialized() or not device_times.can_record()
