"""Builds a shard's engine, or one rank's part of it: weights, device, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from actors.engine.seat import Meeting, Seat
from actors.shard_spec import ShardSpec

if TYPE_CHECKING:
    import torch

    from actors.engine.engine import Engine


def build_engine(spec: ShardSpec, threads: int, meeting: Meeting | None) -> Engine:
    """Raises OperatorError where devices, weights or memory do not allow it.

    With a `meeting`, as rank 0: blocks until the other ranks have come, or raises ShardLost.
    """
    # Here, not above: the fleet imports this file, and torch is the shard's own affair. Ray sets
    # OMP_NUM_THREADS to 1 for an actor of few CPUs; this overrides it for all threads.
    import torch

    torch.set_num_threads(threads)
    from actors.engine.engine import load_engine
    from actors.engine.gang import Gang
    from actors.models import default_cache, ensure_model

    folder, device = ensure_model(spec.model.source), _device(spec)
    gang = Gang(meeting.seat, device, meeting.listener) if meeting is not None else None
    return load_engine(folder, spec.model, device, default_cache() / "programs", gang)


def follow_engine(spec: ShardSpec, threads: Callable[[], int], seat: Seat) -> NoReturn:
    """Be another rank, for ever. Raises as `build_engine`, and ShardLost when a rank is lost."""
    import torch

    torch.set_num_threads(threads())
    from actors.engine import engine
    from actors.engine.gang import Gang
    from actors.models import ensure_model

    folder, device = ensure_model(spec.model.source), _device(spec)
    engine.follow_engine(folder, spec.model, device, Gang(seat, device), threads)


def _device(spec: ShardSpec) -> torch.device:
    import torch

    return torch.device("cuda" if spec.on_gpu else "cpu")
