"""Is the engine exact on this device? Asked first, since speed says nothing where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.engine.engine import Engine, build_engine
from actors.engine.fitting import fit
from actors.engine.graphs import fixed_steps
from actors.engine.kv_cache import InPlace, LayerShape
from actors.engine.varlen import PAGE_MULTIPLE, usable_on
from benchmarks.gpu.attended import Chunks, attended, full_cache, pages_of
from benchmarks.gpu.served import Prompt, prompts, serve
from benchmarks.gpu.shapes import SMALL, made
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import ShoalError
from cluster.messages import Sampling

OUTPUT = 24
LENGTHS = (1, 7, 255, 256, 300, 520)
"""Of prompts, tokens: within a page, up to its end, and beyond."""

WITHIN = 2e-2
"""Largest root mean square of a difference between two attentions in half precision, as a share of
what they differ about: rounding is a tenth of it, a wrong key is of the order of one."""

HEADS = {"grouped": (8, 2), "one each": (4, 4)}
DIM = 64
CHUNKS: dict[str, Chunks] = {
    "a long decode": [(6000, 1)],
    "decodes": [(4000, 1), (700, 1), (3, 1), (0, 1)],
    "a chunk beside decodes": [(1500, 1), (2, 1), (300, 290), (0, 40)],
}


class Differs(Exception):
    """What should be the same is not; the message says what."""


@dataclass(frozen=True)
class Check:
    """What was asked, and how it went."""

    name: str
    passed: bool
    detail: str


def checks(device: torch.device, quick: bool) -> Iterator[Check]:
    """One after the other; `quick` ones take seconds on a CPU."""
    lengths = LENGTHS[:3] if quick else LENGTHS
    yield _attempt("float32: transformers' own greedy tokens", lambda: _greedy(device, lengths))
    if not usable_on(device, torch.bfloat16, PAGE_MULTIPLE, ()):
        yield Check("pages read by torch's kernel", False, "this torch or device has none")
        return
    for name, (heads, kv_heads) in HEADS.items():
        for what, chunks in CHUNKS.items():
            for window in (None, 100):
                asked = f"attention: {what}, heads {name}" + (
                    f", window {window}" if window else ""
                )
                compare = partial(_attention, device, heads, kv_heads, chunks, window)
                yield _attempt(asked, compare)
    yield _attempt("bfloat16: logits within tolerance, by fixed steps too", lambda: _proofs(device))
    yield _attempt("deterministic: alone, in a crowd, resumed", lambda: _repeats(device))


def _attempt(name: str, act: Callable[[], str]) -> Check:
    """`act` says how it went, and raises where it did not."""
    try:
        return Check(name, True, act())
    except (Differs, ShoalError, RuntimeError) as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def _greedy(device: torch.device, lengths: Sequence[int]) -> str:
    model = made(SMALL, torch.float32, device, wide=True)
    asked = [prompts(1, length, SMALL.vocab_size, length)[0] for length in lengths]
    due = [_generated(model, prompt) for prompt in asked]
    given = serve(_engine(model, "float32"), asked, OUTPUT).tokens
    wrong = [length for length, one, other in zip(lengths, given, due, strict=True) if one != other]
    if wrong:
        raise Differs(f"other tokens for prompts of {wrong}")
    return f"{len(lengths)} prompts of up to {max(lengths)} tokens, {OUTPUT} tokens each"


def _generated(model: PreTrainedModel, prompt: Prompt) -> list[int]:
    model.set_attn_implementation("eager")
    given = torch.tensor([list(prompt)], device=model.device)
    out = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=OUTPUT,
        min_new_tokens=OUTPUT,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def _engine(model: PreTrainedModel, dtype: str, deterministic: bool = False) -> Engine:
    return build_engine(model, _config(dtype, deterministic))


def _config(dtype: str, deterministic: bool = False) -> ModelConfig:
    return ModelConfig(
        dtype=dtype,
        deterministic=deterministic,
        max_model_len=1024,
        cache=CacheConfig(block_size=PAGE_MULTIPLE, num_blocks=48),
        batching=BatchingConfig(max_num_seqs=16, max_batch_tokens=256),
    )


def _proofs(device: torch.device) -> str:
    """What is asked of an engine when it loads; but one that cannot be captured would serve."""
    model, config = made(SMALL, torch.bfloat16, device, wide=True), _config("bfloat16")
    if not fixed_steps(model, fit(model, config), config):
        raise Differs("steps cannot be captured: the log says why")
    return "as proved at each load"


def _repeats(device: torch.device) -> str:
    """A drawn request gives the same tokens whatever ran beside it, and whoever goes on with it."""
    sampling = Sampling(temperature=1.0, seed=7)
    engine = _engine(made(SMALL, torch.bfloat16, device, wide=True), "bfloat16", True)
    asked = prompts(6, 40, SMALL.vocab_size, 1)
    alone = [serve(engine, [prompt], OUTPUT, sampling).tokens[0] for prompt in asked]
    crowd = serve(engine, asked, OUTPUT, sampling).tokens
    if crowd != alone:
        raise Differs("other tokens in a crowd")
    half = OUTPUT // 2
    heirs = _engine(made(SMALL, torch.bfloat16, device, wide=True), "bfloat16", True)
    rest = serve(heirs, asked, OUTPUT, sampling, [tokens[:half] for tokens in alone]).tokens
    if rest != [tokens[half:] for tokens in alone]:
        raise Differs("other tokens where another goes on")
    return f"{len(asked)} requests, {OUTPUT} tokens each"


def _attention(
    device: torch.device, heads: int, kv_heads: int, chunks: Chunks, window: int | None
) -> str:
    """torch's kernel against pages that are gathered, and attended to in float32."""
    error = attention_error(device, heads, kv_heads, chunks, window)
    if not error <= WITHIN:
        raise Differs(f"by {error:.1e}")
    return f"{error:.1e}"


def attention_error(
    device: torch.device, heads: int, kv_heads: int, chunks: Chunks, window: int | None
) -> float:
    """Root mean square of the difference, as a share of what is right."""

    def computed(dtype: torch.dtype, in_place: InPlace) -> Tensor:
        shape = LayerShape(kv_heads, DIM, DIM)
        cache = full_cache(shape, sum(pages_of(chunks)), dtype, device, in_place)
        return attended(cache, chunks, heads, window)

    right = computed(torch.float32, InPlace.NONE)
    difference = computed(torch.bfloat16, InPlace.RAGGED) - right
    return float(difference.square().mean().sqrt() / right.square().mean().sqrt())
