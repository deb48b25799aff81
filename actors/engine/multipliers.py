"""Who multiplies `squares` on this processor, AMX before AVX512-BF16."""

from __future__ import annotations

from actors.engine import dots, tiles

_chosen = tiles if tiles.usable() else dots

begin, multiply, end = _chosen.begin, _chosen.multiply, _chosen.end


def usable() -> bool:
    """Whether the processor has either."""
    return tiles.usable() or dots.usable()
