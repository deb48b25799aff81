"""Which shard: the cost of each choice in tokens, and the few choices worth a look."""

from __future__ import annotations

import math
from typing import NamedTuple

from cluster.loads import ModelShards, ShardView
from cluster.messages import Candidate, Submission
from cluster.prefixes import Match
from cluster.scheduling_config import PlacementConfig
from cluster.shard_books import Load, ShardBook

EXPLAINED = 3
"""Candidates that a lease names: a lease is a message, and a thousand shards are not a reason."""

HOLDERS = 3
"""Shards considered for the prefix they hold: those that hold most of it."""

LEAST_LOADED = 3
"""Shards considered for their load. Two would nearly do (Mitzenmacher, "The power of two choices
in randomized load balancing", 2001), and three cost little."""

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0

Option = tuple[float, int, str, int, ShardView]
"""Cost, last grant, shard, cached tokens, and its view: the smallest is chosen."""


class Wish(NamedTuple):
    """What a request asks of a shard: its prompt, so many choices, and room for `longest` tokens;
    the classes above its own, and from how many tokens on a cached prefix counts."""

    prompt: int
    choices: int
    longest: int
    rank: int
    worth: float


class Placement(NamedTuple):
    """The shard chosen, what the request will weigh there, and what else was considered."""

    shard: ShardBook
    cached_tokens: int
    load: Load
    candidates: tuple[Candidate, ...]
    explored: bool


def could_hold(longest: int, submission: Submission) -> bool:
    """Whether a choice fits a shard of so many tokens when it is empty."""
    return submission.longest <= longest


class Placer:
    """Chooses among the shards that hold a prefix of the prompt and the least loaded ones.

    Of equals the one least recently granted anything is taken, so that cold requests go round.
    Every so many requests one goes by load alone, which is how a prefix that many ask for comes to
    a second shard before the first is overloaded.
    """

    def __init__(self, config: PlacementConfig) -> None:
        self._load_weight = config.load_weight
        self._patience = config.patience
        self._affinity = config.affinity_min_tokens
        self._explore = config.explore
        self._turn = 1

    def place(
        self, submission: Submission, model: ModelShards, match: Match, rank: int = 0
    ) -> Placement | None:
        """The cheapest with room for a request with so many classes above its own, or None where
        none has any; commits to nothing.
        """
        model.refresh()
        explores = self._explores()
        worth = math.inf if explores else self._affinity
        prompt, choices = submission.prompt_tokens, submission.choices
        wish = Wish(prompt, choices, submission.longest, rank, worth)
        options = self._options(wish, model, match)
        if not options:
            return None
        options.sort()
        _, _, _, cached, view = options[0]
        shard, uncached = view.book, prompt - cached
        load = Load(uncached, shard.pages_of(uncached) + choices, choices)
        candidates = tuple(
            [
                Candidate(name, cost, held, view.told, view.book.free_pages)
                for cost, _, name, held, view in options[:EXPLAINED]
            ]
        )
        return Placement(shard, cached, load, candidates, explores)

    def next(self) -> None:
        """The next request gets its turn of exploring, and of where among equals to begin."""
        self._turn += 1

    def _explores(self) -> bool:
        """Whether the present request goes by load alone.

        The fractional parts of multiples of the golden ratio are spread more evenly than random
        numbers, and the same in each run.
        """
        return self._turn * GOLDEN % 1.0 < self._explore

    def _options(self, wish: Wish, model: ModelShards, match: Match) -> list[Option]:
        """Those with room, of the least loaded and of the holders; else any that has room.

        Who holds no more than the one of the least loaded that holds most is not worth a look.
        """
        views = model.least_loaded(LEAST_LOADED, wish.rank)
        held = match.pages_of_each([view.name for view in views])
        most = max(held) if held else 0
        if most < match.depth:
            holders = model.among(match.deepest(HOLDERS, self._turn, most))
            views += holders
            held += match.pages_of_each([view.name for view in holders])
        return self._with_room(wish, views, held) or self._any_with_room(wish, model, match)

    def _any_with_room(self, wish: Wish, model: ModelShards, match: Match) -> list[Option]:
        """One with room, where none of those worth a look has any."""
        for view in model.roomiest(wish.choices, wish.rank):
            option = self._with_room(wish, [view], [match.pages_of(view.name)])
            if option:
                return option
        return []

    def _with_room(self, wish: Wish, views: list[ShardView], held: list[int]) -> list[Option]:
        """Those of `views` that have room, and what the request takes there until and beside its
        first output, in tokens to compute. `held` are the leading pages that each has cached.

            uncached prompt                         what this request adds
            + load_weight x (
                prompt tokens leased, not computed  the prefill in front of it
                + decode_tokens x leased sequences) the decodes beside it
            + page_pressure x uncached prompt x share of pages used
                                                    what it will evict or be preempted for

        A cached prefix shorter than `worth` tokens does not count: computing it takes a part
        of one step, once a shard, while a template that every prompt begins with would gather all
        requests where it was first.

        Room are places for all choices, pages for the prompt and a first page of output each, and a
        turn, which is less prompt leased of its class and those above than the window and
        `patience` times its cached prefix: this request could be served elsewhere before, but what
        it finds cached spares everybody's time.
        """
        prompt, choices, longest, rank, worth = wish
        options: list[Option] = []
        for view, pages in zip(views, held, strict=True):
            outstanding, last_grant, name, price, places, free, window, _, _, book = view
            cached = pages and cached_tokens(prompt, pages, book.capacity.block_size)
            if (
                choices <= places
                and book.pages_of(prompt - cached) + choices <= free
                and (window > 0 or view.window_of(rank) + self._patience * cached > 0)
                and longest <= book.longest
            ):
                counted = cached if cached >= worth else 0
                cost = self._load_weight * outstanding + (prompt - counted) * price
                options.append((cost, last_grant, name, cached, view))
        return options


def cached_tokens(prompt: int, pages: int, block_size: int) -> int:
    """The last prompt token is always computed, since the first output comes out of it."""
    cached = pages * block_size
    return cached if cached < prompt else (prompt - 1) // block_size * block_size
