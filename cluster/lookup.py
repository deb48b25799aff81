"""Guesses how a sequence goes on by what followed its last two tokens before: prompt lookup.

Texts repeat themselves: names, code, what is quoted of the prompt. A decode step is bound by
reading the weights, so a few more rows cost little, and a guess that is what the sampler then
chooses anyway saves a step. What it chooses is all that is kept, so output is the same with guesses
or without (Saxena, "Prompt Lookup Decoding", 2023; Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many

from cluster.messages import TokenLogprob
from cluster.steps import Sequence

LOOK_BACK = 4096
"""Tokens of a prompt that are looked at, the last ones: so a long one costs a step 1 ms at most."""

PAUSE = 16
"""Steps without a guess after some were wrong: a text that does not repeat itself costs little."""


class Lookup:
    """Of one sequence: where each pair of tokens was last, and how many guesses it is worth.

    All right, and the next are twice as many, up to `most`; less than half, and they are half as
    many; at none it pauses.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._reach = 1
        self._paused = 0
        self._followed: dict[tuple[int, int], int] = {}
        self._known = 2

    def guess(self, tokens: Many[int], room: int) -> tuple[int, ...]:
        """What may come after `tokens`, which since the last call only grew; at most `room`."""
        self._look_at(tokens)
        begin = self._followed.get((tokens[-2], tokens[-1])) if len(tokens) > 1 else None
        if begin is None:
            return ()
        period = len(tokens) - begin  # a text that has begun to repeat itself may go on to
        return tuple(tokens[begin + i % period] for i in range(min(room, self._turn())))

    def learn(self, guessed: int, right: int) -> None:
        """Of the last guesses so many were right."""
        if right == guessed:
            self._reach = min(self._most, max(1, 2 * self._reach))
        elif 2 * right < guessed:
            self._reach //= 2

    def _look_at(self, tokens: Many[int]) -> None:
        for place in range(max(self._known, len(tokens) - LOOK_BACK), len(tokens)):
            self._followed[tokens[place - 2], tokens[place - 1]] = place
        self._known = max(self._known, len(tokens))

    def _turn(self) -> int:
        """How many to guess now."""
        if self._reach == 0:
            self._paused = (self._paused + 1) % PAUSE
            self._reach = int(self._paused == 0)
        return self._reach


def may_guess(sequence: Sequence) -> bool:
    """Whether what is sampled next depends on earlier output by the logits alone. The first output
    token is not guessed beyond: it comes with what is told once a request."""
    sampling, stopping = sequence.request.sampling, sequence.request.stopping
    penalises = (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )
    return sequence.output_len >= max(1, stopping.min_tokens) and not penalises


def confirmed(guesses: tuple[int, ...], sampled: Many[TokenLogprob]) -> Iterator[TokenLogprob]:
    """Of what was sampled after the last known token and after each guess: all that was sampled
    after tokens that are really there."""
    for guess, chosen in zip((*guesses, None), sampled, strict=True):
        yield chosen
        if chosen.token != guess:
            return
