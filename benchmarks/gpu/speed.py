"""How fast one shape is served, by us and by the peer, against what the device allows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from actors.engine.engine import Engine, build_engine
from actors.engine.families import check_family
from actors.engine.kv_cache import page_bytes
from actors.engine.pool_size import free_bytes
from actors.engine.varlen import PAGE_MULTIPLE
from benchmarks.floor import Limits, Needs, needs_of
from benchmarks.gpu import peer
from benchmarks.gpu.served import Run, prompts, rates, serve
from benchmarks.gpu.shapes import Shape, made
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig

OURS = "shoal"

STEP_TOKENS = 8192
"""Computed in one step at most."""

POOL_SHARE = 0.7
"""Of the memory that weights leave; the rest is for what steps need, and for graphs."""

CPU_SEQUENCES = 8
"""As many at once on a CPU, where the code is tried out and nothing is measured."""


@dataclass(frozen=True)
class Figure:
    """One server with one number of requests at once. `*_limit`: the most tokens a second that the
    device's memory and products allow; `forward_share`: of the time, how much the device
    spent in forward passes. `problem`: why there are no figures."""

    server: str
    shape: str
    batch: int
    prefill_tok_s: float | None = None
    prefill_limit: float | None = None
    decode_tok_s: float | None = None
    decode_limit: float | None = None
    forward_share: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Bench:
    """A shape on a device; `needs` are per step, as in `floor`."""

    name: str
    shape: Shape
    model: PreTrainedModel
    needs: Needs
    limits: Limits
    most: int

    @property
    def tokens(self) -> int:
        """Of one request in the end."""
        return self.shape.prompt + self.shape.output

    @property
    def pages(self) -> int:
        """Of one request."""
        return -(-self.tokens // PAGE_MULTIPLE)

    def batches(self, wanted: list[int]) -> list[int]:
        """Those of `wanted` that fit into memory, and the most that do in place of the others."""
        return sorted({min(batch, self.most) for batch in wanted})

    def prompts(self, batch: int, seed: int) -> list[list[int]]:
        return prompts(batch, self.shape.prompt, self.shape.config.vocab_size, seed)

    def figure(self, server: str, batch: int, run: Run) -> Figure:
        rate = rates(run, self.shape.prompt)
        prefill, decode = self.most_tok_s(batch)
        return Figure(
            server=server,
            shape=self.name,
            batch=batch,
            prefill_tok_s=rate.prefill,
            prefill_limit=prefill,
            decode_tok_s=rate.decode,
            decode_limit=decode,
            forward_share=run.device_s / _seconds(run) if run.device_s else None,
        )

    def most_tok_s(self, batch: int) -> tuple[float, float]:
        """Of prompts and of outputs. A prefill reads the weights once each step."""
        prompt = batch * self.shape.prompt
        steps = -(-prompt // STEP_TOKENS)
        read, multiplied = self.needs.floor_s(self.limits, prompt, batch, 0)
        context = batch * (self.shape.prompt + self.shape.output // 2)
        decode = max(self.needs.floor_s(self.limits, batch, batch, context))
        return prompt / max(read * steps, multiplied), batch / decode


def _seconds(run: Run) -> float:
    return max(times[-1] for times in run.arrivals) - run.began


def bench_of(
    name: str, shape: Shape, dtype: torch.dtype, device: torch.device, limits: Limits
) -> Bench:
    """The model made, and what fits beside it known."""
    model = made(shape.config, dtype, device)
    layers = check_family(model)
    needs = needs_of(model, page_bytes(layers, 1, dtype))
    pages = -(-(shape.prompt + shape.output) // PAGE_MULTIPLE)
    room = POOL_SHARE * free_bytes(device) // (pages * page_bytes(layers, PAGE_MULTIPLE, dtype))
    most = CPU_SEQUENCES if device.type == "cpu" else int(room)
    return Bench(name, shape, model, needs, limits, most)


def ours(bench: Bench, wanted: list[int]) -> Iterator[Figure]:
    """Figures of the engine. The model is used up."""
    batches = bench.batches(wanted)
    engine = _engine(bench, max(batches))
    serve(engine, bench.prompts(1, seed=0), bench.shape.output)
    for batch in batches:
        run = serve(engine, bench.prompts(batch, seed=batch), bench.shape.output)
        yield bench.figure(OURS, batch, run)


def _engine(bench: Bench, batch: int) -> Engine:
    """Caching no prefixes: no prompt comes twice. Beside running sequences a few pages stay free
    (`cluster.batching`), so there are a few more than they need."""
    pages = bench.pages * batch
    return build_engine(
        bench.model,
        ModelConfig(
            max_model_len=bench.pages * PAGE_MULTIPLE,
            cache=CacheConfig(
                block_size=PAGE_MULTIPLE,
                num_blocks=pages + 2 + pages // 64,
                prefix_caching=False,
            ),
            batching=BatchingConfig(max_num_seqs=batch, max_batch_tokens=STEP_TOKENS),
        ),
    )


def theirs(bench: Bench, wanted: list[int]) -> Iterator[Figure]:
    """Figures of the peer, on the same weights."""
    on_cpu = bench.model.device.type == "cpu"
    for batch in bench.batches(wanted):
        settings = peer.settings_of(bench.pages * batch + 1 if on_cpu else None)
        asked = bench.prompts(batch, seed=batch)
        try:
            run = peer.generate(bench.model, asked, bench.shape.output, settings)
            yield bench.figure(peer.name(), batch, run)
        except (peer.PeerFailed, RuntimeError, ValueError) as error:
            yield Figure(peer.name(), bench.name, batch, problem=str(error))
        release()


def release() -> None:
    """Give back the memory of engines and models that are no longer used."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
