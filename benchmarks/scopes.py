"""Names the parts of a step for torch's profiler, and says which part each event belongs to.

A part is a function of the engine, and within the forward pass also a kind of operator. What runs
in a part and is no operator is Python and dispatch, and counts for that part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch import nn
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent
from transformers import AttentionInterface

from actors.engine import runner
from actors.engine.attention import PAGED, paged_attention
from actors.engine.kv_cache import KVCache
from actors.engine.runner import ModelRunner
from actors.engine.sampler import Sampler
from cluster.batching import Batcher

STEP = "rest of the step"
FORWARD = "Python between operators"
ATTENTION = "attention"
HEAD = "head"
LINEARS = "linears"
SMALL = "norms, rotary, activations"
PROGRAM = "compiled: products and what is fused into them"

FUNCTIONS: tuple[tuple[Any, str, str], ...] = (
    (Batcher, "plan", "planning"),
    (runner, "build_batch", "batch building"),
    (ModelRunner, "logits", FORWARD),
    (KVCache, "write", "KV write"),
    (KVCache, "gather", "KV gather"),
    (Sampler, "sample", "sampling"),
    (Batcher, "settle", "settling"),
)

PARTS = (
    "planning",
    "batch building",
    LINEARS,
    HEAD,
    ATTENTION,
    "KV write",
    "KV gather",
    SMALL,
    PROGRAM,
    FORWARD,
    "sampling",
    "settling",
    STEP,
)
"""In the order of a step."""

PRODUCT = re.compile(
    r"aten::(linear|addmm|mm|matmul|_int_mm|_weight_\w+)$|(mkldnn|onednn)::\w*linear"
)


OPERATOR = "shoal::attend"
"""Attention as a compiled program calls it, what keeps the step's keys and values with it."""


@contextmanager
def scopes(head: nn.Module) -> Iterator[None]:
    """Within it, the profiler sees every part of a step by its name."""
    with ExitStack() as undo:
        for owner, name, part in FUNCTIONS:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, named(part, getattr(owner, name)))
        undo.callback(AttentionInterface.register, PAGED, paged_attention)
        AttentionInterface.register(PAGED, named(ATTENTION, paged_attention))
        undo.callback(setattr, head, "forward", head.forward)
        head.forward = named(HEAD, head.forward)
        yield


def named(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, seen by the profiler as `part`."""

    @wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with record_function(part):
            return function(*args, **kwargs)

    return inside


def seconds_by_part(events: Iterable[FunctionEvent], compiled: bool) -> dict[str, float]:
    """Time of the calling thread, each moment counted once, in the part that was innermost.

    `compiled`: the forward pass was one program, in which only attention can be told apart.
    """
    spent: Counter[str] = Counter()
    for event in events:
        if (part := part_of(event)) is not None:
            if compiled and part in (FORWARD, SMALL):
                part = PROGRAM
            spent[part] += event.self_cpu_time_total * 1e-6
    return {part: spent[part] for part in PARTS}


def part_of(event: FunctionEvent) -> str | None:
    """The part of the innermost scope around `event`; None outside a step."""
    operators: list[str] = []
    around: FunctionEvent | None = event
    while around is not None and around.name not in PARTS:
        operators.append(around.name)
        around = around.cpu_parent
    if around is None:
        return None
    if around.name != FORWARD or not operators:
        return str(around.name)
    if OPERATOR in operators:
        return ATTENTION
    return LINEARS if any(map(PRODUCT.match, operators)) else SMALL
