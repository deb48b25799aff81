"""How long a device computes, by marks in its own stream: nothing is held up to find out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A place in a stream of work, as `torch.cuda.Event` is one."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end: Any, /) -> float: ...


class DeviceClock:
    """Adds up the time from the first to the last kernel of each forward pass, as far as the device
    has come, pauses in which it waits for the host to start the next kernel with it. Nothing waits
    for the clock, so a pass is counted a step later. Without marks nothing is measured.
    """

    def __init__(self, mark: Callable[[], Mark] | None) -> None:
        self._mark = mark
        self._open: deque[tuple[Mark, Mark]] = deque()
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Of all passes that are over."""
        while self._open and self._open[0][1].query():
            begin, end = self._open.popleft()
            self._seconds += begin.elapsed_time(end) / 1e3  # milliseconds
        return self._seconds

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """What is asked of the device within is one. Nothing may be fetched from it there."""
        if self._mark is None:
            yield
            return
        begin, end = self._mark(), self._mark()
        begin.record()
        yield
        end.record()
        self._open.append((begin, end))


def clock_of(device: torch.device) -> DeviceClock:
    """By CUDA events; of a CPU nothing is measured, since there the engine's own time is it."""
    return DeviceClock(_cuda_mark if device.type == "cuda" else None)


def _cuda_mark() -> Mark:
    event: Mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
