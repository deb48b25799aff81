"""Every layer that multiplies by weights is asked whether company changes what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actors.engine.rows import prove_rows
from cluster.errors import UnsupportedModel
from tests.engine.families import make


def of(family: str) -> PreTrainedModel:
    return make(family).bfloat16()


def by_number(forward: Callable[..., Any], largest: int) -> Callable[..., Any]:
    """Computes up to `largest` rows otherwise."""

    def changed(rows: Tensor, *more: Tensor) -> Any:
        return forward(rows * 1.5 if len(rows) <= largest else rows, *more)

    return changed


LINEAR, CONV1D = ("model.layers", "mlp.down_proj"), ("transformer.h", "mlp.c_fc")
EXPERTS, ROUTER = ("model.layers", "mlp.experts"), ("model.layers", "mlp.gate")


def last(model: Any, layers: str, name: str) -> nn.Module:
    """Of the last of a model's layers the part that is called so."""
    part: nn.Module = model.get_submodule(layers)[-1].get_submodule(name)
    return part


@pytest.mark.parametrize(
    ("family", "layer", "largest", "named"),
    [
        ("llama", LINEAR, 20, "Linear of 96"),
        ("gpt2", CONV1D, 20, "Conv1D of 64"),
        ("mixtral", EXPERTS, 1, "MixtralExperts"),
        ("mixtral", ROUTER, 20, "MixtralTopKRouter of 64"),
    ],
)
def test_a_layer_that_computes_few_rows_otherwise_is_refused_by_name(
    family: str, layer: tuple[str, str], largest: int, named: str
) -> None:
    model = of(family)
    asked: Any = last(model, *layer)
    asked.forward = by_number(asked.forward, largest)
    with pytest.raises(UnsupportedModel, match=f"rows of a product of {named} round otherwise"):
        prove_rows(model)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_is_in_the_company_of_sixteen_or_more_is_not_asked_about_fewer(family: str) -> None:
    model = of(family)
    asked: Any = last(model, *(LINEAR if family == "llama" else CONV1D))
    asked.forward = by_number(asked.forward, 15)
    prove_rows(model)


class Twisted(nn.Module):
    """Has weights, and takes what nobody thinks of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 64))

    def forward(self, rows: Tensor, twist: float) -> Tensor:
        return rows * twist


def test_a_layer_that_cannot_be_asked_is_refused_by_name() -> None:
    model: Any = of("llama")
    model.model.layers[0].mlp.twisted = Twisted()
    with pytest.raises(UnsupportedModel, match="its Twisted of 64 cannot be asked whether"):
        prove_rows(model)
