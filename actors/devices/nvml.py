"""Asking NVML: a session with the driver, and questions that may stay without an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

FAILURES = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)
"""What a broken library answers with: an error, a missing symbol, bytes that are no text."""

_GONE = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
)


@contextmanager
def driver() -> Iterator[None]:
    """NVML, initialised. Raises one of FAILURES where there is no driver to speak to."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        # Nothing is left to save: a driver that fails here has told us all it will.
        with suppress(*FAILURES):
            pynvml.nvmlShutdown()


@dataclass(slots=True)
class Reader:
    """Asks about one device, and remembers what went wrong. `label` names it in warnings.

    A device that is lost is not asked again: each question might wait for the driver's timeout.
    """

    label: str
    warnings: list[str] = field(default_factory=list)
    lost: bool = False

    def ask(self, what: str, question: Callable[..., T], *arguments: Any) -> T | None:
        """The answer, or None: unsaid where the device lacks such a thing, else with a warning."""
        if self.lost:
            return None
        try:
            return question(*arguments)
        except FAILURES as error:
            code = getattr(error, "value", None)
            if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            self.lost = code in _GONE
            self.warnings.append(f"{self.label}: {what} cannot be read: {in_words(error)}")
            return None


def in_words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def failed_with(error: BaseException, *codes: int) -> bool:
    """Whether NVML gave one of the `NVML_ERROR_...` codes."""
    return getattr(error, "value", None) in codes
