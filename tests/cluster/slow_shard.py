"""A toy shard whose steps take as long as a test says, and a chat that comes to it."""

from __future__ import annotations

from tests.cluster.paged_memory import assignment
from tests.cluster.toy_shard import ToyShard


def prompt_of(length: int, first: int) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def slow_step(shard: ToyShard, took_s: float, token_s: float = 0.0) -> dict[str, int]:
    """Its tokens by request, of which each takes `token_s` on top."""
    plan = shard.plan()
    tokens = {chunk.sequence.request.request_id: chunk.count for chunk in plan.chunks}
    took_s += token_s * sum(tokens.values())
    shard.batcher.settle(plan, shard.memory.compute(plan), took_s)
    return tokens


def chat(shard: ToyShard, tokens: int = 3, ttft_s: float | None = 1.6) -> None:
    """One of the highest class comes. A sixteenth of what it is promised by default is 0.1 s."""
    prompt = prompt_of(tokens, 1_000_000 + 1000 * shard.batcher.stats().steps)
    shard.batcher.admit(assignment("chat", prompt, max_tokens=1, ttft_s=ttft_s))
