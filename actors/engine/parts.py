"""Load a rank's part of a model, once it is known that the parts together are the model.

Whether a plan splits a family rightly is asked of the model itself, as all else is: the first
layers are loaded twice, split over the ranks and whole on rank 0, and must give the same logits.
"""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.utils import logging

from actors.engine.exactness import own_logits, prove_split
from actors.engine.families import refuse
from actors.engine.gang import Gang
from actors.engine.loader import read_config, read_weights, resolve_dtype
from actors.engine.split import check_plan, compute_split

FEWEST = 2
"""Layers that are tried: so many, and more until there is one of each kind."""

LAYER = re.compile(r"\.(\d+)(?:\.(.*))?$")
"""In a module's name: the number of its layer, which is the first in it, and what follows."""


def load_part(folder: Path, dtype: str, device: torch.device, gang: Gang) -> PreTrainedModel:
    """As `load_model`, this rank's part of the model; all ranks load at once.

    Each reads only its part of the files, but for the first layers, which rank 0 reads whole once.
    Raises what `load_model`, `check_plan` and `compute_split` raise, and UnsupportedModel on rank 0
    where the parts together are not the model.
    """
    config = read_config(folder)
    precision = resolve_dtype(dtype, config, device)
    check_plan(config, gang.ranks)
    _prove(folder, first_layers(config), precision, device, gang)
    gc.collect()  # some modules hold themselves in a cycle, and the pool is sized by what is free
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return _part(folder, config, precision, gang)


def _prove(
    folder: Path, config: Any, precision: torch.dtype, device: torch.device, gang: Gang
) -> None:
    with _quiet():
        part = _part(folder, config, precision, gang)
        try:
            split = own_logits(part)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            refuse(part, f"split over ranks, its forward pass fails: {error}")
        if gang.rank == 0:
            whole = read_weights(folder, config, precision, "eager", device_map={"": device})
            prove_split(whole, split)


def _part(folder: Path, config: Any, precision: torch.dtype, gang: Gang) -> PreTrainedModel:
    ranks = DistributedConfig(tp_size=gang.ranks)
    model = read_weights(folder, config, precision, "eager", distributed_config=ranks)
    compute_split(model, gang)
    return model


def first_layers(config: Any) -> Any:
    """The configuration of a model of the first layers alone."""
    first = deepcopy(config)
    text = first.get_text_config()
    kinds = _kinds(config)
    count = min(max(FEWEST, *(kinds.index(kind) + 1 for kind in kinds)), len(kinds))
    for name in _by_layer(text):
        setattr(text, name, getattr(text, name)[:count])
    text.num_hidden_layers = count
    return first


def _kinds(config: Any) -> list[Hashable]:
    """Of each layer what sets it apart: its modules, on which the plan's rules depend (a family may
    begin with dense layers and go on with experts), and what the configuration says of it alone."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    modules: defaultdict[int, set[Hashable]] = defaultdict(set)
    for name, module in model.named_modules():
        if inside := LAYER.search(name):
            modules[int(inside[1])].add((inside[2], type(module)))
    text = config.get_text_config()
    lists = [getattr(text, name) for name in _by_layer(text)]
    layers = range(text.num_hidden_layers)
    return [(frozenset(modules[i]), repr([each[i] for each in lists])) for i in layers]


def _by_layer(text: Any) -> list[str]:
    """The entries of a configuration that are lists with an item for each layer."""
    count = text.num_hidden_layers
    lists = {name: value for name, value in vars(text).items() if isinstance(value, list)}
    return [name for name, value in lists.items() if len(value) == count]


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers would list the weights of every layer that is left out."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
