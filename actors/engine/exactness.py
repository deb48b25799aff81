"""The last question before a model is served: do our logits equal its own, in its own weights?

A short random prompt goes through the model as transformers runs it, and through the paged path in
the ways in which serving differs: in chunks, beside another sequence, then token by token from
pages. Whatever the checks in `families` could not know of a family shows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actors.engine.batch import build_batch
from actors.engine.families import refuse
from actors.engine.float8 import is_narrow
from actors.engine.kv_cache import InPlace, KVCache, LayerShape
from actors.engine.loader import precision_name
from actors.engine.quantized import is_quantized
from actors.engine.runner import Forward, ModelRunner
from cluster.messages import Request, Sampling, Stopping
from cluster.steps import Chunk, Sequence, StepPlan

TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest accepted root mean square of the difference, as a share of the logits' own spread.

Rounding stays ten times below; a wrong mask, position or cache is of the order of one.
"""

NARROW_TOLERANCE = 0.3
"""The same where activations are rounded to eight-bit floats: two inputs that differ in the last
bit may then differ by a sixteenth."""

INT8_TOLERANCE = 0.5
"""The same where they are rounded to integers: the small ones of a row may then differ by all they
are. Two ways of computing differ by as much as either does from the truth: by 0.2 to 0.27, for the
random prompts of the default model."""

LENGTHS = (23, 9)
"""Tokens of the two sequences computed together."""

STEP_LENGTHS = (8, 6)
"""The same, where only steps are compared: within the smallest page of a pool of two."""

BLOCK_SIZE = 4

CUTS = (0, 10, 18)
"""Where the chunks of a sequence begin; what is left after them goes token by token."""


def prove_exact(
    model: PreTrainedModel,
    layers: Mapping[int, LayerShape],
    in_place: InPlace | None = None,
    block_size: int = BLOCK_SIZE,
    longest: int = max(LENGTHS),
) -> None:
    """Raise UnsupportedModel unless the paged path gives the model's own logits.

    Where its kernel takes no small pages, the prompts are longer by a page, as far as the model
    computes sequences of up to `longest` tokens: so that they still have more than one page.
    """
    longer = max(0, min(block_size - BLOCK_SIZE, longest - max(LENGTHS)))
    prompts = _prompts(model, [length + longer for length in LENGTHS])
    model.set_attn_implementation("eager")
    expected = [_own_logits(model, prompt) for prompt in prompts]
    cuts = [cut + longer if cut else 0 for cut in CUTS]
    starts = [*cuts, *range(cuts[-1] + 1, len(prompts[0]) + 1)]
    cache = _cache(model, layers, prompts, in_place, block_size)
    for ours, own in zip(_paged_logits(model, cache, prompts, starts), expected, strict=True):
        _compare(model, ours, own, "computed in pages")


def prove_program(
    model: PreTrainedModel, layers: Mapping[int, LayerShape], program: Forward
) -> None:
    """Raise UnsupportedModel unless `program` gives the logits of the paged model.

    Short enough to be asked between two steps: two prompts, then a token of each from pages.
    """
    prompts = _prompts(model)
    starts = [0, min(LENGTHS) - 1, min(LENGTHS)]
    cache = _cache(model, layers, prompts)
    expected = _paged_logits(model, cache, prompts, starts)
    got = _paged_logits(model, cache, prompts, starts, program)
    for ours, own in zip(got, expected, strict=True):
        _compare(model, ours, own, "compiled")


def prove_steps(model: PreTrainedModel, cache: KVCache, program: Forward, how: str) -> None:
    """Raise UnsupportedModel unless `program`, which computes on `cache` alone, gives the logits of
    the paged model: two prompts, then tokens from pages, of both and of one."""
    prompts = _prompts(model, STEP_LENGTHS)
    starts = [0, *range(min(STEP_LENGTHS) - 1, max(STEP_LENGTHS) + 1)]
    expected = _paged_logits(model, cache, prompts, starts)
    got = _paged_logits(model, cache, prompts, starts, program)
    for ours, own in zip(got, expected, strict=True):
        _compare(model, ours, own, how)


def own_logits(model: PreTrainedModel) -> Tensor:
    """Of a short random prompt, as transformers computes them; in a gang, by all ranks at once."""
    return _own_logits(model, _prompts(model)[0])


def prove_split(whole: PreTrainedModel, split: Tensor) -> None:
    """Raise UnsupportedModel unless `split`, of the same weights over ranks, are its own logits."""
    _compare(whole, split, own_logits(whole), "split over ranks")


@torch.inference_mode()
def _own_logits(model: PreTrainedModel, prompt: list[int]) -> Tensor:
    """All logits of the prompt, `[tokens, vocab]`, as transformers computes them."""
    tokens = torch.tensor([prompt], device=model.device)
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    return logits


def _prompts(model: PreTrainedModel, lengths: Iterable[int] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    vocab = model.config.get_text_config().vocab_size
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in lengths]


def _cache(
    model: PreTrainedModel,
    layers: Mapping[int, LayerShape],
    prompts: list[list[int]],
    in_place: InPlace | None = None,
    block_size: int = BLOCK_SIZE,
) -> KVCache:
    pages = len(prompts) * _pages(prompts, block_size)
    return KVCache(layers, pages, block_size, model.dtype, model.device, in_place)


def _pages(prompts: list[list[int]], block_size: int) -> int:
    """Of the longest."""
    return max(-(-len(prompt) // block_size) for prompt in prompts)


def _compare(model: PreTrainedModel, ours: Tensor, own: Tensor, how: str) -> None:
    error = _relative_error(ours, own)
    allowed = _allowed(model)
    if not error <= allowed:
        refuse(
            model,
            f"{how}, its logits differ from its own by {error:.2g} of their spread"
            f" (allowed in {precision_name(model)}: {allowed:g})",
        )


def _allowed(model: PreTrainedModel) -> float:
    if is_quantized(model):
        return INT8_TOLERANCE
    return NARROW_TOLERANCE if is_narrow(model) else TOLERANCE[model.dtype]


def _paged_logits(
    model: PreTrainedModel,
    cache: KVCache,
    prompts: list[list[int]],
    starts: list[int],
    program: Forward | None = None,
) -> list[Tensor]:
    """The same through pages that interleave, in chunks from one of `starts` to the next."""
    pages = _pages(prompts, cache.block_size)
    runner = ModelRunner(model, cache)
    if program is not None:
        runner.use(program)
    sequences = [_sequence(i, prompt, pages, len(prompts)) for i, prompt in enumerate(prompts)]
    logits: list[list[Tensor]] = [[] for _ in prompts]
    for start, stop in pairwise(starts):
        going = [i for i, prompt in enumerate(prompts) if start < len(prompt)]
        counts = [min(stop, len(prompts[i])) - start for i in going]
        chunks = [Chunk(sequences[i], start, n, False) for i, n in zip(going, counts, strict=True)]
        parts = torch.split(_all_logits(runner, cache, chunks), counts)
        for i, part in zip(going, parts, strict=True):
            logits[i].append(part.clone())  # good only until the next step
    return [torch.cat(parts) for parts in logits]


def _all_logits(runner: ModelRunner, cache: KVCache, chunks: list[Chunk]) -> Tensor:
    batch = build_batch(StepPlan(tuple(chunks)), cache)
    first = batch.first_row
    rows = [first[i] + row for i, chunk in enumerate(chunks) for row in range(chunk.count)]
    return runner.logits(batch, rows)


def _sequence(index: int, prompt: list[int], pages: int, sequences: int) -> Sequence:
    request = Request(
        request_id=f"probe-{index}",
        model="",
        tenant="",
        sla="",
        prompt=tuple(prompt),
        sampling=Sampling(),
        stopping=Stopping(max_tokens=1),
    )
    blocks = [sequences * page + index for page in reversed(range(pages))]
    return Sequence(request, 0, prompt, blocks=blocks)


def _relative_error(ours: Tensor, own: Tensor) -> float:
    """Root mean square of the difference, as a share of the standard deviation of `own`."""
    ours, own = ours.double(), own.double()
    return float((ours - own).square().mean().sqrt() / own.std())
