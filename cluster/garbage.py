"""How often Python looks for garbage in the process of the brain, which makes none to be found."""

from __future__ import annotations

import gc

ALLOCATIONS = 7_000
"""So many objects more than before, and the youngest are looked through; by default 700. What the
brain forgets is in no cycle and freed at once, so that a look only follows pointers: 5 to 10 % of
the time that a placement took. Cycles of others are still found, later."""


def collect_seldom() -> None:
    """For a process that is the brain's own: the setting is the whole process's. What exists as it
    begins, modules above all, is never looked through again.
    """
    _, middle, oldest = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, middle, oldest)
    gc.freeze()
