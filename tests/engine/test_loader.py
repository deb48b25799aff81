"""A model folder is loaded whole, in the precision asked for, or refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config

from actors.engine.loader import load_model, precision_name, supported_dtypes
from cluster.errors import ModelUnavailable

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    folder = tmp_path_factory.mktemp("saved")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def rewrite_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def refusal(folder: Path, dtype: str = "auto", device: torch.device = CPU) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        load_model(folder, dtype, device, "sdpa")
    return caught.value.message


def test_auto_keeps_the_precision_the_weights_are_saved_in(saved: Path) -> None:
    assert load_model(saved, "auto", CPU, "sdpa").dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_precision_asked_for_is_the_one_of_every_parameter(saved: Path, dtype: str) -> None:
    model = load_model(saved, dtype, CPU, "sdpa")
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}


def test_int8_are_the_weights_of_linear_layers_and_bfloat16_is_all_else(saved: Path) -> None:
    model = load_model(saved, "int8", CPU, "sdpa")
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    linear = {name for name in kinds if name.endswith(("_proj.weight", "lm_head.weight"))}
    assert len(linear) == 2 * 7 + 1
    assert {kinds.pop(name) for name in linear} == {torch.int8}
    scales = {name for name in kinds if name.endswith((".scale", ".share"))}
    assert {kinds.pop(name) for name in scales} == {torch.float32}
    assert set(kinds.values()) == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_loaded_model_tells_its_precision(saved: Path, dtype: str) -> None:
    assert precision_name(load_model(saved, dtype, CPU, "sdpa")) == dtype


@pytest.mark.parametrize("dtype", ["auto", "float32", "int8"])
def test_a_loaded_model_only_infers(saved: Path, dtype: str) -> None:
    model = load_model(saved, dtype, CPU, "sdpa")
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_attention_implementation_is_the_one_asked_for(saved: Path) -> None:
    model = load_model(saved, "auto", CPU, "eager")
    assert model.config._attn_implementation == "eager"


def test_the_weights_are_those_in_the_file(saved: Path) -> None:
    ours = load_model(saved, "float32", CPU, "sdpa").state_dict()
    theirs = LlamaForCausalLM.from_pretrained(saved, dtype=torch.float32).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_unsupported_precision_is_refused_with_those_that_work(saved: Path) -> None:
    assert "float8 is not supported on cpu; works: float32, bfloat16, float16, int8" in refusal(
        saved, "float8"
    )


def test_a_precision_as_saved_is_refused_like_one_asked_for(folder: Path) -> None:
    rewrite_config(folder, dtype="float64")
    assert "float64 (as saved) is not supported on cpu" in refusal(folder)


def test_integers_as_saved_have_lost_their_scales_and_are_refused(folder: Path) -> None:
    rewrite_config(folder, dtype="int8")
    known = "works: float32, bfloat16, float16"
    refused = refusal(folder)
    assert f"int8 (as saved) is not supported on cpu; {known}" in refused
    assert f"{known}, int8" not in refused


def test_a_device_that_is_not_served_has_no_precision(saved: Path) -> None:
    assert supported_dtypes(torch.device("mps")) == []
    assert "use a cpu or cuda device" in refusal(saved, device=torch.device("mps"))


def test_a_folder_without_configuration_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "cannot be loaded by its config.json" in refusal(folder)


@pytest.mark.parametrize("written", ["{", '{"model_type": "never-heard-of"}'])
def test_a_configuration_that_says_nothing_is_refused(folder: Path, written: str) -> None:
    (folder / "config.json").write_text(written)
    assert "cannot be loaded by its config.json" in refusal(folder)


def test_a_model_that_is_not_a_causal_one_is_refused(folder: Path) -> None:
    T5Config().save_pretrained(folder)
    assert "'t5' model, which does not generate" in refusal(folder)


def test_quantized_weights_are_refused_by_their_method(folder: Path) -> None:
    rewrite_config(folder, quantization_config={"quant_method": "awq", "bits": 4})
    assert "quantized (awq)" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 4, 1000])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert "cannot be read" in refusal(folder)


def test_absent_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "cannot be read" in refusal(folder)


def test_a_layer_that_the_file_lacks_is_refused_not_made_up(folder: Path) -> None:
    rewrite_config(folder, num_hidden_layers=3)
    assert "missing ['model.layers.2.input_layernorm.weight'" in refusal(folder)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    rewrite_config(folder, intermediate_size=48)
    assert "of another shape ['model.layers.0.mlp.down_proj.weight'" in refusal(folder)
