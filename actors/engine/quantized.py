"""Weights in eight bits: what a model reads at every step becomes half as long.

A decode step takes as long as reading the weights does, so it is the weights that are made small.
Activations, keys, values and the embedding stay as they are: rounding those as well would buy
little more speed and cost accuracy (docs/decisions/0012-int8-weights.md).

The model stays transformers' own, but for its linear layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from cluster.config import DETERMINISTIC_ROWS
from cluster.errors import UnsupportedModel

LARGEST = 127
"""Of an eight-bit weight, by its absolute value: so that zero is in the middle."""

ROUNDING = 1
"""Counts the ways in which weights were rounded so far. Programs that are kept hold them, and are
made anew where it is another: raise it with every change of what `quantize` makes of a weight."""

STRIDE = 16
"""torch's product reads so many inputs at once, and does not look where the last one is."""

FEW_ROWS = DETERMINISTIC_ROWS
"""Up to so many, torch's product of int8 weights is faster than to make them whole first: measured,
the two meet at some thirty rows. It rounds a row the same whatever stands beside it."""


class Int8Linear(nn.Module):
    """A linear layer whose weight from input `i` to output `o` is an integer times `scale[o]`.

    `scale` has the precision of the activations, as torch's product wants it. No accuracy is lost
    by that: the weights are rounded to multiples of the scale that is kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Round `weight`, `[outputs, inputs]`, of the precision of the activations."""
        super().__init__()
        steps = weight.float()
        largest = steps.abs().amax(dim=1)
        scale = (largest / LARGEST).to(weight.dtype)
        scale[scale == 0] = 1  # of a row of zeros
        steps = steps.div(scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
        self.out_features, self.in_features = weight.shape
        # In one line: a compiler keeps what it makes of a constant, which a view of it is, and lets
        # the constant go. Of what it is given as it stands, a program would hold a second copy.
        self.weight = nn.Parameter(steps.to(torch.int8).flatten(), requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, self.in_features).contiguous()
        product = self._multiply(rows).view(*inputs.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias

    def _multiply(self, rows: Tensor) -> Tensor:
        """A compiler makes of the first way a product that is good for any number of rows."""
        weight = self.weight.view(self.out_features, self.in_features)
        if torch.compiler.is_compiling() or len(rows) <= FEW_ROWS:
            return torch._weight_int8pack_mm(rows, weight, self.scale)
        return F.linear(rows, weight.to(rows.dtype)) * self.scale


def quantize(model: PreTrainedModel) -> None:
    """Make every linear layer of `model` an `Int8Linear`, one at a time, the output head too.

    An embedding tied to that head stays as it is and no longer shares its memory. Weights that are
    no layer's (the experts of a mixture) are left alone. Raises UnsupportedModel if nothing is
    left to be made smaller.
    """
    replace_linears(model, "int8", Int8Linear, _fits)


def replace_linears(
    model: PreTrainedModel,
    dtype: str,
    made: Callable[[Tensor, Tensor | None], nn.Module],
    fits: Callable[[Tensor], bool],
) -> None:
    """Put what is `made` of its weight, `[outputs, inputs]`, and bias in place of each linear layer
    whose weight fits. Raises UnsupportedModel, naming the `dtype`, where none does."""
    names = list(_linears(model, fits))
    if not names:
        raise UnsupportedModel(
            f"{type(model).__name__} ({model.config.model_type}) has no linear layers that {dtype}"
            " weights could replace: use another dtype"
        )
    for name in names:
        layer: Any = model.get_submodule(name)
        model.set_submodule(name, made(_oriented(layer), layer.bias))


def is_quantized(model: PreTrainedModel) -> bool:
    return any(isinstance(module, Int8Linear) for module in model.modules())


def _fits(weight: Tensor) -> bool:
    return weight.shape[1] % STRIDE == 0


def _linears(model: PreTrainedModel, fits: Callable[[Tensor], bool]) -> Iterator[str]:
    """Names, not modules: who holds a module keeps its weight in memory.

    A class derived from a layer may do anything with it, so it is left alone.
    """
    for name, module in model.named_modules():
        if type(module) in (nn.Linear, Conv1D) and fits(_oriented(module)):
            yield name


def _oriented(module: Any) -> Tensor:
    """The weight as `[outputs, inputs]`; GPT-2's layers keep theirs the other way round."""
    weight: Tensor = module.weight
    return weight.t() if isinstance(module, Conv1D) else weight
