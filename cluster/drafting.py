"""Fills a shard's steps: who is in the next one, with how many tokens, and who has to stand back.

Order is class, within bounds, and then arrival. Sequences one token behind (decodes) go first, then
longer ones in chunks and waiting ones, while budget, places and pages last. A sequence short of
pages takes them from the newest of the lowest class behind it, never from one before it nor from
one that is already in the step; if there is none it stands still for the step. So the first in line
always moves on, and no work is thrown away that an earlier sequence does not need at once.

Where streams have a target for their pace, or classes that came lately one for their first token,
prompts of lower classes get no more of a step than lets them keep it, as far as the clock has told;
and while such a token is due, who is promised nothing stands aside in every other step
(`promises`). Where pages that are given up go to host memory, lower classes keep below a mark while
a higher one is there (`watermark`).

Pages come back from host memory before anything behind them is computed, a bounded number a step,
or a long prefix would hold up the streams beside it. Who needs pages that only files have waits in
line until they have been read, and whoever is behind may start meanwhile. So does who needs pages
that this step computes (`coming`), until its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from cluster.batching_config import BatchingConfig
from cluster.block_tables import BlockTables
from cluster.coming import Coming
from cluster.drafts import Draft, stands_aside
from cluster.lookup import Lookup, may_guess
from cluster.promises import NO_HURRY, Bounds, Hurry, Promises
from cluster.roster import Roster
from cluster.sequences import LAST, Place, State, Tracked
from cluster.watermark import Watermark

DECODES_A_GUESS = 4
"""With more decodes for each guess none is taken along: products of a few rows more can take a
quarter longer, where rows are computed in tiles of sixteen, and all streams pay for it."""


class Drafter:
    """Drafts one step after the other, within the bounds that `promises` set.

    `reserve` pages are left free when one more starts beside others, or their next pages would
    preempt it. A step that computes anything brings at most `loads` pages back beside it, and a
    decode some guesses of its future (`lookup`). Prompts wait for `worth` tokens that it computes
    for others (`coming`). `hit_tokens` counts what needed no computing.
    """

    def __init__(
        self,
        tables: BlockTables,
        roster: Roster,
        promises: Promises,
        config: BatchingConfig,
        reserve: int,
        watermark: Watermark,
        loads: float,
        worth: int,
        max_model_len: int,
    ) -> None:
        self._tables = tables
        self._roster = roster
        self._promises = promises
        self._max_batch_tokens = config.max_batch_tokens
        self._most_guesses = config.prompt_lookup_tokens or 0
        self._reserve = reserve
        self._watermark = watermark
        self._loads = loads
        self._worth = worth
        self._max_model_len = max_model_len
        self.hit_tokens = 0

    def draft(self) -> Draft:
        """The next step; where there is a sequence, one moves on, or all wait for files."""
        self._pause_for_the_mark()
        draft = self._fill(self._promises.bounds(self._hurry()))
        if draft.bounds.hurries and not draft.chunks:  # nobody moves, who is hurried for neither
            draft = self._fill(self._promises.bounds())
        self._promises.passed(1 if draft.chunks else 0)
        return draft

    def _hurry(self) -> Hurry:
        """The first in line to whom a first token is due that could be computed, if anybody would
        stand aside for him."""
        roster = self._roster
        due = (one for one in roster.running if one.behind > 1 and one.family.ttft_s is not None)
        first = min(chain(due, self._next_promised()), key=lambda one: one.order, default=None)
        if first is None:
            return NO_HURRY
        hurry = Hurry(first.family.rank, first.order)
        present = chain(roster.running, roster.waiting)
        return hurry if any(stands_aside(one, hurry) for one in present) else NO_HURRY

    def _next_promised(self) -> Iterator[Tracked]:
        """The first that waits, is promised a first token and could start: nobody before it lacks
        room, or it would have to wait for him."""
        for one in self._roster.waiting:
            if self._awaits_verdict(one) or self._tables.awaits(one):
                continue
            if not self._roster.could_start(one, self._reserve):
                return
            if one.family.ttft_s is not None:
                yield one
                return

    def _fill(self, bounds: Bounds) -> Draft:
        coming = Coming(self._tables.block_size, self._worth)
        draft = Draft(self._max_batch_tokens, bounds, coming, self._loads)
        running = [one for one in self._roster.running if not draft.leaves_out(one)]
        decodes = [one for one in running if one.behind == 1]
        prefills = [one for one in running if one.behind > 1]
        for tracked in decodes:
            self._add(draft, tracked)
            draft.bounds.streams.guard(tracked.family.rank, tracked.family.tpot_s)
        draft.coming.beside(len(draft.chunks))
        going_on = [one for one in decodes if one in draft.planned]
        for tracked in prefills:
            self._let_in(draft, before=tracked.order)
            self._add(draft, tracked)
        self._let_in(draft)
        self._guess(draft, going_on)
        return draft

    def _pause_for_the_mark(self) -> None:
        roster, tables = self._roster, self._tables
        lines = roster.running, roster.waiting
        victim = self._watermark.to_pause(tables.used, *lines, tables.gives)
        if victim is not None:
            roster.pause(victim)

    def _add(self, draft: Draft, tracked: Tracked) -> None:
        """Add what budget and pages allow of it, preempting only if not one token fits."""
        if tracked.state is State.RUNNING and self._tables.due(tracked):
            self._load(draft, tracked)
        wanted = min(tracked.behind, draft.room_for(tracked))
        if not wanted or tracked.state is not State.RUNNING or self._tables.due(tracked):
            return
        while not (count := self._tables.fits(tracked, wanted)):
            victim = self._roster.victim_behind(tracked, spared=draft.planned)
            if victim is None:
                return
            draft.gate.close()
            self._roster.preempt(victim)
        copy = self._tables.extend(tracked, count)
        if copy is not None:
            draft.copies.append(copy)
        self._tell_hits(tracked)
        draft.coming.add(tracked.family.rank, self._tables.fills(tracked, count))
        draft.take(tracked, count)

    def _load(self, draft: Draft, tracked: Tracked) -> None:
        before = tracked.sequence.computed
        draft.load(self._tables.load(tracked, draft.loads_left))
        self.hit_tokens += tracked.sequence.computed - before
        if self._tables.due(tracked):  # it computes the rest as soon as anybody could
            draft.coming.add(tracked.family.rank, self._tables.fills(tracked, tracked.behind))

    def _guess(self, draft: Draft, decodes: list[Tracked]) -> None:
        """Guesses go along with `decodes`, the first chunks, in what everybody has left of the step
        and on the page at hand: so none takes a token or a page from anybody."""
        left = draft.budget if self._most_guesses else 0
        guesses: dict[int, tuple[int, ...]] = {}
        for index, tracked in enumerate(decodes):
            if guessed := self._guesses(tracked, left):
                guesses[index] = guessed
                left -= len(guessed)
        if DECODES_A_GUESS * sum(map(len, guesses.values())) >= len(decodes):
            for index, guessed in guesses.items():
                draft.guess(index, guessed)

    def _guesses(self, tracked: Tracked, most: int) -> tuple[int, ...]:
        if not most or not may_guess(tracked.sequence):
            return ()
        tracked.lookup = tracked.lookup or Lookup(self._most_guesses)
        room = min(most, self._tables.room_behind(tracked), self._wanted_behind(tracked))
        return tracked.lookup.guess(tracked.sequence.tokens, room)

    def _wanted_behind(self, tracked: Tracked) -> int:
        """Tokens that may come after the next one."""
        sequence = tracked.sequence
        wanted = sequence.request.stopping.max_tokens - sequence.output_len
        return min(wanted, self._max_model_len - len(sequence.tokens)) - 1

    def _let_in(self, draft: Draft, before: Place = LAST) -> None:
        """Let waiting sequences in, as far as there are budget, places and pages to spare.

        Who lacks a place or pages is not overtaken, or it might never get them; nor is a sequence
        that was preempted for this step.
        """
        gate = draft.gate
        while (tracked := self._next_in_line(draft, before)) is not None:
            if not self._roster.start(tracked, self._reserve + gate.pages, gate.places):
                gate.close()
                return
            self._add(draft, tracked)

    def _next_in_line(self, draft: Draft, before: Place) -> Tracked | None:
        """The first that waits and may start now; who may not is overtaken by higher classes."""
        line, gate = self._roster.waiting, draft.gate
        while draft.budget and gate.is_open and gate.passed < len(line):
            one = line[gate.passed]
            if one.order >= before:
                break
            if one.family.rank >= gate.barred or not self._may_start(draft, one):
                gate.pass_over(one.family.rank)
            elif self._tables.fetches(one):
                gate.step_over()
            elif coming := self._waits_for(draft, one):
                gate.wait(self._tables.needs(one) - coming)
            else:
                return one
        return None

    def _waits_for(self, draft: Draft, waiting: Tracked) -> int:
        """How many pages that this step computes it should take over instead of computing them."""
        return draft.coming.worth_waiting(waiting.family.rank, self._tables.lacks(waiting))

    def _may_start(self, draft: Draft, waiting: Tracked) -> bool:
        if draft.leaves_out(waiting) or not draft.room_for(waiting):
            return False
        if self._awaits_verdict(waiting):
            return False
        present = chain(self._roster.running, self._roster.waiting)
        tables = self._tables
        return not self._watermark.holds_back(waiting, tables.used, present, tables.needs)

    def _awaits_verdict(self, waiting: Tracked) -> bool:
        """Whether it is a suspect, and another one is on trial: a step that fails must not leave
        two to blame."""
        if not waiting.family.on_trial:
            return False
        tried = (one.family for one in self._roster.running if one.family.on_trial)
        return any(family is not waiting.family for family in tried)

    def _tell_hits(self, tracked: Tracked) -> None:
        if tracked.family.cached_tokens is None:
            tracked.family.cached_tokens = tracked.sequence.computed
