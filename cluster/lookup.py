"""Guesses how a sequence goes on by what followed its last tokens before: prompt lookup.

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

ALIKE = 3
"""Last tokens that have to have stood there before. With two, wrong guesses cost a text that does
not repeat itself more than right ones bring (docs/decisions/0016-prompt-lookup.md)."""

LOOK_BACK = 4096
"""Tokens of a prompt that are looked at, the last ones: so a long one costs a step 1 ms at most."""


class Lookup:
    """Of one sequence: where each few tokens stood last, and how well that tells what comes.

    What it would have guessed is compared with what came, at each step, guessed or not. It guesses
    as many tokens as it has foretold in a row, up to `most`: none where a text is new.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._foretold = 0
        self._expected: list[int] = []
        self._followed: dict[tuple[int, ...], int] = {}
        self._known = ALIKE

    def guess(self, tokens: list[int], room: int) -> tuple[int, ...]:
        """What may come after `tokens`, which since the last call only grew; at most `room`."""
        self._look_at(tokens)
        begin = self._followed.get(tuple(tokens[-ALIKE:]))
        if begin is None:
            self._expected, self._foretold = [], 0
            return ()
        period = len(tokens) - begin  # a text that has begun to repeat itself may go on to
        self._expected = [tokens[begin + i % period] for i in range(self._most)]
        return tuple(self._expected[: max(0, min(room, self._foretold))])

    def learn(self, came: Many[int]) -> None:
        """What really came after the tokens of the last guess."""
        for expected, token in zip(self._expected, came, strict=False):
            self._foretold = self._foretold + 1 if token == expected else 0
        self._expected = []

    def _look_at(self, tokens: list[int]) -> None:
        for place in range(max(self._known, len(tokens) - LOOK_BACK), len(tokens)):
            self._followed[tuple(tokens[place - ALIKE : place])] = place
        self._known = max(self._known, len(tokens))


def may_guess(sequence: Sequence) -> bool:
    """Whether what is sampled next depends on earlier output by the logits alone. The first output
    token is not guessed beyond: it comes with what is told once a request."""
    request = sequence.request
    first = max(1, request.stopping.min_tokens)
    return sequence.output_len >= first and not request.sampling.penalises


def confirmed(guesses: tuple[int, ...], sampled: Many[TokenLogprob]) -> Iterator[TokenLogprob]:
    """Of what was sampled after the last known token and after each guess: all that was sampled
    after tokens that are really there."""
    for guess, chosen in zip((*guesses, None), sampled, strict=True):
        yield chosen
        if chosen.token != guess:
            return
