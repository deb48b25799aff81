"""How many pages the KV pool of a shard gets, how many host memory keeps for it, and how long a
sequence may then be."""

from __future__ import annotations

from pathlib import Path

import torch

from cluster.config import CacheConfig
from cluster.errors import ConfigError

DEFAULT_FRACTION = {"cpu": 0.1, "cuda": 0.9}
"""Of the free memory: on a CPU the pool shares the machine with all else that runs there."""

HOST_SHARE = 0.25
"""Of the node's free memory, at most, for the shards of all its accelerators together, where nobody
said how much."""

GIB = 2**30

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
DRIVER = Path("/proc/driver/nvidia")


def pool_blocks(
    config: CacheConfig, page_bytes: int, free_bytes: float, kind: str, most: int
) -> int:
    """Pages: `num_blocks` as asked, else by `memory_gib`, else by a fraction of `free_bytes`.

    By memory never more than `most`, what all sequences together could fill. `kind` is the
    device's type. Raises ConfigError if not even two pages fit.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    fraction = config.memory_fraction or DEFAULT_FRACTION[kind]
    budget = config.memory_gib * GIB if config.memory_gib is not None else fraction * free_bytes
    blocks = min(int(budget) // page_bytes, most)
    if blocks < 2:
        raise ConfigError(
            f"the KV pool's {budget / GIB:.3g} GiB hold {blocks} pages of {page_bytes} bytes,"
            " and at least 2 are needed",
            "cache.memory_gib" if config.memory_gib is not None else "cache.memory_fraction",
        )
    return blocks


def host_slots(
    config: CacheConfig, page_bytes: int, free_bytes: float, most: int, sharers: int = 1
) -> int:
    """Pages that host memory keeps: by `host_gib`, else within a share of the node's `free_bytes`,
    of which each of `sharers` shards has its part.

    Where nobody said how much, no more than `most`. Raises ConfigError if less than a page fits
    what was asked for.
    """
    if config.host_gib is None:
        slots = min(most, int(HOST_SHARE * free_bytes / sharers) // page_bytes)
        return slots if config.prefix_caching else 0
    slots = int(config.host_gib * GIB) // page_bytes
    if config.host_gib and not slots:
        raise ConfigError(
            f"{config.host_gib:g} GiB hold no page of {page_bytes} bytes", "cache.host_gib"
        )
    return slots


def free_bytes(device: torch.device) -> float:
    """Memory of `device` that nobody uses now; on a CPU what the container's limit leaves, too."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    free = next(int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:")
    return min(free, _left_by_cgroup())


def accelerators(driver: Path = DRIVER) -> int:
    """GPUs of the node, and MIG slices instead of those that are cut: as many shards may share it.

    By the driver's files, since a process sees only the devices that are its own; where there are
    none, those that it sees. At least 1.
    """
    gpus = len(list(driver.glob("gpus/*")))
    slices = list(driver.glob("capabilities/gpu*/mig/gi*"))
    whole = gpus - len({one.parent for one in slices})
    return max(1, whole + len(slices) if gpus else torch.cuda.device_count())


def _left_by_cgroup() -> float:
    """Bytes until the container's own limit, infinite where there is none."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
    except OSError:
        return float("inf")
    return float("inf") if limit == "max" else max(0, int(limit) - used)


def model_len(wanted: int | None, longest: int | None, exact: int | None) -> int:
    """Tokens a sequence may have: as configured, else all that the model can do exactly.

    `longest` is what the model was made for, `exact` where its rotary frequencies start to depend
    on the batch; None means no such bound. Raises ConfigError if more is asked for.
    """
    bounds = {"length up to which the model is exact": exact, "model's positions": longest}
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    for name, bound in known.items():
        if wanted is not None and wanted > bound:
            raise ConfigError(f"{wanted} exceeds the {name}, {bound}", "max_model_len")
    if wanted is None and not known:
        raise ConfigError("the model states no length of its own: give one", "max_model_len")
    return min(known.values()) if wanted is None else wanted


def within_pool(wanted: int | None, possible: int, room: int) -> int:
    """`possible`, or the pool's `room` in tokens if that is less and the length was not asked for.

    Raises ConfigError if it was.
    """
    if wanted is not None and wanted > room:
        raise ConfigError(
            f"one sequence of {wanted} tokens does not fit the KV pool of {room} tokens:"
            " enlarge the pool (cache.num_blocks, cache.memory_gib) or lower max_model_len",
            "max_model_len",
        )
    return min(possible, room)
