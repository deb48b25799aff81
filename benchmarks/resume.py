"""Time until a sequence goes on, by where its pages are: nowhere, in files, in host memory, or in
the pool.

    python -m benchmarks.resume --tokens 1000 --folder /tmp/pages

One step each of the engine alone, on a model of the default one's shape with random weights, in a
pool that holds one such sequence and hardly more: two take turns. Whoever comes in has the other's
pages saved first, so loading is timed together with as much saving. For files, which need a
`--folder`, twenty-four take turns, and host memory holds sixteen of them.
"""

from __future__ import annotations

import argparse
import random
from statistics import median
from time import perf_counter

import torch

from actors.engine.engine import Engine, build_engine
from benchmarks.asking import assignment
from benchmarks.step_costs import BLOCK_SIZE, VOCABULARY, smol_shape
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.folder_config import FolderConfig

TOKEN_BYTES = 23040
"""Of keys and values of a model of that shape, in bfloat16."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    figures = measure(options.tokens, options.rounds)
    if options.folder is not None:
        figures |= measure_files(options.tokens, options.rounds, options.folder)
    for name, took_ms in figures.items():
        print(f"{name}: {took_ms:.1f} ms")


def measure(tokens: int, rounds: int) -> dict[str, float]:
    """Median milliseconds to the first token."""
    engine, source = engine_for(tokens, 1.0), random.Random(0)
    taken: dict[str, list[float]] = {"computed": [], "loaded": [], "in the pool": []}
    for _ in range(rounds):
        one, other = (tuple(source.choices(range(VOCABULARY), k=tokens)) for _ in range(2))
        taken["computed"] += [first_token_ms(engine, one), first_token_ms(engine, other)]
        taken["loaded"] += [first_token_ms(engine, one), first_token_ms(engine, other)]
        taken["in the pool"].append(first_token_ms(engine, other))
    return {name: median(each) for name, each in taken.items()}


def measure_files(tokens: int, rounds: int, folder: str) -> dict[str, float]:
    """The same in milliseconds where only files have the pages, exactly and in eight bits."""
    taken = {}
    for name, int8 in (("read from files", False), ("read from files, int8", True)):
        config = FolderConfig(path=folder, gib=1.0, int8=int8)
        engine, source = (
            engine_for(tokens, 16 * tokens * TOKEN_BYTES / 2**30, config),
            random.Random(0),
        )
        prompts = [tuple(source.choices(range(VOCABULARY), k=tokens)) for _ in range(24)]
        turns = [first_token_ms(engine, one) for _ in range(1 + rounds) for one in prompts]
        taken[name] = median(turns[len(prompts) :])
    return taken


def engine_for(tokens: int, host_gib: float, folder: FolderConfig | None = None) -> Engine:
    pages = -(-tokens // BLOCK_SIZE) + 2
    model = ModelConfig(
        max_model_len=tokens + BLOCK_SIZE,
        cache=CacheConfig(
            block_size=BLOCK_SIZE, num_blocks=pages, host_gib=host_gib, folder=folder
        ),
        batching=BatchingConfig(max_batch_tokens=tokens),
    )
    return build_engine(smol_shape(), model)


def first_token_ms(engine: Engine, prompt: tuple[int, ...]) -> float:
    engine.admit(assignment("r", prompt, 1))
    started = perf_counter()
    while engine.has_work:
        engine.step()
    return 1000 * (perf_counter() - started)


if __name__ == "__main__":
    main()
