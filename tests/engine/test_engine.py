"""The engine as its shard drives it: seeds, log probabilities, stops, cancels, books."""

from __future__ import annotations

import random

import pytest
import torch

from actors.engine.engine import build_engine, load_engine
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import ConfigError, InvalidRequest
from cluster.messages import FinishReason, Request, Sampling
from tests.engine.driving import (
    assignment,
    engine_of,
    random_prompt,
    request,
    run,
    tokens_of,
)
from tests.engine.families import VOCAB, greedy, logits, make

LOOSE = Sampling(temperature=1.2, top_p=0.95, seed=11)


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd() -> None:
    source = random.Random(0)
    wanted = request("r", random_prompt(source, 17), 30, LOOSE, choices=2)
    crowd = [
        request(f"c{i}", random_prompt(source, source.choice([2, 9, 33])), 25, LOOSE)
        for i in range(9)
    ]
    alone = run(engine_of("llama"), [wanted])
    among = run(engine_of("llama", max_batch_tokens=24), [*crowd[:4], wanted, *crowd[4:]], source)
    for choice in (0, 1):
        assert tokens_of(among, "r", choice) == tokens_of(alone, "r", choice)
    assert tokens_of(alone, "r", 0) != tokens_of(alone, "r", 1)


def test_a_seed_gives_the_same_tokens_when_preempted() -> None:
    source = random.Random(1)
    wanted = [request(f"r{i}", random_prompt(source, 14), 20, LOOSE) for i in range(4)]
    small = engine_of("llama", num_blocks=14, prefix_caching=False)
    crowded = run(small, wanted)
    assert small.stats().preemptions > 0
    for one in wanted:
        alone = run(engine_of("llama"), [one])
        assert tokens_of(crowded, one.request_id) == tokens_of(alone, one.request_id)


def test_logprobs_are_the_log_softmax_of_transformers_logits() -> None:
    prompt = random_prompt(random.Random(2), 12)
    sampling = Sampling(temperature=0.0, logprobs=4)
    output = run(engine_of("llama"), [request("r", prompt, 8, sampling)])
    tokens = tokens_of(output, "r")
    expected = logits("llama", prompt + tokens).log_softmax(-1)[len(prompt) - 1 :]
    given = [one for delta in output["r", 0] for one in delta.logprobs]
    assert [one.token for one in given] == tokens
    for row, one in zip(expected, given, strict=False):
        assert one.logprob == pytest.approx(float(row[one.token]), abs=1e-3)
        assert [token for token, _ in one.top] == row.topk(4).indices.tolist()


@pytest.mark.parametrize("max_batch_tokens", [64, 5])
def test_the_prompt_is_scored_whole_or_in_chunks(max_batch_tokens: int) -> None:
    prompt = random_prompt(random.Random(3), 21)
    sampling = Sampling(temperature=0.0, prompt_logprobs=2)
    engine = engine_of("gemma2", max_batch_tokens=max_batch_tokens)
    output = run(engine, [request("r", prompt, 3, sampling)])
    expected = logits("gemma2", prompt).log_softmax(-1)
    nothing, *scores = output["r", 0][0].prompt_logprobs
    assert nothing is None
    assert [one.token for one in scores if one] == prompt[1:]
    for row, one in zip(expected, scores, strict=False):
        assert one is not None
        assert one.logprob == pytest.approx(float(row[one.token]), abs=1e-3)
        assert [token for token, _ in one.top] == row.topk(2).indices.tolist()


def test_a_stop_id_ends_the_output_and_is_part_of_it() -> None:
    prompt = random_prompt(random.Random(4), 12)
    whole = greedy("llama", prompt, 12)
    output = run(engine_of("llama"), [request("r", prompt, 12, stop_token_ids=(whole[5],))])
    assert tokens_of(output, "r") == whole[: whole.index(whole[5]) + 1]
    assert output["r", 0][-1].finish is FinishReason.STOP


def test_a_cancelled_request_frees_its_pages_at_once() -> None:
    engine = engine_of("llama", prefix_caching=False)
    engine.admit(assignment(request("r", random_prompt(random.Random(5), 30), 50)))
    engine.step()
    assert engine.stats().used_pages > 0
    engine.cancel("r")
    assert engine.stats().used_pages == 0
    assert not engine.has_work
    assert engine.step() == ()
    engine.verify()


@pytest.mark.parametrize(
    ("param", "wanted"),
    [
        ("prompt", request("r", [5, VOCAB])),
        ("prompt", request("r", [-1, 5])),
        ("logit_bias", request("r", [5], sampling=Sampling(logit_bias=((VOCAB, 1.0),)))),
    ],
)
def test_a_token_the_model_does_not_have_is_refused(param: str, wanted: Request) -> None:
    engine = engine_of("llama")
    with pytest.raises(InvalidRequest, match="from 0 to 299") as refusal:
        engine.admit(assignment(wanted))
    assert refusal.value.param == param
    assert not engine.has_work


def test_an_engine_is_loaded_from_a_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    make("llama").save_pretrained(folder)
    prompt = random_prompt(random.Random(6), 9)
    config = ModelConfig(cache=CacheConfig(memory_gib=0.01), batching=BatchingConfig())
    engine = load_engine(folder, config, torch.device("cpu"))
    assert engine.capacity.max_model_len == 256
    assert tokens_of(run(engine, [request("r", prompt)]), "r") == greedy("llama", prompt, 12)


def test_a_context_longer_than_the_model_s_is_refused() -> None:
    with pytest.raises(ConfigError, match="257 exceeds the model's positions, 256"):
        engine_of("llama", max_model_len=257)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precisions_pass_the_same_proof(dtype: torch.dtype) -> None:
    for family in ("llama", "gemma2", "gemma3", "gpt2"):
        build_engine(make(family).to(dtype), ModelConfig(cache=CacheConfig(num_blocks=64)))
