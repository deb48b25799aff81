"""Where the time of one step goes, beside the least it could take. No Ray, no HTTP.

    python -m benchmarks.profile
    python -m benchmarks.profile --batches 1,64 --context 1000 --dtype float32

Steps are timed as they are; then as many are profiled, and the profile only says in which shares
that time divides, since profiling makes small operators slower. Nothing is guessed: a step has as
many rows as its name says.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import PreTrainedModel

from actors.engine.compiled import program_wish
from actors.engine.engine import Engine, build_engine
from actors.engine.families import check_family
from actors.engine.kv_cache import page_bytes
from actors.engine.loader import load_model, precision_name
from actors.engine.runner import Forward
from actors.models import default_cache, ensure_model
from benchmarks.asking import assignment
from benchmarks.floor import Limits, Needs, measure_limits, needs_of
from benchmarks.report import markdown_row
from benchmarks.scopes import PARTS, STEP, scopes, seconds_by_part
from cluster.config import ModelConfig
from scripts.serve_config import read_serve_config

MANY = 1_000_000
"""Output tokens wanted by sequences that shall not end."""

REST_S = 4.0
"""A shard's pool is backed while it rests; without it, prompts would pay for first writes."""

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One kind of step: `tokens` computed in it, `sampled` after it, over `context` tokens read."""

    name: str
    tokens: int
    sampled: int
    context: int
    times: list[float]
    parts: dict[str, float]

    @property
    def step_s(self) -> float:
        return median(self.times)

    def part_s(self, part: str) -> float:
        """Of the time of a step that is not profiled, the part's share."""
        return self.step_s * self.parts[part] / sum(self.parts.values())


class Bench:
    """An engine, and the steps to be looked at."""

    def __init__(self, folder: Path, model: ModelConfig, steps: int) -> None:
        loaded = load_model(folder, model.dtype, CPU, attn_implementation="eager")
        program = _program(folder, loaded, model)
        self.dtype, self.precision = loaded.dtype, precision_name(loaded)
        self.needs: Needs = needs_of(loaded, page_bytes(check_family(loaded), 1, loaded.dtype))
        self._vocab = loaded.config.get_text_config().vocab_size
        self._engine: Engine = build_engine(loaded, model)
        if program is not None:
            self._engine.adopt(program)
        self._head = loaded.get_output_embeddings()
        self._steps = steps
        self._rng = random.Random(0)
        self._count = 0

    @property
    def compiled(self) -> bool:
        return self._engine.stats().compiled

    def decode(self, batch: int, context: int) -> Case:
        """Steps of `batch` sequences, one token each, that begin with `context` tokens behind."""
        names = [self._admit(context, MANY) for _ in range(batch)]
        self._fill(batch, context)
        case = self._measure(f"decode {batch} x {context}", batch, batch, batch * context, int)
        for name in names:
            self._engine.cancel(name)
        return case

    def _fill(self, batch: int, context: int) -> None:
        """Step until all decode at once."""
        for _ in range(batch * context):
            if len(self._engine.step()) == batch:
                return
        raise SystemExit(
            f"{batch} sequences of {context} tokens do not fit at once: see the config"
        )

    def prefill(self, tokens: int) -> Case:
        """Steps of one prompt of `tokens` tokens, each a prompt never seen before."""
        return self._measure(f"prefill {tokens}", tokens, 1, 0, lambda: self._admit(tokens, 1))

    def _measure(
        self, name: str, tokens: int, sampled: int, context: int, before: Callable[[], object]
    ) -> Case:
        times = [self._step(before) for _ in range(self._steps)]
        with scopes(self._head), profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(self._steps):
                self._step(before)
        parts = seconds_by_part(profiled.events(), self.compiled)
        return Case(name, tokens, sampled, context, times, parts)

    def _step(self, before: Callable[[], object]) -> float:
        """Seconds of one step; `before` is what it needs to have work."""
        before()
        began = time.perf_counter()
        with record_function(STEP):
            self._engine.step()
        return time.perf_counter() - began

    def _admit(self, prompt_tokens: int, max_tokens: int) -> str:
        self._count += 1
        name = f"r{self._count}"
        prompt = self._rng.choices(range(self._vocab), k=prompt_tokens)
        self._engine.admit(assignment(name, prompt, max_tokens))
        return name


def _program(folder: Path, loaded: PreTrainedModel, model: ModelConfig) -> Forward | None:
    """The compiled program, made now if it is not there, minutes; None by the config's wish."""
    wish = (
        program_wish(folder, loaded, default_cache() / "programs")
        if model.compile == "auto"
        else None
    )
    return wish.fulfil() if wish is not None else None


def table(cases: list[Case], needs: Needs, limits: Limits) -> str:
    """A row a part, a column a case, milliseconds and share; below, the floor."""
    rows = [["ms (share)", *(case.name for case in cases)], ["---"] * (len(cases) + 1)]
    parts = [part for part in PARTS if any(case.parts[part] for case in cases)]
    rows += [[part, *(_cell(case, part) for case in cases)] for part in parts]
    floors = [case_floor(case, needs, limits) for case in cases]
    rows += [
        ["one step", *(f"{1e3 * case.step_s:.1f}" for case in cases)],
        ["floor by memory", *(f"{1e3 * memory:.1f}" for memory, _ in floors)],
        ["floor by FLOPs", *(f"{1e3 * flop:.1f}" for _, flop in floors)],
        ["step over floor", *_times_over(cases, floors)],
        ["tokens/s", *(f"{case.tokens / case.step_s:.0f}" for case in cases)],
    ]
    return "\n".join(markdown_row(*row) for row in rows)


def case_floor(case: Case, needs: Needs, limits: Limits) -> tuple[float, float]:
    """Seconds by memory and by FLOPs."""
    return needs.floor_s(limits, case.tokens, case.sampled, case.context)


def _cell(case: Case, part: str) -> str:
    seconds = case.part_s(part)
    return f"{1e3 * seconds:.2f} ({seconds / case.step_s:.0%})"


def _times_over(cases: list[Case], floors: list[tuple[float, float]]) -> list[str]:
    return [f"{case.step_s / max(floor):.1f}" for case, floor in zip(cases, floors, strict=True)]


def main() -> None:
    options = _options()
    model = read_serve_config(options.config).shoal.models[0]
    if options.dtype:
        model = model.model_copy(update={"dtype": options.dtype})
    batching = model.batching.model_copy(update={"prompt_lookup_tokens": 0})
    model = model.model_copy(update={"batching": batching})
    if options.layers:
        model = model.model_copy(update={"compile": "off"})
    bench = Bench(ensure_model(model.source), model, options.steps)
    time.sleep(REST_S)
    limits = measure_limits(bench.dtype, integers=bench.precision == "int8")
    cases = [bench.decode(batch, options.context) for batch in options.batches]
    cases.append(bench.prefill(options.prefill))
    print(
        f"{torch.get_num_threads()} threads at most, {bench.precision},"
        f" {'compiled' if bench.compiled else 'layer by layer'}; this machine streams"
        f" {limits.bytes_s / 1e9:.1f} GB/s and multiplies {limits.flop_s / 1e9:.0f} GFLOP/s\n"
    )
    print(table(cases, bench.needs, limits))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.profile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", type=Path, default=Path("ray-config.yaml"))
    parser.add_argument("--dtype", help="in place of the config's")
    parser.add_argument("--layers", action="store_true", help="not compiled, layer by layer")
    parser.add_argument(
        "--batches", type=lambda t: [int(n) for n in t.split(",")], default=[1, 16, 32]
    )
    parser.add_argument("--context", type=int, default=200, help="tokens behind each decode")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=20, help="timed, and as many profiled")
    return parser.parse_args()


if __name__ == "__main__":
    main()
