"""A shard's continuous batching on paper: the same steps as `cluster.batching`, many at a time.

It plans as the Batcher does, over a real `BlockPool`, but knows tokens only by their number, and
takes steps in runs: while the same sequences decode and the same prompt fills the rest of the
budget, step follows step without a decision, and their times are an arithmetic series. A test holds
it to the Batcher, step for step.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from itertools import chain

from cluster.batching_config import BatchingConfig
from cluster.blocks import BlockPool
from cluster.coming import Coming
from cluster.drafts import Gate
from cluster.errors import LedgerBroken
from cluster.pacing import WORTHWHILE
from cluster.promises import NO_HURRY, Bounds, Hurry, Promises
from cluster.reports import NO_PREFILLING, HeldRequest, Prefilling, ShardCapacity
from cluster.sequences import LAST, Place, place_of
from cluster.simulate.costs import Device
from cluster.simulate.pages import SequencePages
from cluster.simulate.runs import Draft, Outcome, Run, Sequence
from cluster.simulate.workload import Offered


class SimulatedEngine:
    """Sequences, pages, and the run of steps in progress, if any; `worth` as the Batcher has it."""

    def __init__(self, device: Device, page_tokens: int, worth: int = WORTHWHILE) -> None:
        self.pool = BlockPool(device.kv_tokens // page_tokens, page_tokens, prefix_caching=True)
        self.capacity = ShardCapacity(
            block_size=page_tokens,
            total_pages=self.pool.num_blocks,
            max_num_seqs=device.max_num_seqs,
            max_model_len=self.pool.num_blocks * page_tokens,
        )
        self.run: Run | None = None
        self.preemptions = 0
        self._cost = device.cost
        self._budget = device.max_batch_tokens
        self._promises = Promises(device.max_batch_tokens, BatchingConfig().ttft_share)
        self._prefilling = NO_PREFILLING
        self._places = min(device.max_num_seqs, device.max_batch_tokens)
        self._reserve = max(1, self.pool.num_blocks // 100)
        self._worth = worth
        self._pages = SequencePages(self.pool)
        self._arrivals = 0
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []

    def held(self) -> tuple[HeldRequest, ...]:
        """All requests that are here."""
        return tuple(
            HeldRequest(one.request_id, one.offered.submission.prompt_tokens, one.computed, 1)
            for one in (*self._running, *self._waiting)
        )

    def admit(
        self,
        offered: Offered,
        now: float = 0.0,
        rank: int = 0,
        tpot_s: float | None = None,
        ttft_s: float | None = None,
    ) -> None:
        """Take a request in, with so many classes above its own and what these promise; it joins a
        later step. Where the next one has tokens left, the run ends with the present one.
        """
        prompt = offered.submission.prompt_tokens
        hashes = list(offered.submission.page_hashes)
        final = prompt + offered.output_tokens
        place = place_of(self._arrivals, rank, 0)
        one = Sequence(offered, place, rank, tpot_s, ttft_s, prompt, final, hashes)
        insort(self._waiting, one, key=_order)
        self._arrivals += 1
        self._promises.came(rank, ttft_s, self.run.steps_until(now) if self.run else 0)
        if self.run is not None:
            self.run.shorten(now)

    def begin(self, now: float) -> Run | None:
        """Plan the next steps up to the first that differs; None where there is no work."""
        hurry = self._hurry()
        draft = self._fill(self._promises.bounds(hurry))
        if draft.bounds.hurries and not (draft.decodes or draft.chunks):
            draft = self._fill(self._promises.bounds())
        draft.alike &= hurry is NO_HURRY
        self.run = self._priced(draft, now) if draft.decodes or draft.chunks else None
        return self.run

    def _hurry(self) -> Hurry:
        """As the Drafter finds it."""
        due = (one for one in self._running if one.behind > 1 and one.ttft_s is not None)
        first = min(chain(due, self._next_promised()), key=_order, default=None)
        if first is None:
            return NO_HURRY
        hurry = Hurry(first.rank, first.order)
        present = chain(self._running, self._waiting)
        return hurry if any(one.stands_aside(hurry) for one in present) else NO_HURRY

    def _next_promised(self) -> Iterator[Sequence]:
        gate = Gate()
        for one in self._waiting:
            if not self._could_start(one, gate):
                return
            if one.ttft_s is not None:
                yield one
                return

    def _fill(self, bounds: Bounds) -> Draft:
        draft = Draft(self._budget, bounds, Coming(self.pool.block_size, self._worth))
        running = [one for one in self._running if not draft.leaves_out(one)]
        decodes = [one for one in running if one.behind == 1]
        prefills = [one for one in running if one.behind > 1]
        for one in decodes:
            if one.room and draft.budget:
                draft.add(one, 1)
            else:
                self._draft_chunk(draft, one)
            draft.bounds.streams.guard(one.rank, one.tpot_s)
        draft.coming.beside(len(draft.decodes))
        for one in prefills:
            self._draft_waiting(draft, one.order)
            self._draft_chunk(draft, one)
        self._draft_waiting(draft, LAST)
        return draft

    def finish(self) -> Outcome:
        """Enter what the run gave; most of it is decodes that neither end nor fill a page."""
        run, self.run = self.run, None
        outcome = Outcome()
        if run is not None:
            steps = run.steps
            self._learn(run)
            for one in run.draft.decodes:
                if one.started and one.room > steps < one.final - one.known:
                    one.computed += steps
                    one.known += steps
                    one.room -= steps
                else:
                    self._advance(one, steps, outcome)
            for one, count in run.draft.chunks:
                self._advance(one, steps * count, outcome)
        return outcome

    def drain_prefilling(self) -> Prefilling:
        """How fast prompts were computed since the last call."""
        prefilling, self._prefilling = self._prefilling, NO_PREFILLING
        return prefilling

    def verify(self) -> None:
        """Raises LedgerBroken unless the pages in use are those of running sequences."""
        self.pool.verify(one.blocks for one in self._running)
        if any(one.blocks or one.running for one in self._waiting):
            raise LedgerBroken("a waiting sequence holds pages")

    def _learn(self, run: Run) -> None:
        """Step by step, as the Batcher does: the allowance follows each."""
        draft = run.draft
        self._promises.passed(run.steps)
        for took_s in run.times():
            self._promises.learn(draft.bounds, took_s)
        if draft.chunks and not draft.held_back:
            tokens = run.steps * draft.prefill
            self._prefilling += Prefilling(tokens, run.end_s - run.start_s)

    def _draft_waiting(self, draft: Draft, before: Place) -> None:
        while (one := self._next_in_line(draft, before)) is not None:
            if not self._start(one, draft.gate):
                draft.gate.close()
                return
            self._draft_chunk(draft, one)

    def _next_in_line(self, draft: Draft, before: Place) -> Sequence | None:
        line, gate = self._waiting, draft.gate
        while draft.budget and gate.is_open and gate.passed < len(line):
            one = line[gate.passed]
            if one.order >= before:
                break
            if one.rank >= gate.barred or draft.leaves_out(one) or not draft.room_for(one):
                gate.pass_over(one.rank)
            elif coming := draft.coming.worth_waiting(one.rank, self._pages.lacks(one)):
                gate.wait(self._pages.needs(one) - coming)
            else:
                return one
        return None

    def _draft_chunk(self, draft: Draft, one: Sequence) -> None:
        """What budget and pages allow, preempting only where not one token fits."""
        wanted = min(one.behind, draft.room_for(one))
        if not wanted or not one.running:
            return
        while not (count := self._pages.fits(one, wanted)):
            draft.alike = False
            victim = self._victim_behind(one, draft)
            if victim is None:
                return
            draft.gate.close()
            self._preempt(victim)
        self._pages.extend(one, count)
        draft.coming.add(one.rank, self._pages.fills(one, count))
        draft.add(one, count)

    def _victim_behind(self, one: Sequence, draft: Draft) -> Sequence | None:
        behind = self._running[bisect_right(self._running, one.order, key=_order) :]
        free = (other for other in behind if not draft.holds(other))
        return max(free, key=lambda other: (other.rank, other.order), default=None)

    def _preempt(self, victim: Sequence) -> None:
        self._leave(victim)
        victim.computed = 0
        insort(self._waiting, victim, key=_order)
        self.preemptions += 1

    def _leave(self, one: Sequence) -> None:
        self._running.remove(one)
        one.running = False
        self._pages.close(one)

    def _start(self, one: Sequence, gate: Gate) -> bool:
        """Run one that waits, if it could start."""
        if not self._could_start(one, gate):
            return False
        self._pages.open(one)
        one.running = True
        self._waiting.remove(one)
        insort(self._running, one, key=_order)
        return True

    def _could_start(self, one: Sequence, gate: Gate) -> bool:
        """Whether there are a place, its pages and, beside others, spare."""
        reserve = self._reserve + gate.pages if self._running else 0
        has_place = len(self._running) + gate.places < self._places
        return has_place and self._pages.has_room(one, reserve)

    def _priced(self, draft: Draft, now: float) -> Run:
        steps = self._alike_steps(draft) if draft.alike else 1
        return Run.priced(draft, steps, now, self._cost)

    def _alike_steps(self, draft: Draft) -> int:
        """How many steps nobody ends, needs a page, or leaves tokens for somebody else.

        A prompt that goes on after this step fills the budget, and gets the pages of all these
        steps now: nobody else takes one meanwhile.
        """
        room = [min(one.final - one.known, one.room) for one in draft.decodes]
        if not draft.chunks:
            return min(room)
        one, count = draft.chunks[0]
        if one.rank or one.ttft_s is not None:  # somebody may go first, or stand aside for it
            return 1
        full = max((one.behind - 1) // count, 1)
        steps = min([full, self._pages.fits(one, full * count) // count, *room])
        self._pages.extend(one, steps * count)
        return steps

    def _advance(self, one: Sequence, count: int, outcome: Outcome) -> None:
        self._pages.advance(one, count)
        if one.computed < one.known:
            return
        one.known = one.computed + 1
        if not one.started:
            one.started = True
            outcome.started.append(one)
        if one.known >= one.final:
            outcome.ended.append(one)
            self._leave(one)


def _order(one: Sequence) -> Place:
    return one.order
