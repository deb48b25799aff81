"""Which pages the step in the making will make findable, and for whom they are worth waiting.

Pages can be found once the step that computes them is settled, so of prompts that begin alike and
meet in one step each would compute the beginning anew. One goes first instead, and the others stand
back for that step, then take what it left and compute the rest.

That must not make anybody later than going along would have:

- Only what this step computes is waited for, so it is there at its end. If whoever computes it
  fails, or gets no pages for more, there is nothing to wait for in the next step. (Or what it will
  compute once all before it is back from host memory: who waits needs the same back, and later.)
- Only pages of the same class and of higher ones are. These get all they can use of a step before
  anybody behind them gets a token, so where there is room left for who waits, they end in this step
  what he has in common with them. Lower classes may be kept short for the pace of streams, and
  their pages might come in small parts, each of which would be waited for.
- It has to be worth a step. Without prompts that takes the time of `pacing.WORTHWHILE` tokens, and
  of about one more for each stream in it. Whoever waits pays it once more, and gains as much.

So nobody stands back more often than his prompt holds so many tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.messages import PageHash


class Coming:
    """The pages that a step computes, by the highest class that does. Those of fewer tokens than
    `worth`, and one more for each stream in the step, are not worth waiting for."""

    def __init__(self, block_size: int, worth: int) -> None:
        self._block_size = block_size
        self._worth = worth
        self._ranks: dict[PageHash, int] = {}

    def beside(self, streams: int) -> None:
        """So many are in the step, and most likely in the next."""
        self._worth += streams

    def add(self, rank: int, pages: Iterable[PageHash]) -> None:
        """One of this class computes them."""
        for page in pages:
            self._ranks[page] = min(rank, self._ranks.get(page, rank))

    def worth_waiting(self, rank: int, lacking: Iterable[PageHash]) -> int:
        """How many, from the first on, of what one of this class lacks he should wait for."""
        count = 0
        for page in lacking:
            if self._ranks.get(page, rank + 1) > rank:
                break
            count += 1
        return count if count * self._block_size >= self._worth else 0
