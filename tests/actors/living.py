"""Real actors for the tests: a tiny model, a local Ray session, and what a request looks like."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import psutil
import ray
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from actors.reporting import ReportTiming
from actors.shard_spec import ShardTiming
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig, ResourcesConfig
from cluster.messages import Assignment, Lease, Reason, Request, Sampling, ShardRef, Stopping

TIMING = ShardTiming(
    door_timeout_s=1.0,
    poll_wait_s=0.2,
    last_words_s=0.2,
    reports=ReportTiming(heartbeat_s=0.2, gap_s=0.01, patience_s=2.0, retry_s=0.05),
)
PROMPT = tuple(range(3, 40))


@contextmanager
def ray_session() -> Iterator[None]:
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    try:
        yield
    finally:
        ray.shutdown()


def tiny_llama(folder: Path) -> Path:
    """A two-layer Llama with random weights, as a model folder."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def tiny_model(folder: Path, **fields: Any) -> ModelConfig:
    given: dict[str, Any] = {
        "name": "tiny",
        "source": str(folder),
        "dtype": "float32",
        "cache": CacheConfig(block_size=4, num_blocks=1024),
        # No guesses: streams last as long as tests need of what happens meanwhile.
        "batching": BatchingConfig(max_num_seqs=64, max_batch_tokens=256, prompt_lookup_tokens=0),
        "resources": ResourcesConfig(cpus=0, threads=1),
        "max_model_len": 2048,
    }
    return ModelConfig(**(given | fields))


def assignment(shard: ShardRef, max_tokens: int = 16, choices: int = 1, **lease: Any) -> Assignment:
    request = Request(
        request_id=uuid4().hex,
        model=shard.model,
        tenant="t",
        sla="P1",
        prompt=PROMPT,
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(max_tokens=max_tokens),
        choices=choices,
    )
    granted = Lease(request.request_id, 1, shard, 0, Reason(0.0, ()))
    return Assignment(replace(granted, **lease), request, salt=b"t")


async def until(fact: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    """Wait for a fact of another process; TimeoutError where it does not come about."""
    async with asyncio.timeout(within_s):
        while not await fact():  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.02)


async def pid_of(handle: Any) -> int:
    pid: int = await handle.__ray_call__.remote(lambda _: os.getpid())
    return pid


def is_gone(pid: int) -> bool:
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return True
    return bool(status == psutil.STATUS_ZOMBIE)


def break_next_step(shard: Any) -> None:
    """Make the next step raise what a broken device would."""

    def burn(_plan: Any) -> None:
        raise RuntimeError("the device is on fire")

    def order(engine: Any) -> None:
        engine._runner.execute = burn

    shard._engine._post(order)


def wedge_next_step(shard: Any) -> None:
    """Make the next step wait, as on a device that hangs."""

    def order(engine: Any) -> None:
        engine._runner.execute = lambda _plan: Event().wait()

    shard._engine._post(order)
