"""Drives an engine in tests: requests in, whole outputs out, books checked at the end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from actors.engine.engine import Engine, build_engine
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.folder_config import FolderConfig
from cluster.messages import (
    Assignment,
    Lease,
    Reason,
    Request,
    Sampling,
    ShardRef,
    Stopping,
    TokenDelta,
)
from tests.engine.families import MAX_LEN, VOCAB, make

SHARD = ShardRef(shard="s0", model="tiny", actor="s0", incarnation="1")
GREEDY = Sampling(temperature=0.0)

Output = dict[tuple[str, int], list[TokenDelta]]
"""All deltas of each choice, by request id and choice."""


def engine_of(
    family: str,
    *,
    num_blocks: int = 128,
    block_size: int = 4,
    max_num_seqs: int = 16,
    max_batch_tokens: int = 64,
    max_model_len: int = MAX_LEN,
    prefix_caching: bool = True,
    host_gib: float | None = None,
    folder: FolderConfig | None = None,
    deterministic: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Engine:
    """An engine over a new tiny model."""
    return build_engine(
        make(family).to(dtype),
        ModelConfig(
            deterministic=deterministic,
            max_model_len=min(max_model_len, num_blocks * block_size),
            cache=CacheConfig(
                block_size=block_size,
                num_blocks=num_blocks,
                prefix_caching=prefix_caching,
                host_gib=host_gib,
                folder=folder,
            ),
            batching=BatchingConfig(max_num_seqs=max_num_seqs, max_batch_tokens=max_batch_tokens),
        ),
    )


def request(
    name: str,
    prompt: Sequence[int],
    max_tokens: int = 12,
    sampling: Sampling = GREEDY,
    choices: int = 1,
    **stopping: Any,
) -> Request:
    return Request(
        request_id=name,
        model="tiny",
        tenant="t",
        sla="P1",
        prompt=tuple(prompt),
        sampling=sampling,
        stopping=Stopping(max_tokens=max_tokens, **stopping),
        choices=choices,
    )


def assignment(wanted: Request, rank: int = 0) -> Assignment:
    lease = Lease(wanted.request_id, 1, SHARD, 0, Reason(0.0, ()), rank)
    return Assignment(lease=lease, request=wanted, salt=b"salt")


def run(
    engine: Engine, requests: Iterable[Request], arrivals: random.Random | None = None
) -> Output:
    """Serve all requests to their ends and check the books; by `arrivals`, not all at once."""
    waiting = list(requests)
    output: Output = {}
    while waiting or engine.has_work:
        while waiting and (arrivals is None or not engine.has_work or arrivals.random() < 0.4):
            engine.admit(assignment(waiting.pop(0)))
        for delta in engine.step():
            output.setdefault((delta.request_id, delta.choice), []).append(delta)
    engine.verify()
    assert engine.stats().used_pages == 0
    return output


def deltas_of(engine: Engine, assigned: Assignment) -> Iterator[TokenDelta]:
    """One delta at a time; whoever stops reading leaves the rest to be cancelled."""
    engine.admit(assigned)
    try:
        while engine.has_work:
            yield from engine.step()
    finally:
        engine.cancel(assigned.request.request_id)
        engine.verify()
        assert engine.stats().used_pages == 0


def tokens_of(output: Output, name: str, choice: int = 0) -> list[int]:
    return [token for delta in output[name, choice] for token in delta.tokens]


def random_prompt(source: random.Random, length: int) -> list[int]:
    return [source.randrange(3, VOCAB) for _ in range(length)]
