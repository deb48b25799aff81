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
    """A request, the classes above its own, and from how many tokens on a cached prefix counts."""

    submission: Submission
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
    return submission.prompt_tokens + submission.max_tokens <= longest


class Placer:
    """Chooses among the shards that hold a prefix of the prompt and the least loaded ones.

    Of equals the one least recently granted anything is taken, so that cold requests go round.
    Every so many requests one goes by load alone, which is how a prefix that many ask for comes to
    a second shard before the first is overloaded.
    """

    def __init__(self, config: PlacementConfig) -> None:
        self._config = config
        self._turn = 1

    def place(
        self, submission: Submission, model: ModelShards, match: Match, rank: int = 0
    ) -> Placement | None:
        """The cheapest with room for a request with so many classes above its own, or None where
        none has any; commits to nothing.
        """
        model.refresh()
        explores = self._explores()
        worth = math.inf if explores else self._config.affinity_min_tokens
        options = self._options(Wish(submission, rank, worth), model, match)
        if not options:
            return None
        options.sort()
        _, _, _, cached, view = options[0]
        shard = view.book
        uncached = submission.prompt_tokens - cached
        load = Load(uncached, shard.pages_of(uncached) + submission.choices, submission.choices)
        candidates = tuple([_candidate(*option) for option in options[:EXPLAINED]])
        return Placement(shard, cached, load, candidates, explores)

    def next(self) -> None:
        """The next request gets its turn of exploring, and of where among equals to begin."""
        self._turn += 1

    def _explores(self) -> bool:
        """Whether the present request goes by load alone.

        The fractional parts of multiples of the golden ratio are spread more evenly than random
        numbers, and the same in each run.
        """
        return self._turn * GOLDEN % 1.0 < self._config.explore

    def _options(self, wish: Wish, model: ModelShards, match: Match) -> list[Option]:
        """Those with room, of the least loaded and of the holders; else any that has room.

        Who holds no more than the one of the least loaded that holds most is not worth a look.
        """
        least = model.least_loaded(LEAST_LOADED, wish.rank)
        held = [(view, match.pages_of(view.name)) for view in least]
        most = max([pages for _, pages in held], default=0)
        if most < match.depth:
            holders = model.among(match.deepest(HOLDERS, self._turn, most))
            held += [(view, match.pages_of(view.name)) for view in holders]
        looked = [self._option(wish, view, pages) for view, pages in held]
        return [option for option in looked if option] or self._any_with_room(wish, model, match)

    def _any_with_room(self, wish: Wish, model: ModelShards, match: Match) -> list[Option]:
        """One with room, where none of those worth a look has any."""
        for view in model.roomiest(wish.submission.choices, wish.rank):
            option = self._option(wish, view, match.pages_of(view.name))
            if option:
                return [option]
        return []

    def _option(self, wish: Wish, view: ShardView, pages: int) -> Option | None:
        """What the request takes until and beside its first output, in tokens to compute.

            uncached prompt                         what this request adds
            + load_weight x (
                prompt tokens leased, not computed  the prefill in front of it
                + decode_tokens x leased sequences) the decodes beside it
            + page_pressure x uncached prompt x share of pages used
                                                    what it will evict or be preempted for

        A cached prefix shorter than `worth` tokens does not count: computing it takes a part
        of one step, once a shard, while a template that every prompt begins with would gather all
        requests where it was first.

        None without room: places for all choices, pages for the prompt and a first page of output
        each, and a turn, which is less prompt leased of its class and those above than the window
        and `patience` times its cached prefix: this request could be served elsewhere before, but
        what it finds cached spares everybody's time.
        """
        submission, rank, worth = wish
        book, choices = view.book, submission.choices
        cached = pages and cached_tokens(book, submission, pages)
        uncached = submission.prompt_tokens - cached
        if (
            choices > view.places
            or book.pages_of(uncached) + choices > view.pages
            or view.window_of(rank) + self._config.patience * cached <= 0
            or not could_hold(book.longest, submission)
        ):
            return None
        counted = cached if cached >= worth else 0
        cost = (
            self._config.load_weight * view.outstanding
            + (submission.prompt_tokens - counted) * view.price
        )
        return cost, view.last_grant, view.name, cached, view


def cached_tokens(shard: ShardBook, submission: Submission, pages: int) -> int:
    """The last prompt token is always computed, since the first output comes out of it."""
    block_size = shard.capacity.block_size
    return min(pages, (submission.prompt_tokens - 1) // block_size) * block_size


def _candidate(cost: float, _grant: int, name: str, cached: int, view: ShardView) -> Candidate:
    return Candidate(name, cost, cached, round(view.outstanding), view.book.free_pages)
