"""Which models can be served exactly: found out by asking the model, not by a list of names.

Three questions, in order of cost, each ending in UnsupportedModel with the reason:

1. What the configuration declares: an encoder, layers other than full or sliding attention, rotary
   frequencies that depend on the longest sequence in the batch.
2. What its layers ask of attention (`declare_layers`): one forward pass under an attention function
   that only writes down its arguments. Whatever it would not honour (sinks, a position bias, a
   mask that is not causal or whose window the layer does not pass on) is refused by name.
3. What comes out (`exactness`): the model's own logits against ours.

So a family nobody has heard of is served if it is plain, and refused if not; never served wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from actors.engine.kv_cache import LayerShape
from cluster.errors import UnsupportedModel

DECLARE = "shoal_declare"
"""The name under which transformers finds the attention function that only takes notes."""

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})

HONOURED = frozenset({"scaling", "sliding_window", "softcap"})
IRRELEVANT = frozenset(
    {"dropout", "is_causal", "position_ids", "use_cache"}
    | {"output_attentions", "output_router_logits"}
)
"""Keyword arguments without effect here: no training, and causality is checked by itself."""


def family_name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} ({model.config.model_type})"


def refuse(model: PreTrainedModel, why: str) -> NoReturn:
    """Raise UnsupportedModel with the family's name."""
    raise UnsupportedModel(f"{family_name(model)} cannot be served exactly: {why}")


def longest_exact(model: PreTrainedModel) -> int | None:
    """Tokens up to which the model's rotary frequencies do not change; None where they never do.

    Dynamic NTK and longrope pick frequencies by the longest sequence of the batch. Beyond that
    length the answer would depend on the company a sequence keeps, and on keys computed earlier.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else [r for r in rope.values() if isinstance(r, Mapping)]
    limits = [
        int(kind.get("original_max_position_embeddings") or config.max_position_embeddings)
        for kind in kinds
        if kind.get("rope_type") in LENGTH_DEPENDENT_ROPE
    ]
    return min(limits, default=None)


def check_family(model: PreTrainedModel) -> dict[int, LayerShape]:
    """Ask questions 1 and 2 of `model`, in eval mode. Returns what each layer keeps, by its index.

    Raises UnsupportedModel.
    """
    _check_configuration(model)
    return declare_layers(model)


def _check_configuration(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        refuse(model, "it has an encoder")
    kinds = set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS
    if kinds:
        refuse(model, f"it has layers of the kind {', '.join(sorted(kinds))}")
    if not (model._supports_attention_backend and model._can_set_attn_implementation()):
        refuse(model, "its attention cannot be replaced through transformers' attention interface")
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        refuse(model, "it does not take `logits_to_keep`")


class _Notes:
    """What the layers of one forward pass asked of their attention."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}
        self.objections: list[str] = []


class _DeclaredMask:
    """Stands in for the mask tensor: the rule by which the model would have filled it."""

    def __init__(self, rule: MaskFunction) -> None:
        self.rule = rule


def declare_layers(model: PreTrainedModel) -> dict[int, LayerShape]:
    """Let every layer say what it asks of attention.

    Raises UnsupportedModel where one asks for what `paged_attention` does not do, or is silent.
    """
    notes = _Notes()
    model.set_attn_implementation(DECLARE)
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    positions = torch.arange(2, device=model.device)[None]
    try:
        with torch.inference_mode():
            model(input_ids=tokens, position_ids=positions, use_cache=False, layers_seen=notes)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        notes.objections.append(f"{type(error).__name__} in its forward pass: {error}")
    for objection in notes.objections:
        refuse(model, objection)
    _check_all_attend(model, notes)
    return notes.layers


def _check_all_attend(model: PreTrainedModel, notes: _Notes) -> None:
    expected = model.config.get_text_config().num_hidden_layers
    if sorted(notes.layers) != list(range(expected)):
        refuse(
            model,
            f"of its {expected} layers, those that pass their arguments to the attention interface"
            f" are {sorted(notes.layers)}; a layer with other state (recurrent, convolutional,"
            " shared) cannot be paged",
        )


def _declare_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    *,
    layers_seen: _Notes | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """An attention function that computes nothing: notes for `layers_seen`, zeros for the model."""
    if layers_seen is not None:
        layer: Any = module.layer_idx
        if layer in layers_seen.layers:
            layers_seen.objections.append(f"layer {layer} attends more than once")
        layers_seen.layers[layer] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        layers_seen.objections += _objections(module, attention_mask, asked)
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None


def _objections(module: nn.Module, mask: object, asked: Mapping[str, Any]) -> list[str]:
    """Why `paged_attention` would not do what one layer asks for."""
    unknown = {name for name, value in asked.items() if value is not None}
    found = [
        f"its attention is given `{name}`, which Shoal does not know"
        for name in sorted(unknown - HONOURED - IRRELEVANT)
    ]
    if asked.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        found.append("its attention is not causal")
    if not isinstance(mask, _DeclaredMask):
        found.append("it makes its own attention mask")
    elif not _is_plain(mask.rule, asked.get("sliding_window")):
        found.append("its mask is not the causal one of the window that its layers declare")
    return found


def _is_plain(rule: MaskFunction, window: int | None) -> bool:
    """Whether `rule` says "no later key, and none from beyond the window", at telling places."""
    reach = window or 4096
    queries = torch.tensor([0, 1, reach - 1, reach, reach + 1, 2 * reach, 3 * reach + 1])[:, None]
    offsets = torch.tensor([-1, 0, 1, reach - 1, reach, reach + 1])[None]
    keys = (queries - offsets).clamp(min=0)
    expected = keys <= queries
    if window is not None:
        expected = expected & (keys > queries - window)
    zero = torch.zeros((), dtype=torch.int64)
    return bool((torch.as_tensor(rule(zero, zero, queries, keys)) == expected).all())


def _declare_mask(*, mask_function: MaskFunction, **_: Any) -> _DeclaredMask:
    return _DeclaredMask(mask_function)


AttentionInterface.register(DECLARE, _declare_attention)
AttentionMaskInterface.register(DECLARE, _declare_mask)
