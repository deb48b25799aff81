"""Strings that mean more than text: found, sealed so that they are mere text, and told apart again.

A sealed spelling has another character in place of its first, so its length, its spaces and all
around it stay as they are, and what trims or splits the text does so as before.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping

PRIVATE = 0x100000
"""The first character of Unicode's last plane, which has no use but a private one."""

LAST = 0x10FFFD
"""The last character of that plane; stand-ins are numbered down from it."""


class Spellings:
    """A set of such strings; empty ones spell nothing."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._sorted = sorted({*strings} - {""})
        self._strings = frozenset(self._sorted)
        self._lengths = sorted({len(one) for one in self._sorted}, reverse=True)
        firsts = sorted({one[0] for one in self._sorted})
        self._first = re.compile("|".join(map(self._beginning, firsts)) or r"(?!)")
        self._any = re.compile("|".join(map(re.escape, firsts)) or r"(?!)")
        self._stand_ins = {first: chr(LAST - n) for n, first in enumerate(firsts)}
        self._opened = str.maketrans({seal: first for first, seal in self._stand_ins.items()})

    def found(self, text: str) -> set[str]:
        """Those in `text`; where several begin at one place, all of them."""
        return {
            one for first in self._first.finditer(text) for one in self._at(text, first.start())
        }

    def first_in(self, text: str) -> bool:
        """Whether the first character of one is there, whatever stands behind it."""
        return self._any.search(text) is not None

    def count(self, text: str) -> int:
        """At how many places of `text` one begins."""
        return sum(any(self._at(text, first.start())) for first in self._first.finditer(text))

    def are_in(self, text: str, spared: Collection[str] = ()) -> bool:
        """Whether there is one in `text` that is not `spared`, or one begins with its end."""
        return any(
            self._begins(text, first.start(), spared) for first in self._first.finditer(text)
        )

    def seal(self, text: str, spared: Collection[str] = (), *, every: bool = False) -> str:
        """With all of them sealed but those `spared`; a beginning of one at the end as well, since
        what comes behind might complete it. `every`: and each character with which one could
        begin, since what stands behind might go; spaces stay, which is what is trimmed.
        """

        def sealed(first: re.Match[str]) -> str:
            alone = every and not first[0].isspace() and not any(self._at(text, first.start()))
            begins = alone or self._begins(text, first.start(), spared)
            return self._stand_ins[first[0]] if begins else first[0]

        return (self._any if every else self._first).sub(sealed, text)

    def unseal(self, text: str) -> str:
        return text.translate(self._opened)

    def replaced(self, text: str, names: Mapping[str, str]) -> tuple[str, int]:
        """With a name for each that is not sealed, the longest of those that begin at one place,
        and how many they are."""
        there = sorted(self.found(text) & names.keys(), key=len, reverse=True)
        if not there:
            return text, 0
        return re.subn("|".join(map(re.escape, there)), lambda one: names[one[0]], text)

    @staticmethod
    def are_confused_by(text: str) -> bool:
        """Whether there is a private character in `text`, which might pass for one of ours."""
        return max(text, default="") >= chr(PRIVATE)

    def _beginning(self, first: str) -> str:
        """A pattern for the first character, where the second may be that of one of these, too."""
        seconds = sorted({one[1:2] for one in self._sorted if one[0] == first})
        if "" in seconds:
            return re.escape(first)
        return rf"{re.escape(first)}(?=[{re.escape(''.join(seconds))}]|\Z)"

    def _at(self, text: str, start: int) -> Iterator[str]:
        rest = text[start : start + self._lengths[0]]
        return (rest[:length] for length in self._lengths if rest[:length] in self._strings)

    def _begins(self, text: str, start: int, spared: Collection[str] = ()) -> bool:
        if any(one not in spared for one in self._at(text, start)):
            return True
        rest = text[start : start + self._lengths[0]]
        longer = bisect_right(self._sorted, rest)
        return longer < len(self._sorted) and self._sorted[longer].startswith(rest)
