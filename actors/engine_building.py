"""Builds a shard's engine: weights, device, threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.config import ModelConfig

if TYPE_CHECKING:
    from actors.engine.engine import Engine


def build_engine(model: ModelConfig, on_gpu: bool, threads: int) -> Engine:
    """Raises OperatorError where devices, weights or memory do not allow it."""
    # Here, not above: the fleet imports this file, and torch is the shard's own affair. Ray sets
    # OMP_NUM_THREADS to 1 for an actor of few CPUs; this overrides it for all threads.
    import torch

    torch.set_num_threads(threads)
    from actors.engine.engine import load_engine
    from actors.models import default_cache, ensure_model

    device = torch.device("cuda" if on_gpu else "cpu")
    programs = default_cache() / "programs"
    return load_engine(ensure_model(model.source), model, device, programs)
