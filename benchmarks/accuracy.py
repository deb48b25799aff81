"""What a precision costs in accuracy: perplexity, and how often another token is the likeliest.

    python -m benchmarks.accuracy --model default
    python -m benchmarks.accuracy --model /models/llama --dtypes float32,int8 --tokens 4096

The text is Python's own reference, which comes with every Python, so anybody gets these figures.
Each token is predicted from the text itself, never from what a model said before. The first
precision of the list is what the others are held against. One model is in memory at a time, and
runs layer by layer. No Ray, no HTTP.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from actors.engine.calibration import sample_text
from actors.engine.loader import load_model
from actors.models import ensure_model
from benchmarks.report import markdown_row

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of each token that was predicted: how unlikely it was, nats, and which one was likeliest."""

    surprise: Tensor
    likeliest: Tensor

    @property
    def perplexity(self) -> float:
        return math.exp(float(self.surprise.double().mean()))

    def agreement(self, other: Prediction) -> float:
        """Share of the tokens of which both hold the same to be the likeliest."""
        return float((self.likeliest == other.likeliest).double().mean())

    def cost(self, other: Prediction) -> tuple[float, float]:
        """How much larger the perplexity is than the `other`'s, as a share; and the standard error
        of that, since a text is a sample: both went by the same one, so their difference counts."""
        difference = (self.surprise - other.surprise).double()
        error = float(difference.std()) / math.sqrt(len(difference))
        return math.expm1(float(difference.mean())), error


def windows(folder: Path, tokens: int, length: int) -> list[Tensor]:
    """The first `tokens` tokens of the text, in rows of `length`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids: list[int] = tokenizer(sample_text(), add_special_tokens=False, verbose=False)["input_ids"]
    if tokens > len(ids):
        raise SystemExit(f"the text has {len(ids)} tokens, fewer than {tokens}")
    return [torch.tensor(ids[at : at + length]) for at in range(0, tokens, length)]


def predict(model: PreTrainedModel, text: list[Tensor]) -> Prediction:
    """Each token of a window but its first, from those before it there."""
    parts = [score(_logits(model, row)[:-1], row[1:]) for row in text]
    return Prediction(
        torch.cat([part.surprise for part in parts]), torch.cat([part.likeliest for part in parts])
    )


def score(logits: Tensor, tokens: Tensor) -> Prediction:
    """`logits[i]` foretold `tokens[i]`."""
    surprise = torch.nn.functional.cross_entropy(logits.float(), tokens, reduction="none")
    return Prediction(surprise, logits.argmax(dim=-1))


@torch.inference_mode()
def _logits(model: PreTrainedModel, row: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=row[None], use_cache=False).logits[0]
    return logits


def rows(predictions: dict[str, Prediction]) -> Iterator[list[str]]:
    """A table: each precision beside the first."""
    first, reference = next(iter(predictions.items()))
    yield ["", "perplexity", f"against {first}", f"same likeliest token as {first}"]
    yield ["---"] * 4
    for name, prediction in predictions.items():
        more, error = prediction.cost(reference)
        same = prediction.agreement(reference)
        yield [name, f"{prediction.perplexity:.3f}", f"{more:+.2%} ± {error:.2%}", f"{same:.2%}"]


def main() -> None:
    options = _options()
    folder = ensure_model(options.model)
    text = windows(folder, options.tokens, options.window)
    predictions = {
        dtype: predict(load_model(folder, dtype, CPU, attn_implementation="sdpa"), text)
        for dtype in options.dtypes
    }
    print(f"{folder.name}: {options.tokens} tokens of Python's reference, {len(text)} windows\n")
    for row in rows(predictions):
        print(markdown_row(*row))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="default", help="as `source` in the configuration")
    parser.add_argument(
        "--dtypes", type=lambda t: t.split(","), default=["float32", "bfloat16", "int8"]
    )
    parser.add_argument("--tokens", type=int, default=16_384, help="of the text")
    parser.add_argument("--window", type=int, default=512, help="tokens seen at once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
