"""Linear layers in eight bits: weights are read in half the time, and multiplied in half of it.

Weights are rounded once, with a scale for each output; what goes into a layer is rounded as it
comes, with a scale for each row, after inputs that get large were made smaller. All else stays as
it is: keys, values, norms, the embedding (docs/decisions/0012-int8-weights.md).

The model stays transformers' own, but for its linear layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from actors.engine.calibration import largest_inputs
from cluster.errors import UnsupportedModel

LARGEST = 127
"""Of an eight-bit number, by its absolute value: so that zero is in the middle."""

MIDDLE = 128
"""What is added to a row's integers, since the compiler's products want them without a sign."""

LEAST_STEP = 1e-30
"""Of a row, as one of zeros has none."""

ROUNDING = 3
"""Counts the ways in which weights were rounded so far. Programs that are kept hold them, and are
made anew where it is another: raise it with every change of what `quantize` makes of a weight."""

IN_WORD = 4
"""Processors multiply so many integers at once: a layer's inputs are a multiple of it."""


class Int8Linear(nn.Module):
    """A linear layer whose weight from input `i` to output `o` is an integer times `scale[o]`.

    A row of inputs becomes integers times its own step, so the product is one of integers, exact
    and the same whatever rows are beside it, and both scales are applied to it in float32. Before,
    inputs are multiplied by `share`, and weights were divided by it: powers of two, so that this
    rounds nothing.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, largest: Tensor | None = None) -> None:
        """Round `weight`, `[outputs, inputs]`, of the precision of the activations; `largest` are
        the inputs as large as they get, by absolute value."""
        super().__init__()
        exact = weight.detach().float()
        share = torch.ones(weight.shape[1]) if largest is None else _share(exact, largest)
        integers, scale = _rounded(exact / share)
        self.out_features, self.in_features = weight.shape
        # In one line: a compiler keeps what it makes of a constant, which a view of it is, and lets
        # the constant go. Of what it is given as it stands, a program would hold a second copy.
        self.weight = nn.Parameter(integers.to(torch.int8).flatten(), requires_grad=False)
        self.scale = nn.Parameter(scale.flatten(), requires_grad=False)
        self.share = nn.Parameter(share, requires_grad=False)
        self.register_buffer("zero", torch.zeros(self.out_features, dtype=torch.int32), False)
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        integers, step = _rounded(inputs.reshape(-1, self.in_features).float() * self.share)
        product = self._multiply(integers) * step
        product = product.to(inputs.dtype).view(*inputs.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias

    def _multiply(self, integers: Tensor) -> Tensor:
        """Of `integers`, `[rows, inputs]` in float32, the product in float32, scaled by outputs."""
        weight = self.weight.view(self.out_features, self.in_features)
        if torch.compiler.is_compiling():
            return self._compiled_product(integers, weight)
        return torch._int_mm(integers.to(torch.int8), weight.t()).float() * self.scale

    def _compiled_product(self, integers: Tensor, weight: Tensor) -> Tensor:
        """In the form of which the compiler makes a product of its own, where all is constant."""
        library = torch.ops.onednn
        product: Tensor = library.qlinear_pointwise(
            (integers + MIDDLE).to(torch.uint8),
            1.0,
            MIDDLE,
            library.qlinear_prepack(weight, None),
            self.scale,
            self.zero,
            bias=None,
            output_scale=1.0,
            output_zero_point=0,
            output_dtype=torch.float32,
            post_op_name="none",
            post_op_args=[],
            post_op_algorithm="",
        )
        return product


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 `rows` as integers, and the step of each row that they count, `[rows, 1]`."""
    step = (rows.abs().amax(dim=1, keepdim=True) / LARGEST).clamp_min(LEAST_STEP)
    return (rows / step).round(), step


def _share(weight: Tensor, largest: Tensor) -> Tensor:
    """What makes inputs and weights equally uneven: the root of how their largest ones compare."""
    of_weights = weight.abs().amax(dim=0)
    share = torch.exp2((of_weights / largest).sqrt().log2().round())
    return torch.where(share.isfinite() & (share > 0), share, 1.0)  # of inputs that are always zero


def _packed(weight: Tensor, _shape: object) -> Tensor:
    """What an exporter takes packed weights for. torch says it of the operators beside this."""
    return weight.new_empty(weight.shape[1], weight.shape[0])


torch.library.register_fake("onednn::qlinear_prepack", _packed)


def quantize(model: PreTrainedModel) -> None:
    """Make every linear layer of `model` an `Int8Linear`, one at a time, the output head too.

    An embedding tied to that head stays as it is and no longer shares its memory. Weights that are
    no layer's (the experts of a mixture) are left alone. Raises UnsupportedModel if nothing is
    left to be made smaller.
    """
    largest = largest_inputs(model, list(_linears(model, _fits)))
    replace_linears(
        model,
        "int8",
        lambda name, weight, bias: Int8Linear(weight, bias, largest.get(name)),
        _fits,
    )


def replace_linears(
    model: PreTrainedModel,
    dtype: str,
    made: Callable[[str, Tensor, Tensor | None], nn.Module],
    fits: Callable[[Tensor], bool],
) -> None:
    """Put what is `made` of its name, weight, `[outputs, inputs]`, and bias in place of each linear
    layer whose weight fits. Raises UnsupportedModel, naming the `dtype`, where none does."""
    names = list(_linears(model, fits))
    if not names:
        raise UnsupportedModel(
            f"{type(model).__name__} ({model.config.model_type}) has no linear layers that {dtype}"
            " weights could replace: use another dtype"
        )
    for name in names:
        layer: Any = model.get_submodule(name)
        model.set_submodule(name, made(name, _oriented(layer), layer.bias))


def is_quantized(model: PreTrainedModel) -> bool:
    return any(isinstance(module, Int8Linear) for module in model.modules())


def _fits(weight: Tensor) -> bool:
    return weight.shape[1] % IN_WORD == 0


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
