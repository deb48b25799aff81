"""CPUs that belong to one process of this machine at a time, kept by the kernel.

A claim is a Unix socket bound to a name in Linux's abstract space, which only one process can have.
It needs no file, and the kernel frees it when its process ends, however it ends.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cluster.errors import LedgerBroken

_PATIENCE_S = 0.2
_PAUSE_S = 0.002


class CpuClaims:
    """The CPUs that this process holds in the books of `scope`."""

    def __init__(self, scope: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._scope = scope
        self._sleep = sleep
        self._held: dict[int, socket.socket] = {}

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(self._held))

    def resize(self, count: int, orders: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Hold `count` CPUs, of the first of `orders` that has so many left; what is held then.

        Where none has, all stays as it was.
        """
        with self._turn() as mine:
            for order in orders if mine else ():
                if self._settle(count, order):
                    break
        return self.cpus

    def release(self) -> None:
        """Hold nothing any more."""
        for cpu in tuple(self._held):
            self._held.pop(cpu).close()

    def verify(self) -> None:
        """Raises LedgerBroken where a CPU that is held could be had by somebody else."""
        for cpu in self._held:
            other = self._bound(f"cpu-{cpu}")
            if other is not None:
                other.close()
                raise LedgerBroken(f"CPU {cpu} is held, and its claim is free")

    def _settle(self, count: int, order: Sequence[int]) -> bool:
        """Keep or claim CPUs in their order, and give up the rest: all of it, or nothing."""
        wanted: list[int] = []
        new: dict[int, socket.socket] = {}
        for cpu in order:
            if len(wanted) == count:
                break
            claim = None if cpu in self._held else self._bound(f"cpu-{cpu}")
            if claim is not None:
                new[cpu] = claim
            if cpu in self._held or claim is not None:
                wanted.append(cpu)
        given_up = new if len(wanted) < count else self._without(wanted)
        for claim in given_up.values():
            claim.close()
        if len(wanted) < count:
            return False
        self._held = {**{cpu: s for cpu, s in self._held.items() if cpu in wanted}, **new}
        return True

    def _without(self, wanted: Sequence[int]) -> dict[int, socket.socket]:
        return {cpu: claim for cpu, claim in self._held.items() if cpu not in wanted}

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """One process at a time claims, or two might each take half of what both want.

        False after some time of waiting: who holds the turn is stopped, perhaps in a debugger.
        """
        waited = 0.0
        while (turn := self._bound("turn")) is None and waited < _PATIENCE_S:
            self._sleep(_PAUSE_S)
            waited += _PAUSE_S
        try:
            yield turn is not None
        finally:
            if turn is not None:
                turn.close()

    def _bound(self, name: str) -> socket.socket | None:
        """A socket with that name, None where somebody has it."""
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0{self._scope}/{name}")
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        return claim
