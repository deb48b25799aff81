"""Whether this processor computes a row the same, bit for bit, whatever stands beside it: asked of
whatever in a model multiplies by weights, before `deterministic` is promised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actors.engine.families import refuse
from actors.engine.layouts import COMPANY
from cluster.config import DETERMINISTIC_ROWS

UNFIT = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""What a layer raises that takes other inputs than it was thought to."""


@dataclass(frozen=True, slots=True)
class _Question:
    """`least`: the fewest rows that a step may have for the layer."""

    name: str
    inputs: int
    least: int
    ask: Callable[[Tensor], Any]


@torch.inference_mode()
def prove_rows(model: PreTrainedModel) -> None:
    """Raise UnsupportedModel unless on this processor every layer with weights computes a row the
    same among as few as it can meet and up to `DETERMINISTIC_ROWS`."""
    for question in {_kind(layer): _question(model, layer) for layer in _weighty(model)}.values():
        try:
            count = _differing(question, model.dtype)
        except UNFIT as error:
            told = f"{question.name} cannot be asked whether it rounds rows alike: {error}"
            refuse(model, f"deterministic is not to be had: its {told}")
        if count is not None:
            refuse(
                model,
                f"deterministic is not to be had on this processor: {count} rows of a product of"
                f" {question.name} round otherwise than {DETERMINISTIC_ROWS}",
            )


def _differing(question: _Question, dtype: torch.dtype) -> int | None:
    """A number of rows that come out otherwise than among all."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(DETERMINISTIC_ROWS, question.inputs, generator=generator).to(dtype)
    among = _parts(question.ask(rows))
    for count in range(question.least, DETERMINISTIC_ROWS):
        alone = _parts(question.ask(rows[:count]))
        if not all(torch.equal(few, all_[:count]) for few, all_ in zip(alone, among, strict=True)):
            return count
    return None


def _parts(output: Any) -> tuple[Tensor, ...]:
    """Routers give several."""
    return output if isinstance(output, tuple) else (output,)


def _weighty(model: PreTrainedModel) -> Iterator[Any]:
    """The layers that multiply by weights of their own; an embedding only looks them up."""
    for layer in model.modules():
        weights = layer.parameters(recurse=False)
        if not isinstance(layer, nn.Embedding) and (
            hasattr(layer, "in_features") or any(weight.dim() > 1 for weight in weights)
        ):
            yield layer


def _kind(layer: Any) -> tuple[Any, ...]:
    """Layers of one kind round alike: one of them is asked."""
    shapes = [tuple(weight.shape) for weight in layer.parameters(recurse=False)]
    return type(layer), getattr(layer, "in_features", None), *shapes


def _question(model: PreTrainedModel, layer: Any) -> _Question:
    name = type(layer).__name__
    if any(weight.dim() > 2 for weight in layer.parameters(recurse=False)):
        hidden = model.config.get_text_config().hidden_size
        return _Question(name, hidden, 1, lambda rows: _expert(layer, rows))
    inputs = _inputs(layer)
    return _Question(f"{name} of {inputs}", inputs, COMPANY, layer)


def _inputs(layer: Any) -> int:
    """GPT-2's Conv1D keeps its weight the other way round than all others."""
    named = getattr(layer, "in_features", None) or getattr(layer, "nx", None)
    return int(named or layer.weight.shape[-1])


def _expert(experts: Any, rows: Tensor) -> Tensor:
    """The first of a mixture, which gets any number of a step's rows."""
    chosen = torch.zeros(len(rows), 1, dtype=torch.int64)
    output: Tensor = experts(rows, chosen, torch.ones(len(rows), 1, dtype=rows.dtype))
    return output
