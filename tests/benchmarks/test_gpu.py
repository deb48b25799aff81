"""The way up to a GPU, walked on a CPU; what is counted of a run; and what it says without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.floor import Limits, Needs
from benchmarks.gpu.attended import pages_of, plan_of
from benchmarks.gpu.served import Rates, Run, rates
from benchmarks.gpu.shapes import SHAPES, made
from benchmarks.gpu.speed import Bench
from benchmarks.servers import ROOT

CPU = torch.device("cpu")


def run_gpu(*options: str) -> subprocess.CompletedProcess[str]:
    """On a machine without GPUs, or one that hides them."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *options],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so_and_exits_with_2() -> None:
    done = run_gpu()
    assert done.returncode == 2
    assert "no CUDA device here" in done.stdout


def test_the_whole_way_is_walked_on_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    options = ("--device", "cpu", "--shape", "tiny", "--batches", "1,3")
    done = run_gpu(*options, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads(file.read_text())
    assert all(check["passed"] for check in kept["checks"])
    served = [(figure["server"], figure["batch"]) for figure in kept["figures"]]
    assert served == [
        ("shoal", 1),
        ("shoal", 3),
        ("transformers, sdpa", 1),
        ("transformers, sdpa", 3),
    ]
    assert all(figure["prefill_tok_s"] and not figure["problem"] for figure in kept["figures"])


def test_prompts_count_until_the_last_first_token_and_outputs_while_all_get_theirs() -> None:
    run = Run(began=10.0, tokens=[[0] * 4] * 2, arrivals=[[11, 12, 13, 14], [12, 13, 14, 15]])
    assert rates(run, prompt_tokens=50) == Rates(prefill=100 / 2, decode=4 / 2)


def test_requests_that_never_get_their_outputs_at_once_have_no_such_rate() -> None:
    run = Run(began=0.0, tokens=[[0] * 2] * 2, arrivals=[[1, 2], [2, 3]])
    assert rates(run, prompt_tokens=1).decode is None


@pytest.mark.parametrize(
    ("name", "billions", "key_bytes"), [("1b", 1.24, 32 * 2**10), ("8b", 8.03, 128 * 2**10)]
)
def test_the_shapes_are_of_the_size_they_are_called_by(
    name: str, billions: float, key_bytes: int
) -> None:
    config = SHAPES[name].config
    with torch.device("meta"):
        model = type(made(SHAPES["tiny"].config, torch.bfloat16, CPU))(config)
    weights = sum(weight.numel() for weight in model.parameters())
    assert weights / 1e9 == pytest.approx(billions, rel=0.01)
    heads = config.num_key_value_heads * config.num_hidden_layers
    assert 2 * 2 * heads * config.hidden_size // config.num_attention_heads == key_bytes


def test_prompt_and_output_of_the_large_shapes_fill_their_pages() -> None:
    for name in ("1b", "8b"):
        assert (SHAPES[name].prompt + SHAPES[name].output) % 256 == 0


def test_the_limit_of_outputs_is_the_weights_and_keys_that_a_step_reads() -> None:
    needs = Needs(body_weights=100, head_weights=10, weight_bytes=220, kv_bytes=2)
    model = made(SHAPES["tiny"].config, torch.float32, CPU)
    bench = Bench("tiny", SHAPES["tiny"], model, needs, Limits(1000.0, 1e6), most=8)
    _, decode = bench.most_tok_s(4)
    assert decode == pytest.approx(4 / ((220 + 4 * 46 * 2) / 1000))


def test_batches_that_do_not_fit_become_the_most_that_does() -> None:
    needs = Needs(1, 1, 1, 1)
    model = made(SHAPES["tiny"].config, torch.float32, CPU)
    bench = Bench("tiny", SHAPES["tiny"], model, needs, Limits(1.0, 1.0), most=40)
    assert bench.batches([1, 32, 256]) == [1, 32, 40]


def test_pages_of_a_checked_attention_lie_in_any_order_and_belong_to_one_sequence_each() -> None:
    chunks = [(600, 1), (0, 300)]
    blocks = [page for chunk in plan_of(chunks).chunks for page in chunk.sequence.blocks]
    assert pages_of(chunks) == [3, 2]
    assert sorted(blocks) == list(range(5))
    assert blocks != sorted(blocks)
