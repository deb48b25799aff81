"""Who multiplies `squares` on this processor, AMX before AVX512-BF16."""

from __future__ import annotations

from actors.engine import dots, tiles

_chosen = tiles if tiles.usable() else dots

begin, end = _chosen.begin, _chosen.end
clear, resume, add, keep = _chosen.clear, _chosen.resume, _chosen.add, _chosen.keep


def usable() -> bool:
    """Whether the processor has either."""
    return tiles.usable() or dots.usable()
