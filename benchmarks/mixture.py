"""Requests of every kind, and their answers in a form that can be compared word for word."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "logprobs": 2},
    {"temperature": 0.8, "n": 3, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"temperature": 1.1, "stop": ["e", " on", "th"], "min_tokens": 4},
    {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "n": 2, "stop": [" fish"]},
    {"temperature": 0, "logprobs": 1, "echo": True},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.02, "ignore_eos": True},
)
"""What the requests ask for, beside a prompt, a seed and a length."""

CLOSE = 2e-3
"""How far two log probabilities of the same token may lie apart: products round by batch."""


@dataclass(frozen=True)
class Ask:
    """A request: where it goes and what it says."""

    path: str
    body: dict[str, Any]

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass
class Choice:
    """All that an answer said of one choice."""

    text: str = ""
    finish: str | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)


@dataclass
class Answer:
    """A whole answer. `arrivals`: when its chunks came, by the monotonic clock, in seconds."""

    call_id: str = ""
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    arrivals: list[float] = field(default_factory=list)


class Failed(Exception):
    """The answer was an error, or ended before its end."""


def asks(model: str, count: int, seed: int) -> list[Ask]:
    """`count` requests of every kind, streamed and whole, for both endpoints; all of them seeded,
    since only what is repeatable can be compared."""
    chance = Random(seed)
    return [_ask(model, number, chance) for number in range(count)]


def _ask(model: str, number: int, chance: Random) -> Ask:
    kind = dict(KINDS[number % len(KINDS)])
    words = " ".join(
        chance.choice(("One", "fish", "two", "shoal", "swims", "Rome")) for _ in "12345"
    )
    body = {
        "model": model,
        "seed": chance.randrange(2**31),
        "max_tokens": chance.choice((12, 24, 60, 120)),
        **kind,
    }
    if number // len(KINDS) % 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if number // len(KINDS) % 4 < 2 or kind.get("echo"):
        several = [words, f"{words} {number}"] if number % 5 == 0 else words
        return Ask("/v1/completions", body | {"prompt": several})
    if "logprobs" in kind:
        body |= {"logprobs": True, "top_logprobs": kind["logprobs"]}
    return Ask("/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]})


async def answer(http: httpx.AsyncClient, ask: Ask) -> Answer:
    """Raises Failed where the answer is an error, or a stream that breaks off."""
    known = Answer()
    if ask.streams:
        async for chunk in _chunks(http, ask):
            known.arrivals.append(time.monotonic())
            _enter(known, chunk)
    else:
        response = await http.post(ask.path, json=ask.body)
        if response.status_code != httpx.codes.OK:
            raise Failed(response.text)
        _enter(known, response.json())
    return known


async def _chunks(http: httpx.AsyncClient, ask: Ask) -> Any:
    async with http.stream("POST", ask.path, json=ask.body) as response:
        if response.status_code != httpx.codes.OK:
            raise Failed((await response.aread()).decode())
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            if data != line:
                chunk = json.loads(data)
                if "error" in chunk:
                    raise Failed(chunk["error"]["message"])
                yield chunk
    raise Failed("the stream broke off")


def _enter(known: Answer, said: dict[str, Any]) -> None:
    """What a chunk, or a whole answer, adds."""
    known.call_id = said["id"]
    if said.get("usage"):
        known.prompt_tokens = said["usage"]["prompt_tokens"]
        known.completion_tokens = said["usage"]["completion_tokens"]
    for part in said["choices"]:
        choice = known.choices.setdefault(part["index"], Choice())
        told = part.get("delta") or part.get("message") or {}
        choice.text += part.get("text") or told.get("content") or ""
        choice.finish = part.get("finish_reason") or choice.finish
        tokens, logprobs = _scores(part.get("logprobs") or {})
        choice.tokens += tokens
        choice.logprobs += logprobs


def _scores(said: dict[str, Any]) -> tuple[Iterable[str], Iterable[float | None]]:
    """Of a chat or of a completion."""
    if "content" in said:
        entries = said["content"]
        return [one["token"] for one in entries], [one["logprob"] for one in entries]
    return said.get("tokens", ()), said.get("token_logprobs", ())


def verdict(given: Answer, due: Answer) -> str:
    """`right`, or what the first choice that differs suffered: `lost`, `repeated` or `wrong`."""
    for index in sorted(given.choices.keys() | due.choices.keys()):
        one, other = given.choices.get(index, Choice()), due.choices.get(index, Choice())
        if one.text != other.text or one.tokens != other.tokens:
            return _how(one, other)
        if one.finish != other.finish or not _alike(one.logprobs, other.logprobs):
            return "wrong"
    counted = given.completion_tokens - due.completion_tokens
    if counted:
        return "repeated" if counted > 0 else "lost"
    return "right" if given.prompt_tokens == due.prompt_tokens else "wrong"


def _how(given: Choice, due: Choice) -> str:
    if due.text.startswith(given.text) and len(given.tokens) <= len(due.tokens):
        return "lost"
    return "repeated" if len(given.text) > len(due.text) else "wrong"


def _alike(given: list[float | None], due: list[float | None]) -> bool:
    pairs = zip(given, due, strict=True)
    return all(
        a == b or (a is not None and b is not None and abs(a - b) <= CLOSE) for a, b in pairs
    )
