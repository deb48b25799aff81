"""A request whose engine is lost at any token goes on at another one as if nothing had been."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.engine.engine import Engine
from cluster.failover import Transcript
from cluster.messages import Request, Sampling, TokenDelta
from tests.engine.driving import GREEDY, assignment, deltas_of, engine_of, request

SEEDED = Sampling(
    temperature=0.9,
    top_p=0.95,
    seed=1234,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    repetition_penalty=1.2,
    logprobs=2,
    prompt_logprobs=1,
)
PROMPT = [7, 11, 13, 17, 19, 23, 29, 31, 37, 41]
KINDS = {
    "greedy": request("greedy", PROMPT, max_tokens=14, sampling=GREEDY),
    "seeded": request("seeded", PROMPT, 10, SEEDED, choices=2),
    "three choices": request("three", PROMPT, 8, replace(SEEDED, temperature=1.3), choices=3),
    "stop token": request(
        "stop", PROMPT, 14, replace(SEEDED, seed=5), choices=2, min_tokens=3,
        stop_token_ids=tuple(range(3, 60)),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    return engine_of("llama"), engine_of("llama")


def undisturbed(engine: Engine, wanted: Request) -> list[TokenDelta]:
    return sorted(deltas_of(engine, assignment(wanted)), key=lambda delta: delta.choice)


def killed(engines: tuple[Engine, Engine], wanted: Request, kills: set[int]) -> list[TokenDelta]:
    """All deltas, where the engine is lost after each of `kills`, counted from the first."""
    transcript, heard, lives = Transcript(wanted.choices), [], 0
    while transcript:
        emitted = transcript.emitted() if lives else ()
        assigned = replace(assignment(wanted), emitted=emitted)
        for delta in deltas_of(engines[lives % 2], assigned):
            transcript.enter(delta)
            heard.append(delta)
            if len(heard) in kills:
                break
        lives += 1
    assert lives == len(kills) + (len(heard) not in kills)
    return sorted(heard, key=lambda delta: delta.choice)


def assert_same(one: list[TokenDelta], other: list[TokenDelta]) -> None:
    """The same but for what was cached, and for the last bits of log probabilities: products
    round by the number of rows."""
    assert [_words(delta) for delta in one] == [_words(delta) for delta in other]
    assert _numbers(one) == pytest.approx(_numbers(other), abs=1e-4)


def _words(delta: TokenDelta) -> object:
    scores = [*delta.logprobs, *(score for score in delta.prompt_logprobs if score)]
    tops = [[token for token, _ in score.top] for score in scores]
    return delta.choice, delta.tokens, delta.finish, [score.token for score in scores], tops


def _numbers(deltas: list[TokenDelta]) -> list[float]:
    scores = [
        score
        for delta in deltas
        for score in (*delta.logprobs, *delta.prompt_logprobs)
        if score is not None
    ]
    return [value for s in scores for value in (s.logprob, *(v for _, v in s.top))]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_token_it_ends_as_it_would_have(
    engines: tuple[Engine, Engine], kind: str
) -> None:
    wanted = KINDS[kind]
    expected = undisturbed(engines[0], wanted)
    assert len({delta.tokens for delta in expected}) > 3
    for place in range(1, len(expected)):
        assert_same(killed(engines, wanted, {place}), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_token_it_ends_as_it_would_have(
    engines: tuple[Engine, Engine], kind: str
) -> None:
    expected = undisturbed(engines[0], KINDS[kind])
    assert_same(killed(engines, KINDS[kind], set(range(1, len(expected)))), expected)


def test_choices_share_the_prompt_again_where_they_go_on() -> None:
    """Without a prefix cache too: the first of them computes it, the others fork from it."""
    wanted = KINDS["three choices"]
    engine = engine_of("llama", prefix_caching=False)
    expected = undisturbed(engine, wanted)
    before = engine.stats().tokens_computed
    assert_same(killed((engine, engine), wanted, {9}), expected)
    after_kill = 3 * 3 + 2 + len(expected) - 9
    computed = engine.stats().tokens_computed - before
    assert computed <= (len(PROMPT) + 2 + 9) + len(PROMPT) + after_kill
