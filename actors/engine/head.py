"""The output head of a bfloat16 model, with logits in float32: as compiled programs have them.

torch sums a product of bfloat16 in float32 and rounds the sum, to an eighth where logits are as
large as twenty: tokens that are nearly tied come out equal, and the draw takes one that the model
does not. torch has no product that leaves the sum as it is on a CPU, but one that subtracts before
it rounds: so what rounding took off is asked for in a second product, and is exact to bfloat16 in
its turn. Rejected: the weight in float32, which takes twice the memory and ten times the time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from transformers import PreTrainedModel


class WideLinear(nn.Module):
    """A linear layer in bfloat16 whose outputs are float32, sixteen bits of them right."""

    def __init__(self, narrow: nn.Linear) -> None:
        """It shares the weight of `narrow`."""
        super().__init__()
        self.in_features, self.out_features = narrow.in_features, narrow.out_features
        self.weight, self.bias = narrow.weight, narrow.bias

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, self.in_features)
        rounded = F.linear(rows, self.weight)
        rest = torch.addmm(rounded, rows, self.weight.t(), beta=-1)
        wide = rounded.float().add_(rest)
        if self.bias is not None:
            wide += self.bias
        return wide.view(*inputs.shape[:-1], self.out_features)


def widen_head(model: PreTrainedModel) -> None:
    """Make the head of a bfloat16 model wide; one of eight-bit weights stays as it is."""
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear) and head.weight.dtype == torch.bfloat16:
        model.set_output_embeddings(WideLinear(head))
