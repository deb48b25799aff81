"""Enters what a step gave into its sequences, and says what their clients hear of it."""

from __future__ import annotations

from cluster.block_tables import BlockTables
from cluster.errors import LedgerBroken, ShoalError
from cluster.lookup import confirmed
from cluster.messages import FinishReason, RequestFailed, TokenDelta, TokenLogprob
from cluster.roster import Roster
from cluster.sequences import Family, Tracked, finish_reason
from cluster.soundness import Soundness
from cluster.steps import Chunk, StepPlan, StepResult, pair


class Harvest:
    """Advances sequences, forks and ends them; counts tokens `computed` and `sampled` in all, those
    `guessed`, and the guesses that were `right`."""

    def __init__(self, tables: BlockTables, roster: Roster, max_model_len: int) -> None:
        self._tables = tables
        self._roster = roster
        self._max_model_len = max_model_len
        self._soundness = Soundness()
        self._started: list[str] = []
        self._refused: list[RequestFailed] = []
        self.computed = 0
        self.sampled = 0
        self.guessed = 0
        self.right = 0

    def enter(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """What the step gave for sequences cancelled meanwhile is dropped.

        Raises LedgerBroken where result and plan, or plan and sequences, do not fit together, and
        DeviceFault where the shard computes nothing that can be used.
        """
        self._soundness.judge(plan, result)
        deltas: list[TokenDelta] = []
        for number, (chunk, sampled, scores) in enumerate(pair(plan, result)):
            tracked = self._roster.living(chunk.sequence)
            if tracked is None:
                continue
            if number in result.flaws:
                self._refuse(tracked.family, result.flaws[number])
            else:
                self._advance(tracked, chunk, scores)
                deltas += self._deltas(tracked, chunk, sampled)
        return deltas

    def drain_started(self) -> tuple[str, ...]:
        """Ids of the requests whose first delta came since the last call."""
        started, self._started = tuple(self._started), []
        return started

    def drain_refused(self) -> tuple[RequestFailed, ...]:
        """The requests that ended for flaws in what was computed of them, since the last call."""
        refused, self._refused = tuple(self._refused), []
        return refused

    def _refuse(self, family: Family, flaw: ShoalError) -> None:
        """All its choices end: they share what was computed."""
        name = family.request.request_id
        self._refused.append(RequestFailed(name, type(flaw).__name__, flaw.message))
        for member in list(family.members.values()):
            self._roster.end(member)

    def _advance(self, tracked: Tracked, chunk: Chunk, scores: tuple[TokenLogprob, ...]) -> None:
        sequence, family = tracked.sequence, tracked.family
        if chunk.start != sequence.computed:
            raise LedgerBroken(f"chunk from {chunk.start} on, but {sequence.computed} computed")
        self._tables.advance(tracked, chunk.count)
        self.computed += chunk.count
        if family.scores is not None:
            family.scores += scores

    def _deltas(
        self, tracked: Tracked, chunk: Chunk, sampled: tuple[TokenLogprob, ...]
    ) -> list[TokenDelta]:
        """What clients hear of the step: mostly one token; all ends where no output is wanted."""
        sequence, family = tracked.sequence, tracked.family
        if sequence.request.stopping.max_tokens == 0:
            return self._end_scored(family) if tracked.behind == 0 else []
        if sequence.computed >= sequence.prompt_len and sequence.choice == family.leader:
            self._roster.fork_from(tracked)
        return [self._append(tracked, chunk, sampled)] if sampled else []

    def _append(
        self, tracked: Tracked, chunk: Chunk, sampled: tuple[TokenLogprob, ...]
    ) -> TokenDelta:
        """What came after the chunk's tokens, and after each guess that was right."""
        taken: list[TokenLogprob] = []
        finish = None
        for one in confirmed(chunk.guesses, sampled):
            tracked.sequence.tokens.append(one.token)
            taken.append(one)
            finish = finish_reason(tracked.sequence, self._max_model_len)
            if finish is not None:
                break
        self._count(tracked, chunk, len(taken))
        delta = self._delta(tracked, tuple(taken), finish)
        if finish is not None:
            self._roster.end(tracked)
        return delta

    def _count(self, tracked: Tracked, chunk: Chunk, taken: int) -> None:
        """So many tokens were sampled: before the last of them stand guesses that were right."""
        right = taken - 1
        self._tables.advance(tracked, right)
        self.computed += right
        self.sampled += taken
        self.guessed += len(chunk.guesses)
        self.right += right
        if tracked.lookup is not None:
            tracked.lookup.learn(tracked.sequence.tokens[-taken:])

    def _end_scored(self, family: Family) -> list[TokenDelta]:
        """The prompt is computed and no output is wanted: all choices are alike, and done."""
        members = list(family.members.values())
        deltas = [self._delta(one, (), FinishReason.LENGTH) for one in members]
        for one in members:
            self._roster.end(one)
        return deltas

    def _delta(
        self, tracked: Tracked, sampled: tuple[TokenLogprob, ...], finish: FinishReason | None
    ) -> TokenDelta:
        sequence, family = tracked.sequence, tracked.family
        if not family.started:
            family.started = True
            self._started.append(sequence.request.request_id)
        first = sequence.choice == 0 and sequence.output_len <= 1
        scores = family.hand_over_scores() if first else ()
        return TokenDelta(
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            tokens=tuple([one.token for one in sampled]),
            logprobs=sampled if sequence.request.sampling.logprobs is not None else (),
            finish=finish,
            cached_tokens=(family.cached_tokens or 0) if first else 0,
            prompt_logprobs=scores,
        )
