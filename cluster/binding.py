"""What a process was bound to: its CPUs, its memory, and why each step was taken or not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MemoryPolicy(StrEnum):
    """From where a process gets its memory, strictest first."""

    BIND = "bind"
    PREFER = "prefer"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class BindingStep:
    """One step of the way: what was tried, whether it holds, and why (not)."""

    what: str
    holds: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Binding:
    """CPUs that the process may use, and its memory's NUMA node (None: any) and policy."""

    cpus: tuple[int, ...]
    numa_node: int | None
    memory: MemoryPolicy
    steps: tuple[BindingStep, ...]

    @property
    def summary(self) -> str:
        """One line for a log."""
        tried = "; ".join(
            f"{step.what}{'' if step.holds else ' not'}: {step.reason}" for step in self.steps
        )
        return f"{len(self.cpus)} CPUs, memory {self.memory} ({tried})"
