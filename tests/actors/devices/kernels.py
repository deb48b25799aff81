"""A kernel to bind to that is not this machine's."""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import dataclass, field

from cluster.binding import MemoryPolicy


@dataclass
class Strict:
    """A kernel that keeps what it is told in fields, and refuses some of it."""

    refuses: tuple[MemoryPolicy, ...] = ()
    able: frozenset[int] = frozenset(range(8))
    now: frozenset[int] = frozenset(range(8))
    memory: list[tuple[MemoryPolicy, int | None]] = field(default_factory=list)

    def cpus(self) -> frozenset[int]:
        return self.now

    def set_cpus(self, cpus: Collection[int]) -> None:
        if not set(cpus) & self.able:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.now = frozenset(cpus) & self.able

    def set_memory(self, policy: MemoryPolicy, numa_node: int | None) -> None:
        if policy in self.refuses:
            raise OSError(errno.EPERM, "Operation not permitted")
        self.memory.append((policy, numa_node))
