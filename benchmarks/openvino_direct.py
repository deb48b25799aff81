"""OpenVINO GenAI's continuous batching as a piped server; run by the Python it is installed in.

    python openvino_direct.py MODEL.gguf SEATS POOL_GIB

Prints `ready`, then answers each line of standard input, a workload, by one line, its timelines.
There is no HTTP, and tokens are stamped as the step that made them returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

MAX_BATCH_TOKENS = 2048


@dataclass
class Running:
    """A request in the pipeline."""

    handle: Any
    asked: int
    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0

    def timeline(self) -> dict[str, Any]:
        """As `benchmarks.metrics.Timeline` has it."""
        return {
            "sent": self.sent,
            "arrivals": self.arrivals,
            "tokens": self.tokens,
            "asked": self.asked,
        }


class Pipeline:
    """The pipeline, and the steps that drive a workload through it."""

    def __init__(self, model: str, seats: int, pool_gib: int) -> None:
        import openvino_genai as genai

        schedule = genai.SchedulerConfig()
        schedule.cache_size = pool_gib
        schedule.max_num_batched_tokens = MAX_BATCH_TOKENS
        schedule.max_num_seqs = seats
        schedule.enable_prefix_caching = True
        schedule.dynamic_split_fuse = True
        precision = {"INFERENCE_PRECISION_HINT": "bf16"}
        self._genai = genai
        self._pipeline = genai.ContinuousBatchingPipeline(model, schedule, "CPU", precision)
        self._count = 0

    def work(self, prompts: list[tuple[list[int], int]], concurrency: int) -> dict[str, Any]:
        """Do them all, at most `concurrency` at once."""
        waiting = prompts[::-1]
        running: list[Running] = []
        ended: list[Running] = []
        began = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < concurrency:
                running.append(self._add(*waiting.pop()))
            self._pipeline.step()
            self._collect(running)
            ended += [one for one in running if self._is_over(one)]
            running = [one for one in running if not self._is_over(one)]
        wall = time.perf_counter() - began
        return {"wall_s": wall, "timelines": [one.timeline() for one in ended]}

    def _add(self, tokens: list[int], output: int) -> Running:
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens = output
        config.ignore_eos = True
        config.do_sample = False
        self._count += 1
        prompt = openvino.Tensor(np.array([tokens], dtype=np.int64))
        sent = time.perf_counter()
        return Running(self._pipeline.add_request(self._count, prompt, config), output, sent)

    def _collect(self, running: list[Running]) -> None:
        now = time.perf_counter()
        for one in running:
            if one.handle.can_read():
                one.tokens += sum(len(out.generated_ids) for out in one.handle.read().values())
                one.arrivals.append(now)

    def _is_over(self, one: Running) -> bool:
        return bool(one.handle.get_status() != self._genai.GenerationStatus.RUNNING)


def main() -> None:
    model, seats, pool_gib = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not pass for an answer
    pipeline = Pipeline(model, int(seats), int(pool_gib))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(pipeline.work(order["prompts"], order["concurrency"])), file=answers)
        answers.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # how it is asked to end
        main()
