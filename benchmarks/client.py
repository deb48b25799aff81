"""Load on a server that speaks OpenAI's streaming completions, as its clients would make it.

While the clock runs, a line is only stamped and kept: the client shares the machine with what it
measures, so it reads JSON and looks for garbage when all is over.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from benchmarks.metrics import Timeline
from benchmarks.workloads import Prompt, Workload

DATA = b"data:"
DONE = b"[DONE]"
READ_BUFFER = 2**20
LONGEST_RUN_S = 1200.0
GIVEN_UP = "not answered by the end"

Asks = Literal["token ids", "text", "chat"]


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask: the server's address, and what it calls and takes things."""

    url: str
    model: str
    key: str | None = None
    asks: Asks = "token ids"
    extra: Mapping[str, Any] = field(default_factory=lambda: {"ignore_eos": True})


@dataclass(frozen=True, slots=True)
class _Line:
    at: float
    data: bytes


@dataclass(slots=True)
class _Exchange:
    """One request while it runs."""

    prompt: Prompt
    sent: float = 0.0
    lines: list[_Line] = field(default_factory=list)
    error: str | None = None


async def drive(endpoint: Endpoint, workload: Workload) -> tuple[list[Timeline], float]:
    """Send the whole workload; what became of each request, in order, and the seconds it took."""
    exchanges = [_Exchange(prompt) for prompt in workload.prompts]
    places = asyncio.Semaphore(workload.concurrency)
    async with _session(endpoint) as session:
        began = time.perf_counter()
        await asyncio.gather(*(_ask(session, places, endpoint, one) for one in exchanges))
        wall = time.perf_counter() - began
    return [_timeline(one) for one in exchanges], wall


async def drive_paced(
    endpoint: Endpoint, prompts: Sequence[tuple[float, Prompt]], ends_s: float
) -> list[Timeline]:
    """Send each prompt so many seconds after the start, whether or not others are answered by then.

    What is not answered `ends_s` after the start is given up, which the server sees.
    """
    exchanges = [(at_s, _Exchange(prompt)) for at_s, prompt in prompts]
    async with _session(endpoint) as session:
        asks = [asyncio.create_task(_ask_at(session, endpoint, *one)) for one in exchanges]
        _, late = await asyncio.wait(asks, timeout=ends_s)
        for one in late:
            one.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return [_timeline(exchange) for _, exchange in exchanges]


async def _ask_at(
    session: aiohttp.ClientSession, endpoint: Endpoint, at_s: float, exchange: _Exchange
) -> None:
    await asyncio.sleep(at_s)
    try:
        await _ask(session, asyncio.Semaphore(), endpoint, exchange)
    except asyncio.CancelledError:
        exchange.error = GIVEN_UP
        raise


@asynccontextmanager
async def _session(endpoint: Endpoint) -> AsyncIterator[aiohttp.ClientSession]:
    """A connection a request: no server gains by how it keeps them."""
    session = aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {},
        timeout=aiohttp.ClientTimeout(total=LONGEST_RUN_S),
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        read_bufsize=READ_BUFFER,
    )
    gc.disable()
    try:
        async with session:
            yield session
    finally:
        gc.enable()


async def _ask(
    session: aiohttp.ClientSession,
    places: asyncio.Semaphore,
    endpoint: Endpoint,
    exchange: _Exchange,
) -> None:
    path, body = _request(endpoint, exchange.prompt)
    async with places:
        exchange.sent = time.perf_counter()
        try:
            async with session.post(endpoint.url + path, json=body) as answer:
                if answer.status != 200:
                    exchange.error = f"{answer.status} {(await answer.text())[:300]}"
                    return
                async for line in answer.content:
                    if line.startswith(DATA):
                        exchange.lines.append(_Line(time.perf_counter(), line))
        except (aiohttp.ClientError, TimeoutError) as error:
            exchange.error = repr(error)


def _request(endpoint: Endpoint, prompt: Prompt) -> tuple[str, dict[str, Any]]:
    """Path and body: greedy, streamed, with the usage at the end."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": prompt.output,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **endpoint.extra,
    }
    if endpoint.asks == "chat":
        body["messages"] = [{"role": "user", "content": prompt.text}]
        return "/v1/chat/completions", body
    body["prompt"] = list(prompt.tokens) if endpoint.asks == "token ids" else prompt.text
    return "/v1/completions", body


def _timeline(exchange: _Exchange) -> Timeline:
    asked = exchange.prompt.output
    if exchange.error is not None:
        return Timeline(exchange.sent, asked=asked, error=exchange.error)
    arrivals: list[float] = []
    counted = 0
    for line in exchange.lines:
        text = line.data[len(DATA) :].strip()
        if text == DONE:
            break
        chunk = json.loads(text)
        if "error" in chunk:
            return Timeline(exchange.sent, asked=asked, error=str(chunk["error"]))
        if _text_of(chunk):
            arrivals.append(line.at)
        counted = (chunk.get("usage") or {}).get("completion_tokens") or counted
    if not arrivals:
        return Timeline(exchange.sent, asked=asked, error="an answer without text")
    return Timeline(exchange.sent, tuple(arrivals), counted or len(arrivals), asked)


def _text_of(chunk: dict[str, Any]) -> str:
    """What a chunk of either endpoint adds to the text."""
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return choices[0].get("text") or delta.get("content") or ""
