"""Tell a person what is going on: one live line on a terminal, plain lines anywhere else."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.status import Status

AGAIN_S = 15.0
"""To a log, a line in which only seconds have changed is worth telling again after so long."""

SECONDS = re.compile(r"[0-9]+(\.[0-9]+)? s\b")


class Display:
    """Stages, each with what it is doing now, and at the end how long each took."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._live: Status | None = None
        self._stage = ""
        self._since = self._told_at = clock()
        self._told = ""
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = self._console.status("").__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_stage()
        if self._live:
            self._live.__exit__(kind, error, trace)

    def stage(self, name: str) -> None:
        """Begin the next stage; the one before it is over."""
        self._end_stage()
        self._stage, self._since = name, self._clock()
        self._told = ""
        self.tell("")

    def tell(self, what: str, done: float | None = None) -> None:
        """What the stage does now; `done` (0 to 1) is how much of it, shown only live."""
        line = f"{self._stage}: {what}" if what else self._stage
        if self._live:
            self._live.update(line if done is None else f"{line} {done:4.0%}")
        elif self._is_news(line):
            self._console.print(line, markup=False)
            self._told, self._told_at = line, self._clock()

    def _is_news(self, line: str) -> bool:
        if SECONDS.sub("", line) != SECONDS.sub("", self._told):
            return True
        return line != self._told and self._clock() - self._told_at >= AGAIN_S

    def _end_stage(self) -> None:
        if self._stage:
            took = self._clock() - self._since
            self.seconds[self._stage] = took
            if self._live:
                self._console.print(f"{self._stage} ({took:.1f} s)", markup=False)
        self._stage = ""
