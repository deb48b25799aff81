"""Randomness without a generator: each draw is a hash of the seed and of what it is for."""

from __future__ import annotations

from hashlib import blake2b

SPAN = 2.0**64


def draw(seed: int, *what: str | int) -> float:
    """A uniform number in [0, 1) that depends on nothing but `seed` and `what`.

    So one more draw somewhere leaves all others as they were, and two policies that are compared
    see the same load.
    """
    text = "/".join(str(part) for part in (seed, *what))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") / SPAN
