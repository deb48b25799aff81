"""The device's time is that between the marks that it has passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from actors.engine.device_clock import DeviceClock, clock_of


@dataclass
class Stream:
    """What a device does one after the other; `done` is how far it has come, milliseconds."""

    end_ms: float = 0.0
    done_ms: float = 0.0

    def mark(self) -> StreamMark:
        return StreamMark(self)


@dataclass
class StreamMark:
    stream: Stream
    at_ms: float = -1.0

    def record(self) -> None:
        self.at_ms = self.stream.end_ms

    def query(self) -> bool:
        return self.at_ms <= self.stream.done_ms

    def elapsed_time(self, end: Any) -> float:
        return float(end.at_ms - self.at_ms)


def test_a_pass_is_counted_once_the_device_is_through_it() -> None:
    stream = Stream()
    clock = DeviceClock(stream.mark)
    with clock.forward_pass():
        stream.end_ms += 20
    assert clock.seconds == 0
    stream.done_ms = 20
    assert clock.seconds == 0.02


def test_passes_add_up_and_what_lies_between_them_does_not_count() -> None:
    stream = Stream()
    clock = DeviceClock(stream.mark)
    for took in (20, 30):
        with clock.forward_pass():
            stream.end_ms += took
        stream.end_ms += 1000
    stream.done_ms = stream.end_ms
    assert clock.seconds == 0.05


def test_a_pass_that_goes_on_is_not_in_the_way_of_those_before() -> None:
    stream = Stream()
    clock = DeviceClock(stream.mark)
    for took in (20, 30):
        with clock.forward_pass():
            stream.end_ms += took
    stream.done_ms = 49
    assert clock.seconds == 0.02


def test_a_cpu_measures_nothing() -> None:
    clock = clock_of(torch.device("cpu"))
    with clock.forward_pass():
        torch.ones(10).sum()
    assert clock.seconds == 0
