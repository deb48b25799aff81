"""Ctrl-C and its kin: the first asks to end, those after it only hurry the ending."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Asked(BaseException):
    """A signal asked to end; no ordinary handler may take it for an error."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


class Signals:
    """Raises `Asked` once at most, so that what cleans up after it is never interrupted."""

    def __init__(self) -> None:
        self._asked: int | None = None
        self._ending = False
        self._held = False
        self.hurried = False

    def install(self) -> None:
        """From now on the signals of this process come here."""
        for signum in SIGNALS:
            signal.signal(signum, self.receive)

    def receive(self, signum: int, frame: FrameType | None = None) -> None:
        """Raises Asked, unless that is for later or was said before."""
        if self._ending or self._asked is not None:
            self.hurried = True
            return
        self._asked = signum
        if not self._held:
            raise Asked(signum)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What must be whole or not be at all: a signal in the block is heard after it."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._asked is not None:
            raise Asked(self._asked)

    def only_hurry(self) -> None:
        """The ending has begun: no signal interrupts it any more."""
        self._ending = True
