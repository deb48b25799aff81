"""Where new MIG slices fit on a GPU, and which unused ones have to go for them."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.placement.wishes import NewSlice
from cluster.topology import Gpu, MigProfile, MigSlice

Span = tuple[int, int]
"""First memory slice, and how many."""


def carve(
    gpu: Gpu, wanted: Sequence[str], in_use: frozenset[str]
) -> tuple[tuple[str, ...], tuple[NewSlice, ...]] | None:
    """The unused slices to destroy and the `wanted` profiles to create, None where they don't fit.

    Slices in use never move. An unused one stays where no new slice needs its room.
    """
    profiles = {profile.name: profile for profile in gpu.profiles}
    if any(name not in profiles for name in wanted) or any(cut.start < 0 for cut in gpu.slices):
        return None
    keep = [(cut.start, cut.size) for cut in gpu.slices if cut.uuid in in_use]
    # Compute instances of one GPU instance stand and fall together: one in use keeps them all.
    idle = [cut for cut in gpu.slices if (cut.start, cut.size) not in keep]
    order = sorted((profiles[name] for name in wanted), key=lambda profile: -profile.size)
    found = _fit(order, keep + [(c.start, c.size) for c in idle]) or _fit(order, keep)
    if found is None:
        return None
    spans = [(new.start, profiles[new.profile].size) for new in found]
    return tuple(cut.uuid for cut in idle if _meets(cut, spans)), tuple(found)


def _fit(wanted: Sequence[MigProfile], taken: Sequence[Span]) -> list[NewSlice] | None:
    """Starts for all, found by trying: a GPU has eight memory slices, so there are few ways."""
    if not wanted:
        return []
    first, rest = wanted[0], wanted[1:]
    for start in first.starts:
        span = (start, first.size)
        if not any(_overlap(span, other) for other in taken):
            others = _fit(rest, [*taken, span])
            if others is not None:
                return [NewSlice(first.name, start), *others]
    return None


def _meets(cut: MigSlice, spans: Sequence[Span]) -> bool:
    return any(_overlap((cut.start, cut.size), span) for span in spans)


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[0] + b[1] and b[0] < a[0] + a[1]
