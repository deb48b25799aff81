"""How often Python looks for garbage in a process of which hardly any makes some."""

from __future__ import annotations

import gc

BRAIN = 7_000
"""So many objects more than before, and the youngest are looked through; by default 700. What the
brain forgets is in no cycle and freed at once, so that a look only follows pointers: 5 to 10 % of
the time that a placement took."""

MIDDLE_LOOKS = 1_000
"""So many looks at the middle generation, and all objects are looked through; by default 10. Each
request that is open holds some 400: with 900 that wait, all streams of a door stood still for 0.6 s
at every look, which came each six seconds and found nothing."""


def collect_seldom(young: int | None = None) -> None:
    """For a process that answers requests: the setting is the whole process's. Garbage among what
    is young is found as before, or each `young` allocations, and among what is old after some
    20,000 requests. What exists now, modules above all, is never looked through again.
    """
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(young or youngest, middle, MIDDLE_LOOKS)
    gc.freeze()
