"""Weights and activations as eight-bit floats, where a GPU multiplies them faster than longer ones.

A row of a weight has one scale, an activation's row one that is found as it comes: the largest
number becomes the largest of the format (E4M3), and sums are of float32. What a row comes out as
depends on no other row. Keys, values, norms, the embedding and the output head stay as they are:
of what rounding costs in accuracy, the head alone would be more than half. The model stays
transformers' own, but for its linear layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actors.engine.quantized import replace_linears

FORMAT = torch.float8_e4m3fn

LARGEST = torch.finfo(FORMAT).max

LEAST_SCALE = 1e-12
"""Of a row of zeros."""

STRIDE = 16
"""The product wants multiples of it, of inputs and of outputs."""

ADA = (8, 9)
"""The least compute capability that multiplies such numbers."""


class Float8Linear(nn.Module):
    """A linear layer with one scale an output, and one a row of what comes in. bfloat16 besides."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Round `weight`, `[outputs, inputs]`."""
        super().__init__()
        narrow, scale = narrowed(weight)
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(narrow, requires_grad=False)
        self.scale = nn.Parameter(scale.t().contiguous(), requires_grad=False)
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        rows, scale = narrowed(inputs.reshape(-1, self.in_features))
        product: Tensor = torch._scaled_mm(
            rows,
            self.weight.t(),
            scale_a=scale,
            scale_b=self.scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=False,  # which on Hopper would sum in fewer bits than float32 has
        )
        shaped = product.to(inputs.dtype).view(*inputs.shape[:-1], self.out_features)
        return shaped if self.bias is None else shaped + self.bias


def narrowed(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`rows` as eight-bit floats, and what each is to be multiplied by, `[rows, 1]`, float32."""
    largest = rows.abs().amax(dim=1, keepdim=True).float()
    scale = (largest / LARGEST).clamp_min(LEAST_SCALE)
    return (rows / scale).to(FORMAT), scale


def narrow(model: PreTrainedModel) -> None:
    """Make every linear layer of `model` whose sizes allow it a `Float8Linear`, but for the head.

    Raises UnsupportedModel if there is none.
    """
    head = model.get_output_embeddings().weight

    def fits(weight: Tensor) -> bool:
        return weight is not head and all(size % STRIDE == 0 for size in weight.shape)

    replace_linears(model, "fp8", lambda _name, weight, bias: Float8Linear(weight, bias), fits)


def is_narrow(model: PreTrainedModel) -> bool:
    return any(isinstance(module, Float8Linear) for module in model.modules())
