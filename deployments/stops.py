"""Stop strings over text that arrives in pieces: found wherever the pieces were cut.

A choice ends at the character that completes a stop string first, so the outcome depends on the
text alone. Each pattern is followed by the automaton of Knuth, Morris and Pratt: a step per
character whatever the pattern's length, and its state is the number of characters to withhold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Pattern(NamedTuple):
    """A stop string, and for each of its prefixes the length of the longest proper border."""

    text: str
    borders: tuple[int, ...]

    def advance(self, matched: int, char: str) -> int:
        """How much of the pattern ends at `char`, where `matched` of it ended just before."""
        while matched and self.text[matched] != char:
            matched = self.borders[matched - 1]
        return matched + 1 if self.text[matched] == char else 0


def compile_stops(stops: Iterable[str]) -> tuple[Pattern, ...]:
    return tuple(Pattern(stop, _borders(stop)) for stop in dict.fromkeys(stops))


def _borders(text: str) -> tuple[int, ...]:
    borders = [0]
    for char in text[1:]:
        length = borders[-1]
        while length and text[length] != char:
            length = borders[length - 1]
        borders.append(length + 1 if text[length] == char else 0)
    return tuple(borders)


class StopScan:
    """The text of one choice on its way to the client, withheld while it may become a stop."""

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        self._patterns = patterns
        self._matched = [0] * len(patterns)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What may be shown now. Once `stopped`, the rest of the text was discarded."""
        if not self._patterns:
            return text
        for position, char in enumerate(text):
            if self._step(char):
                return self._cut(self._held + text[: position + 1])
        seen = self._held + text
        safe = len(seen) - max(self._matched)
        self._held = seen[safe:]
        return seen[:safe]

    def flush(self) -> str:
        """The withheld rest, at an end that no stop string brought about."""
        rest, self._held = self._held, ""
        return rest

    def _step(self, char: str) -> bool:
        pairs = zip(self._patterns, self._matched, strict=True)
        self._matched = [pattern.advance(matched, char) for pattern, matched in pairs]
        return any(map(self._complete, self._patterns, self._matched))

    @staticmethod
    def _complete(pattern: Pattern, matched: int) -> bool:
        return matched == len(pattern.text)

    def _cut(self, seen: str) -> str:
        """Without the stop string at the end of `seen`; of several, the longest."""
        self.stopped, self._held = True, ""
        whole = filter(lambda pattern: seen.endswith(pattern.text), self._patterns)
        return seen[: -max(len(pattern.text) for pattern in whole)]
