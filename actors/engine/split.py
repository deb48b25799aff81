"""A model split over the ranks of a gang, by the plan that transformers has for its family.

transformers cuts the weights, so that each rank reads its own part of the files alone. Computing is
ours: its hooks go through DTensor, whose dispatch is a tenth of a small step, and all that a plan
asks of a step is one of the few exchanges in `EXCHANGES`. A plan with any other rule is refused by
name, as is one that splits no attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from actors.engine.gang import Gang
from actors.engine.kv_cache import LayerShape
from cluster.errors import ConfigError, UnsupportedModel


def check_plan(config: Any, ranks: int) -> None:
    """Whether a model of this transformers configuration can be split, before weights are read.

    Raises ConfigError where `ranks` does not divide its heads, UnsupportedModel where transformers
    has no plan for the family.
    """
    heads = _heads(config)
    if not config.base_model_tp_plan:
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        _refuse(f"{kind.__name__} ({config.model_type})", "transformers has no plan for it")
    if heads % ranks:
        raise ConfigError(
            f"{ranks} ranks cannot share the model's {heads} heads of keys evenly",
            "models.tensor_parallel",
        )


def own_heads(
    model: PreTrainedModel, layers: Mapping[int, LayerShape], gang: Gang
) -> dict[int, LayerShape]:
    """What this rank keeps of each layer: its share of the heads.

    Where projections are joined again before attention (for a norm over all heads, or because they
    are one weight), every rank is handed all heads, and keeps its own if the product after
    attention takes no more. Raises UnsupportedModel where a rank would have to have them all.
    """
    share = _heads(model.config) // gang.ranks
    narrowing = _narrowing_layers(model)
    kept: dict[int, LayerShape] = {}
    for index, shape in layers.items():
        if shape.kv_heads == share:
            kept[index] = shape
        elif index in narrowing:
            kept[index] = replace(shape, kv_heads=share, first_head=gang.rank * share)
        else:
            _refuse(_name(model), f"its plan gives every rank all heads of layer {index}")
    return kept


def _narrowing_layers(model: PreTrainedModel) -> set[int]:
    """Whose attention ends in a product that takes, of all columns, those of its rank."""
    return {
        module.layer_idx
        for name, module in model.named_modules()
        for child, _ in module.named_children()
        if hasattr(module, "layer_idx") and _rule(model, f"{name}.{child}") == "rowwise_split_input"
    }


def compute_split(model: PreTrainedModel, gang: Gang) -> None:
    """Have `model`, whose weights transformers has split, compute its part and exchange the rest.

    Raises UnsupportedModel for a rule that is not known here.
    """
    shared: dict[int, nn.Parameter] = {}
    for name, module in model.named_modules():
        rule = _rule(model, name)
        if rule is not None:
            _exchange(model, module, rule, gang)
        for key, weight in module.named_parameters(recurse=False):
            if isinstance(weight, DTensor):
                local = shared.setdefault(id(weight), _local(weight))
                module.register_parameter(key, local)


def _exchange(model: PreTrainedModel, module: nn.Module, rule: str, gang: Gang) -> None:
    install = EXCHANGES.get(rule)
    if install is None:
        _refuse(_name(model), f"its plan has the rule {rule!r}")
    del module.forward  # transformers' wrapper; the class's own shows again
    install(module, gang)


def _local(weight: DTensor) -> nn.Parameter:
    return nn.Parameter(weight.to_local(), requires_grad=False)


def _nothing(_module: nn.Module, _gang: Gang) -> None:
    """Each rank computes columns of its own, from inputs that all have."""


def _join_columns(module: Any, gang: Gang) -> None:
    width: int = module.out_features
    module.register_forward_hook(lambda _module, _args, part: gang.join(part, width))


def _sum_output(module: nn.Module, gang: Gang) -> None:
    module.register_forward_hook(lambda _module, _args, part: gang.sum(part))


def _sum_products(module: Any, gang: Gang) -> None:
    """The product of each rank's columns with its rows; the bias once, not once a rank."""
    bias = module.bias if module.bias is None else _whole(module.bias)
    module.register_parameter("bias", None)

    def finish(_module: nn.Module, _args: Any, part: Tensor) -> Tensor:
        total = gang.sum(part)
        return total if bias is None else total + bias

    module.register_forward_hook(finish)


def _split_input(module: Any, gang: Gang) -> None:
    """As `_sum_products`, of an input that all ranks have whole."""
    mine = gang.columns(module.in_features)
    module.register_forward_pre_hook(lambda _module, args: (args[0][..., mine], *args[1:]))
    _sum_products(module, gang)


def _look_up(module: Any, gang: Gang) -> None:
    """Each rank has the vectors of some tokens, and adds nothing for the others."""
    mine = gang.columns(module.num_embeddings)
    inner = module.forward
    module.padding_idx = None  # of no use without training, and counted in the whole vocabulary

    def forward(tokens: Tensor) -> Tensor:
        known = (tokens >= mine.start) & (tokens < mine.stop)
        vectors: Tensor = inner(torch.where(known, tokens - mine.start, 0))
        return gang.sum(torch.where(known[..., None], vectors, 0.0))

    module.forward = forward


def _whole(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight.detach()


EXCHANGES: Mapping[str, Callable[[nn.Module, Gang], None]] = {
    "colwise": _nothing,
    "colwise_gather_output": _join_columns,
    "rowwise": _sum_products,
    "rowwise_split_input": _split_input,
    "embedding_rowwise": _look_up,
    "replicated_with_grad_allreduce": _nothing,
    "moe_tp_experts": _sum_output,
}
"""What each rule of a plan asks of a module's step. Rules of single weights ask for nothing."""


def _rule(model: PreTrainedModel, name: str) -> str | None:
    """What the plan says of a module."""
    rule: str | None = model.tp_plan.get(replace_layer_number_by_wildcard(name))
    return rule


def _heads(config: Any) -> int:
    """Heads of keys in a layer, by its configuration."""
    text = config.get_text_config()
    heads: int = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return heads


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} ({model.config.model_type})"


def _refuse(name: str, why: str) -> NoReturn:
    raise UnsupportedModel(f"{name} cannot be split over ranks: {why}")
