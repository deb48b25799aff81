"""A compiled program computes what the model does, and takes its place between two steps."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from filelock import FileLock
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from actors.children import python_path
from actors.engine import compiled as compiled_steps
from actors.engine import inductor, products
from actors.engine.batch import build_batch
from actors.engine.compiled import Wish, load_program, program_wish
from actors.engine.compiling import compile_model
from actors.engine.engine import build_engine
from actors.engine.families import check_family
from actors.engine.kv_cache import KVCache
from actors.engine.quantized import quantize
from actors.engine.runner import Forward, ModelRunner
from cluster.config import CacheConfig, ModelConfig
from cluster.steps import Chunk, Sequence, StepPlan
from tests.actors.living import is_gone
from tests.engine.driving import assignment, engine_of, random_prompt, request, run, tokens_of
from tests.engine.families import FAMILIES, SHAPE, greedy, make

QUICK = ("gemma2",)
"""Compiled in every run, which takes half a minute: it has windows, soft-capping and four norms.
`-m exhaustive` compiles the others."""

Compiled = tuple[str, Forward]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(family, marks=() if family in QUICK else pytest.mark.exhaustive)
        for family in FAMILIES
    ],
)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A family, and the program made of its tiny model."""
    family: str = request.param
    path = tmp_path_factory.mktemp("programs") / family
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(elsewhere))
        patch.setenv("TMPDIR", str(elsewhere))
        compile_model(make(family), path)
        program = load_program(path)
    assert not list(elsewhere.iterdir()), "files were left where nobody sweeps"
    assert list(path.parent.iterdir()) == [path]
    return family, program


def test_its_greedy_output_is_the_models_own(compiled: Compiled) -> None:
    family, program = compiled
    source = random.Random(1)
    prompts = {f"r{i}": random_prompt(source, source.choice([1, 2, 7, 19, 40])) for i in range(7)}
    engine = engine_of(family, num_blocks=40, max_batch_tokens=16)
    engine.adopt(program)
    assert engine.stats().compiled
    output = run(engine, [request(n, p) for n, p in prompts.items()], source)
    for name, prompt in prompts.items():
        assert tokens_of(output, name) == greedy(family, prompt, 12)


def test_a_request_under_way_does_not_notice_the_change(compiled: Compiled) -> None:
    family, program = compiled
    prompt = random_prompt(random.Random(2), 21)
    engine = engine_of(family)
    engine.admit(assignment(request("r", prompt)))
    before = [token for _ in range(5) for delta in engine.step() for token in delta.tokens]
    engine.adopt(program)
    after = tokens_of(run(engine, []), "r")
    assert before + after == greedy(family, prompt, 12)


def test_in_bfloat16_it_is_as_near_to_float32_as_the_model_itself(tmp_path: Path) -> None:
    path = tmp_path / "program"
    model = make("qwen2").to(torch.bfloat16)
    compile_model(make("qwen2").to(torch.bfloat16), path)
    exact = _logits(make("qwen2"))
    own, compiled = (
        (_logits(model, program) - exact).square().mean().sqrt()
        for program in (None, load_program(path))
    )
    assert 0 < compiled < 1.2 * own
    if inductor.multiplies_in_vectors():
        assert products.PAIRS.name in _source(path)


def _source(program: Path) -> str:
    return "".join(file.read_text() for file in program.rglob("*.kernel.cpp"))


def test_a_program_of_int8_weights_is_taken_into_use_and_as_near_as_the_layers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "program"
    compile_model(_int8("qwen2"), path)
    program = load_program(path)
    engine = build_engine(_int8("qwen2"), ModelConfig(cache=CacheConfig(num_blocks=64)))
    engine.adopt(program)
    assert engine.stats().compiled
    exact = _logits(_int8("qwen2").to(torch.float32))  # the same integers, times the same scales
    own, compiled = (
        (_logits(_int8("qwen2"), way) - exact).square().mean().sqrt() for way in (None, program)
    )
    assert 0 < compiled < 1.2 * own


def _int8(family: str) -> PreTrainedModel:
    model = make(family).to(torch.bfloat16)
    quantize(model)
    return model


def _logits(model: PreTrainedModel, program: Forward | None = None) -> Tensor:
    """Of a prompt of 60 tokens, `[60, vocab]`."""
    cache = KVCache(check_family(model), 16, 4, model.dtype, model.device)
    runner = ModelRunner(model, cache)
    if program is not None:
        runner.use(program)
    prompt = random_prompt(random.Random(5), 60)
    sequence = Sequence(request("r", prompt), 0, list(prompt), blocks=list(range(15)))
    batch = build_batch(StepPlan((Chunk(sequence, 0, 60, samples=False),)), cache)
    return runner.logits(batch, range(60))


def test_a_program_of_another_model_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    def zeros(tokens: Tensor, positions: Tensor, kept: Tensor, step: Tensor) -> Tensor:
        return torch.zeros(len(kept), 300)

    engine = engine_of("llama")
    engine.adopt(zeros)
    assert not engine.stats().compiled
    assert "without the compiled program" in caplog.text
    prompt = random_prompt(random.Random(3), 9)
    assert tokens_of(run(engine, [request("r", prompt)]), "r") == greedy("llama", prompt, 12)


def test_what_cannot_be_compiled_is_served_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wish = Wish(tmp_path / "no-model-here", "float32", tmp_path / "programs" / "program")
    assert wish.fulfil() is None
    assert "could not be compiled" in caplog.text
    assert [file.name for file in (tmp_path / "programs").iterdir()] == ["program.lock"]


def test_a_shard_that_is_killed_while_its_model_compiles_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = tmp_path / "program"
    wish = f"Wish(Path('no-model-here'), 'float32', Path({str(path)!r}))"
    code = f"from actors.engine.compiled import *; {wish}.fulfil()"
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": python_path()}
    with FileLock(f"{path}.lock"):  # so that the compiler waits
        with subprocess.Popen([sys.executable, "-c", code], env=environment) as shard:
            while not (compilers := psutil.Process(shard.pid).children()):
                assert shard.poll() is None
                time.sleep(0.05)
            shard.kill()
        assert not list(temporary.iterdir())
    for compiler in compilers:
        while not is_gone(compiler.pid):
            time.sleep(0.05)


def test_a_broken_program_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "program"
    path.mkdir()
    (path / "half").write_bytes(b"of a file")
    assert Wish(tmp_path, "float32", path).fulfil() is None
    assert "cannot be loaded" in caplog.text
    assert not path.exists()


def test_a_tiny_model_is_not_worth_a_compiler(tmp_path: Path) -> None:
    assert program_wish(tmp_path, make("llama"), tmp_path) is None


def test_the_program_of_another_precision_is_another_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    shape = {**SHAPE, "vocab_size": 2**17, "hidden_size": 128}
    model = LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16)
    wishes = [program_wish(tmp_path, model, tmp_path)]
    quantize(model)
    wishes.append(program_wish(tmp_path, model, tmp_path))
    assert [wish and wish.dtype for wish in wishes] == ["bfloat16", "int8"]
    assert len({wish and wish.path for wish in wishes}) == 2


def test_weights_that_are_rounded_otherwise_are_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").touch()
    names = set()
    for rounding in (1, 2):
        monkeypatch.setattr(compiled_steps, "ROUNDING", rounding)
        names.add(compiled_steps._program_path(tmp_path, "int8", tmp_path))
    assert len(names) == 2


def test_a_program_that_cannot_run_here_is_left_alone() -> None:
    def broken(tokens: Tensor, positions: Tensor, kept: Tensor, step: Tensor) -> Tensor:
        raise RuntimeError("no such instruction")

    engine = engine_of("llama")
    engine.adopt(broken)
    prompt = random_prompt(random.Random(4), 9)
    assert tokens_of(run(engine, [request("r", prompt)]), "r") == greedy("llama", prompt, 12)


def test_the_compiler_still_says_how_parts_of_products_are_shared_out(tmp_path: Path) -> None:
    """In its templates, which are no interface: where they change, ours is to follow."""
    script = (
        "import sys; from pathlib import Path; from importlib import import_module\n"
        "from actors.engine import inductor; inductor.prepare(Path(sys.argv[1]))\n"
        "for name in inductor.TEMPLATES:\n"
        "    text = import_module(f'torch._inductor.codegen.{name}').GEMM_TEMPLATE\n"
        "    assert 'schedule(dynamic, 1)' in text and 'schedule(static' not in text, name\n"
    )
    environment = os.environ | {"PYTHONPATH": python_path()}
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, env=environment)
