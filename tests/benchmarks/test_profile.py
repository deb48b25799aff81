"""The profile of a step finds every part of the engine, and the floor is what the model needs."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from actors.engine import runner
from benchmarks.floor import Limits, Needs, needs_of
from benchmarks.profile import Bench, table
from benchmarks.scopes import (
    ATTENTION,
    FORWARD,
    LINEARS,
    PARTS,
    PROGRAM,
    SMALL,
    STEP,
    scopes,
    seconds_by_part,
)
from cluster.config import CacheConfig, ModelConfig
from tests.engine.families import make

TINY = ModelConfig(dtype="float32", cache=CacheConfig(num_blocks=64, block_size=4))
NOT_HERE = ["KV write", "KV gather", PROGRAM]
"""The kernel keeps keys and reads pages in place, a first chunk reads none, nothing is compiled."""

LIMITS = Limits(bytes_s=1e9, flop_s=1e9)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("tiny")
    make("llama").save_pretrained(folder)
    return Bench(folder, TINY, steps=2)


def test_a_decode_step_reads_pages_in_place_and_divides_into_all_other_parts(bench: Bench) -> None:
    case = bench.decode(batch=3, context=8)
    assert [part for part in PARTS if case.part_s(part) == 0] == NOT_HERE
    assert sum(case.part_s(part) for part in PARTS) == pytest.approx(case.step_s)


def test_a_prefill_step_reads_no_page_and_does_all_else(bench: Bench) -> None:
    case = bench.prefill(tokens=12)
    assert [part for part in PARTS if case.part_s(part) == 0] == NOT_HERE


def test_each_part_that_took_time_has_a_row_and_each_case_a_column(bench: Bench) -> None:
    rows = table([bench.decode(1, 8), bench.prefill(8)], bench.needs, LIMITS).splitlines()
    assert [cell.strip() for cell in rows[0].strip("|").split("|")][1:] == [
        "decode 1 x 8",
        "prefill 8",
    ]
    assert {row.split("|")[1].strip() for row in rows} >= {
        part for part in PARTS if part not in NOT_HERE
    }


def test_an_engine_is_as_it_was_after_it_was_profiled() -> None:
    before = vars(runner)["build_batch"]
    head = torch.nn.Linear(2, 2)
    forward = head.forward
    with scopes(head):
        assert vars(runner)["build_batch"] is not before
    assert vars(runner)["build_batch"] is before
    assert head.forward == forward


def test_time_belongs_to_the_innermost_part_around_it() -> None:
    left = torch.ones(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        left @ left  # outside a step, and in no part
        with record_function(STEP), record_function(FORWARD):
            left @ left
            left + left
            with record_function(ATTENTION):
                left @ left

    def told(compiled: bool) -> set[str]:
        parts = seconds_by_part(profiled.events(), compiled)
        return {part for part, seconds in parts.items() if seconds > 0}

    assert told(compiled=False) == {STEP, FORWARD, LINEARS, SMALL, ATTENTION}
    assert told(compiled=True) == {STEP, PROGRAM, LINEARS, ATTENTION}


def test_a_tied_head_is_read_once_and_a_table_only_looked_up_in_not_at_all() -> None:
    untied = make("llama")
    head, table_ = untied.get_output_embeddings().weight, untied.get_input_embeddings().weight
    total = sum(weight.numel() for weight in untied.parameters())
    needs = needs_of(untied, kv_bytes=1)
    assert needs.head_weights == head.numel()
    assert needs.body_weights == total - head.numel() - table_.numel()
    assert needs.weight_bytes == 4 * (total - table_.numel())


def test_the_floor_is_what_is_read_over_bandwidth_and_what_is_multiplied_over_rate() -> None:
    needs = Needs(body_weights=100, head_weights=10, weight_bytes=220, kv_bytes=3)
    memory, flop = needs.floor_s(LIMITS, tokens=4, sampled=2, context=20)
    assert memory == pytest.approx((220 + 60) / 1e9)
    assert flop == pytest.approx(2 * (400 + 20) / 1e9)
