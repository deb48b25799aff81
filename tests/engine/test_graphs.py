"""Fixed steps compute what steps as they come do, whatever was in their memory before.

On a CPU nothing is captured: what would be replayed is computed again, in the same memory.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from actors.engine.batch import Paths, StepBatch, build_batch
from actors.engine.engine import Engine, build_engine
from actors.engine.families import check_family
from actors.engine.graphs import FixedStep, FixedSteps, Run, bucket_of, bucket_sizes, fill_up
from actors.engine.kv_cache import InPlace, KVCache
from actors.engine.runner import ModelRunner, PagedModel
from actors.engine.varlen import PAGE_MULTIPLE
from benchmarks.gpu.flash_on_cpu import flash_on_cpu
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import UnsupportedModel
from cluster.messages import Sampling
from cluster.steps import Chunk, Sequence, StepPlan
from tests.engine.driving import random_prompt, request, run, tokens_of
from tests.engine.families import MAX_LEN, make

CPU = torch.device("cpu")
PAGES = 6
ROUNDING = 0.1
"""Of logits in bfloat16, whose products round by the number of rows: as a share of their spread."""


@pytest.fixture(autouse=True)
def _kernel() -> Iterator[None]:
    with flash_on_cpu():
        yield


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make("llama").to(torch.bfloat16)


def cache_for(model: PreTrainedModel, in_place: InPlace = InPlace.RAGGED) -> KVCache:
    layers = check_family(model)
    return KVCache(layers, PAGES, PAGE_MULTIPLE, torch.bfloat16, CPU, in_place)


def decodes(cache: KVCache, positions: list[int], seed: int = 0) -> StepBatch:
    """One token each, the sequence of number `i` on page `i`."""
    source = random.Random(seed)
    chunks = []
    for page, position in enumerate(positions):
        tokens = random_prompt(source, position + 1)
        sequence = Sequence(request(f"r{page}", tokens), 0, tokens, blocks=[page])
        chunks.append(Chunk(sequence, position, 1, True))
    return build_batch(StepPlan(tuple(chunks)), cache)


def one_token(position: int, blocks: list[int]) -> Chunk:
    tokens = [7] * (position + 1)
    return Chunk(Sequence(request("r", tokens[:200]), 0, tokens, blocks=blocks), position, 1, True)


def spread_error(ours: Tensor, right: Tensor) -> float:
    return float((ours - right).square().mean().sqrt() / right.std())


def test_sizes_double_up_to_the_most() -> None:
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(6) == (1, 2, 4, 6)
    assert bucket_sizes(256) == (1, 2, 4, 8, 16, 32, 64, 128, 256)


@given(st.integers(1, 4096), st.data())
def test_a_step_is_filled_up_to_less_than_twice_its_rows(most: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, most))
    size = bucket_of(rows, bucket_sizes(most))
    assert size is not None
    assert rows <= size < 2 * rows


def test_more_rows_than_the_largest_size_have_none() -> None:
    assert bucket_of(5, (1, 2, 4)) is None


def test_rows_that_fill_up_stand_at_the_start_of_the_page_that_nobody_owns() -> None:
    paths = Paths(np.array([3, 1, 2]), np.array([0, 2]), np.array([260, 7]))
    filled = fill_up(paths, 4, spare=9)
    assert filled.tables[filled.first_page].tolist() == [3, 2, 9, 9]
    assert filled.positions.tolist() == [260, 7, 0, 0]


def test_rows_that_fill_up_write_to_no_page_that_may_be_owned(model: PreTrainedModel) -> None:
    cache = cache_for(model)
    step = FixedStep(PagedModel(model), cache, 4, width=1)
    with torch.inference_mode():
        step(decodes(cache, [0]), torch.tensor([0]))
    keys, _ = cache.paged(0)
    written = keys.flatten(1).any(dim=1)
    assert written.tolist() == [True, *[False] * (PAGES - 1), True]


def test_a_step_that_was_filled_up_gives_the_logits_of_the_rows_it_was_given(
    model: PreTrainedModel,
) -> None:
    cache = cache_for(model)
    step = FixedStep(PagedModel(model), cache, 4, width=1)
    batch = decodes(cache, [5, 3, 2])
    right = ModelRunner(model, cache).logits(batch, [2, 0, 1])
    with torch.inference_mode():
        ours = step(batch, torch.tensor([2, 0, 1]))
    assert spread_error(ours, right) <= ROUNDING


def test_nothing_is_left_of_the_step_before(model: PreTrainedModel) -> None:
    cache = cache_for(model)
    forward = PagedModel(model)
    used, fresh = (FixedStep(forward, cache, 4, width=2) for _ in range(2))
    before = build_batch(StepPlan((one_token(270, [4, 5]), one_token(20, [2]))), cache)
    batch = decodes(cache, [5, 3], seed=1)
    with torch.inference_mode():
        used(before, torch.tensor([1, 0]))
        right = fresh(batch, torch.tensor([1, 0])).clone()
        ours = used(batch, torch.tensor([1, 0]))
    assert torch.equal(ours, right)


def test_the_replay_of_a_capture_is_what_computes(model: PreTrainedModel) -> None:
    cache = cache_for(model)
    step = FixedStep(PagedModel(model), cache, 2, width=1)
    replayed = torch.arange(2.0)[:, None]

    def capture(compute: Run) -> Run:
        compute()
        return lambda: replayed

    step.capture(capture)
    assert torch.equal(step(decodes(cache, [1]), torch.tensor([0])), replayed[:1])


def counted(cache: KVCache, sizes: tuple[int, ...]) -> tuple[FixedSteps, list[int]]:
    """Fixed steps whose forward pass only notes how many rows it was given."""
    rows: list[int] = []

    def forward(tokens: Tensor, positions: Tensor, kept: Tensor, step: Tensor) -> Tensor:
        rows.append(tokens.shape[1])
        return torch.zeros(len(kept), 1)

    steps = {size: FixedStep(forward, cache, size, width=1) for size in sizes}
    return FixedSteps(forward, cache.in_place.repeats, steps), rows


def ask(steps: FixedSteps, batch: StepBatch, kept: int) -> int:
    rows = torch.zeros(kept, dtype=torch.int64)
    return len(steps(batch.tokens, batch.positions, rows, batch.number))


def test_decodes_take_the_next_size_and_more_than_the_largest_none(model: PreTrainedModel) -> None:
    cache = cache_for(model)
    steps, rows = counted(cache, (1, 2, 4))
    assert ask(steps, decodes(cache, [1, 1, 1]), 3) == 3
    assert ask(steps, decodes(cache, [1] * 5), 5) == 5
    assert rows == [4, 5]


def prompt(cache: KVCache, tokens: int) -> StepBatch:
    known = [3] * tokens
    sequence = Sequence(request("r", known), 0, known, blocks=[0])
    return build_batch(StepPlan((Chunk(sequence, 0, tokens, True),)), cache)


def test_a_prompt_is_no_fixed_step_but_where_rows_are_computed_by_themselves(
    model: PreTrainedModel,
) -> None:
    as_they_come, by_row = cache_for(model), cache_for(model, InPlace.RAGGED_ROWS)
    for cache, computed in ((as_they_come, 3), (by_row, 4)):
        steps, rows = counted(cache, (4,))
        assert ask(steps, prompt(cache, 3), 1) == 1
        assert rows == [computed]


def engine_of(
    family: str, *, deterministic: bool = False, compile: Literal["auto", "off"] = "auto"
) -> Engine:
    return build_engine(
        make(family).to(torch.bfloat16),
        ModelConfig(
            deterministic=deterministic,
            compile=compile,
            max_model_len=MAX_LEN,
            cache=CacheConfig(block_size=PAGE_MULTIPLE, num_blocks=20, prefix_caching=False),
            batching=BatchingConfig(max_num_seqs=6, prompt_lookup_tokens=0),
        ),
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "qwen3"])
def test_fixed_steps_sample_the_tokens_that_steps_as_they_come_do(
    family: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By as many rows in either, so that products round alike."""
    with caplog.at_level(logging.WARNING):
        fixed = engine_of(family)
    assert not caplog.records
    computed, compute = [], FixedStep.__call__

    def noted(step: FixedStep, batch: StepBatch, kept: Tensor) -> Tensor:
        computed.append(len(kept))
        return compute(step, batch, kept)

    monkeypatch.setattr(FixedStep, "__call__", noted)
    source = random.Random(1)
    asked = [request(f"r{i}", random_prompt(source, 9)) for i in range(2)]
    ours = run(fixed, asked)
    assert computed == [2] * 11  # the first of 12 tokens comes of the prompts' step
    theirs = run(engine_of(family, compile="off"), asked)
    assert len(computed) == 11
    for one in asked:
        assert tokens_of(ours, one.request_id) == tokens_of(theirs, one.request_id)


def test_a_deterministic_model_repeats_alone_and_in_a_crowd() -> None:
    engine, source = engine_of("llama", deterministic=True), random.Random(7)
    asked = [
        request(f"r{i}", random_prompt(source, 40), 8, Sampling(temperature=1.0, seed=i))
        for i in range(4)
    ]
    crowd = run(engine, asked)
    for one in asked:
        alone = run(engine, [one])
        assert tokens_of(alone, one.request_id) == tokens_of(crowd, one.request_id)


def test_a_layer_that_gathers_pages_is_served_as_steps_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engine_of("gemma2")
    assert "serving without CUDA graphs" in caplog.text
    assert len(tokens_of(run(engine, [request("r", [5, 6, 7])]), "r")) == 12


def test_such_a_model_cannot_be_deterministic() -> None:
    with pytest.raises(UnsupportedModel, match="deterministic needs fixed steps"):
        engine_of("gemma2", deterministic=True)
