"""What guessing tokens by prompt lookup brings, by the kind of text: the engine alone, in turns.

    python -m benchmarks.lookup --streams 1 16

Three kinds: answers to questions, functions of Python's library written anew, and prompts of random
words, as the workloads have them. The same requests go to an engine that guesses and to one that
does not, one after the other; printed are tokens per second of both, medians with least and most,
and how many tokens a stream got a step.
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from transformers import AutoTokenizer

from actors.engine.engine import Engine, load_engine
from actors.models import default_cache, ensure_model
from benchmarks.asking import assignment
from benchmarks.report import markdown_row
from benchmarks.workloads import make_workload, words_of
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.messages import Sampling, TokenDelta

QUESTIONS = (
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper.",
    "How does a bicycle stay upright?",
    "Give me a recipe for pancakes, with amounts.",
    "Explain what a hash table is to a beginner.",
    "What should I see in Rome in two days?",
    "Write an email that asks a landlord to repair a heater.",
    "Describe how bread is baked, step by step.",
    "What were the causes of the First World War?",
    "Compare cats and dogs as pets.",
    "How do vaccines work?",
    "Write a poem about autumn.",
    "What is the difference between weather and climate?",
    "How can I sleep better?",
    "Tell me about the life of Marie Curie.",
    "Plan a birthday party for ten children.",
)

FUNCTIONS = (
    textwrap.dedent,
    textwrap.indent,
    textwrap.wrap,
    textwrap.shorten,
    inspect.cleandoc,
    inspect.getdoc,
    inspect.getmodulename,
    inspect.indentsize,
)

Prompts = list[tuple[int, ...]]


def prompts_of(kind: str, folder: Path, count: int) -> Prompts:
    """Tokens of `count` prompts."""
    if kind == "random words":
        prompts = make_workload("W1", 1, words_of(folder)).prompts
        return [prompt.tokens for prompt in prompts[:count]]
    texts = list(QUESTIONS)
    if kind == "functions":
        order = "Write this function again, with a comment at each line:"
        texts = [f"{order}\n\n{inspect.getsource(function)}" for function in FUNCTIONS]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [
        tuple(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in (texts * count)[:count]
    ]


KINDS = ("questions", "functions", "random words")


def engine_of(folder: Path, guesses: int) -> Engine:
    model = ModelConfig(
        cache=CacheConfig(num_blocks=1024, prefix_caching=False),
        batching=BatchingConfig(prompt_lookup_tokens=guesses),
    )
    engine = load_engine(folder, model, torch.device("cpu"), default_cache() / "programs")
    if not engine.stats().compiled:
        raise SystemExit("the model is not compiled yet: start `make serve` once, and wait for it")
    return engine


@dataclass(frozen=True, slots=True)
class Turn:
    """Output tokens a second, first ones not counted, and tokens a stream got in each step."""

    speed: float
    a_step: float


def serve(engine: Engine, prompts: Prompts, tokens: int, temperature: float) -> Turn:
    """All prompts at once, `tokens` for each."""
    for number, prompt in enumerate(prompts):
        sampling = Sampling(temperature=temperature, seed=number)
        engine.admit(assignment(str(number), prompt, tokens, sampling))
    waiting, decodes, output = len(prompts), 0, 0
    began = perf_counter()
    while engine.has_work:
        deltas = engine.step()
        if waiting > 0:
            waiting -= len(deltas)
            began = perf_counter()
            continue
        decodes += len(deltas)
        output += sum(len(delta.tokens) for delta in deltas if isinstance(delta, TokenDelta))
    return Turn(output / (perf_counter() - began), output / decodes)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    folder = ensure_model("default")
    plain, guessing = engine_of(folder, 0), engine_of(folder, options.guesses)
    print(markdown_row("text", "streams", "tokens/s", f"with {options.guesses}", "tokens a step"))
    print(markdown_row(*["---"] * 5))
    for kind in KINDS:
        for streams in options.streams:
            prompts = prompts_of(kind, folder, streams)
            turns: tuple[list[Turn], list[Turn]] = ([], [])
            for _ in range(options.rounds):
                for engine, taken in zip((plain, guessing), turns, strict=True):
                    taken.append(serve(engine, prompts, options.tokens, options.temperature))
            a_step = f"{median(turn.a_step for turn in turns[1]):.2f}"
            print(markdown_row(kind, str(streams), *map(_speeds, turns), a_step))


def _speeds(turns: Sequence[Turn]) -> str:
    speeds = [turn.speed for turn in turns]
    return f"{median(speeds):.0f} ({min(speeds):.0f} - {max(speeds):.0f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.lookup", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--guesses", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
