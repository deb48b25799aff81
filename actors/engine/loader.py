"""Load a model folder into memory: checked, in one precision, on one device, ready to infer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from actors.engine.float8 import ADA, is_narrow, narrow
from actors.engine.quantized import is_quantized, quantize
from actors.engine.varlen import AMPERE
from cluster.errors import ModelUnavailable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

INT8, FP8 = "int8", "fp8"

EIGHT_BITS = {INT8: quantize, FP8: narrow}
"""What makes a model of the precision of linear layers; all else of it is `EIGHT_BITS_WITH`."""

EIGHT_BITS_WITH = torch.bfloat16


def load_model(
    folder: Path, dtype: str, device: torch.device, attn_implementation: str
) -> PreTrainedModel:
    """The model of `folder` on `device`, in eval mode, no parameter asking for a gradient.

    `dtype` is a key of DTYPES or EIGHT_BITS, or `auto` for the precision the weights are saved in.
    Weights are mapped from the file and cast one tensor at a time, so memory peaks at the model's
    own size plus one tensor, before eight bits make it smaller. Raises ModelUnavailable for a
    folder that holds no complete causal language model, and for a precision the device cannot
    compute in.
    """
    config = read_config(folder)
    precision = resolve_dtype(dtype, config, device)
    model = read_weights(folder, config, precision, attn_implementation, device_map={"": device})
    if dtype in EIGHT_BITS:
        EIGHT_BITS[dtype](model)
    return model


def read_weights(
    folder: Path, config: Any, precision: torch.dtype, attn_implementation: str, **where: Any
) -> PreTrainedModel:
    """The model that `config` describes, from the weights of `folder`; `where` is transformers'.

    Raises ModelUnavailable where the weights do not fill it.
    """
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=precision,
            attn_implementation=attn_implementation,
            **where,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused below by name
        )
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(f"the weights in {folder} cannot be read: {error}") from error
    _refuse_holes(folder, report)
    loaded: PreTrainedModel = model.eval().requires_grad_(False)
    return loaded


def read_config(folder: Path) -> Any:
    """The transformers configuration of a causal language model, unquantized.

    Raises ModelUnavailable if `folder` has none, or describes another kind of model.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{folder} cannot be loaded by its config.json: {error}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelUnavailable(
            f"{folder} holds a {config.model_type!r} model, which does not generate text from text:"
            " a causal language model is needed"
        )
    if quantization := getattr(config, "quantization_config", None):
        raise ModelUnavailable(
            f"the weights in {folder} are quantized ({_method(quantization)}), which cannot be"
            f" served: give the model in {', '.join(DTYPES)}, or as a GGUF file"
        )
    return config


def supported_dtypes(device: torch.device) -> list[str]:
    """The keys of DTYPES and EIGHT_BITS that `device` computes in natively."""
    if device.type == "cpu":
        return [*DTYPES, INT8]
    if device.type != "cuda":
        return []
    return cuda_dtypes(torch.cuda.get_device_capability(device))


def cuda_dtypes(capability: tuple[int, int]) -> list[str]:
    """The same of a GPU of that compute capability."""
    least = {"bfloat16": AMPERE, FP8: ADA}
    names = (*DTYPES, FP8)
    return [name for name in names if capability >= least.get(name, capability)]


def resolve_dtype(dtype: str, config: Any, device: torch.device) -> torch.dtype:
    """The precision to load in; raises ModelUnavailable if `device` does not support it."""
    as_saved = dtype == "auto"
    wanted = dtype_name(config.dtype or torch.float32) if as_saved else dtype
    allowed = supported_dtypes(device)
    if wanted not in allowed or (as_saved and wanted in EIGHT_BITS):  # without their scales
        known = [name for name in allowed if name != wanted]
        works = ", ".join(known) or "nothing; use a cpu or cuda device"
        origin = " (as saved)" if as_saved else ""
        raise ModelUnavailable(
            f"dtype {wanted}{origin} is not supported on {device}; works: {works}"
        )
    return EIGHT_BITS_WITH if wanted in EIGHT_BITS else DTYPES[wanted]


def precision_name(model: PreTrainedModel) -> str:
    """What `load_model` was asked for to get this model, `auto` resolved."""
    if is_quantized(model):
        return INT8
    return FP8 if is_narrow(model) else dtype_name(model.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """As the configuration writes it, where it is one of DTYPES."""
    return str(dtype).removeprefix("torch.")


def _method(quantization: Any) -> str:
    if isinstance(quantization, dict):
        return str(quantization.get("quant_method", "unknown"))
    return str(quantization.quant_method)


def _refuse_holes(folder: Path, report: Any) -> None:
    """transformers fills what the file lacks with random numbers and only warns."""
    missing = sorted(report["missing_keys"])
    mismatched = sorted(str(entry[0]) for entry in report["mismatched_keys"])
    if missing or mismatched:
        raise ModelUnavailable(
            f"the weights in {folder} do not fit its config.json:"
            f" missing {missing[:4]} ({len(missing)}),"
            f" of another shape {mismatched[:4]} ({len(mismatched)})"
        )
