"""What ends an actor that outlives its owner, once nobody has held it for a while."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

LOOK_S = 0.5


class Tether:
    """Calls `loose` once it has not been held for `slack_s`; never where that is infinite.

    It counts its own looks and reads no clock: while the process is stopped, or too busy to turn
    its loop, those who hold it cannot reach it either, and no time passes here.
    """

    def __init__(self, slack_s: float, loose: Callable[[], None]) -> None:
        """Call it on the event loop, unless the slack is infinite."""
        self._slack_s = slack_s
        self._loose = loose
        self._loose_s = 0.0
        if math.isfinite(slack_s):
            self._task = asyncio.get_running_loop().create_task(self._run())

    def hold(self) -> None:
        self._loose_s = 0.0

    async def _run(self) -> None:
        while self._loose_s < self._slack_s:
            await asyncio.sleep(LOOK_S)
            self._loose_s += LOOK_S
        self._loose()
