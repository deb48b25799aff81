"""The squares that attention of prompts is made of: 32 rows by 32 columns, 32 numbers deep.

Rows are bfloat16 numbers, 32 each, some `stride` apart. Columns are two halves of 16, one after the
other; of a half the pairs of numbers `2i` and `2i + 1` lie side by side, and the 16 columns' pair
`i` before their pair `i + 1`. Sums are float32, 32 rows of 32 one after the other.

Who multiplies them has (`tiles`, `dots`): `begin` and `end` around the work of a thread; and
`multiply`, which sums up the products of `count` squares, those of `rows` some `apart`, those of
`columns` one after the other, and adds to the sums that are there if `resumed`.
"""

from __future__ import annotations

from actors.engine.jit import helper

TOKENS = 32
"""Numbers in a row: as many tokens as are summed over at once."""

ROWS = 16
"""Columns of a half."""

BLOCK = 2 * ROWS
"""Rows of a prompt that are computed at once."""

HALF_BLOCK = ROWS * TOKENS
"""Numbers in a half."""

SQUARE = 2 * HALF_BLOCK
"""Numbers in a square of columns."""

PART = 256
"""Tokens whose scores are computed before their weights: they stay in the nearest cache."""


@helper
def padded(dim: int) -> int:
    """`dim` numbers as whole rows."""
    return -(-dim // TOKENS) * TOKENS
