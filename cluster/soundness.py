"""Whose trouble it is where numbers are not finite: a request's, or its shard's.

A request's rows in a step are computed apart from all others. Of each chunk the last row, which
sees those before it, is looked at, whether or not a token is wanted: pages of a chunk that was not
are never found. So what goes on finitely beside a flaw speaks for the shard. The rule, where logits
are infinite or none (`NotFinite`):

- Another request in the same step came out well: the model cannot compute the one that did not. It
  is refused, and no other shard is tried, whose weights are the same.
- All requests of the step came out so, and there are several: that is no accident of texts, but
  weights or a device gone bad. The shard fails, as at any other error of a step; its requests are
  tried elsewhere, apart, and one that is the cause after all is refused there.
- There was one request, and so no witness. It is refused: or a text that the model cannot compute
  would end one shard after the other. But the next `ALONE`th that fares so, with nothing computed
  well in between, finds the shard guilty: or one gone bad would be idle, draw all new requests, and
  refuse each of them.

What a request does to finite logits by its own wishes (bias, penalties, bans) tells nothing against
the shard.
"""

from __future__ import annotations

from cluster.errors import DeviceFault, NotFinite
from cluster.steps import StepPlan, StepResult

ALONE = 3
"""Requests in a row that may come out so, each alone in its step, before it is the shard's fault.
The last one is not refused: it is tried elsewhere."""


class Soundness:
    """Judges a shard's steps in their order."""

    def __init__(self) -> None:
        self._alone = 0

    def judge(self, plan: StepPlan, result: StepResult) -> None:
        """Raise DeviceFault where the shard is to blame for a step's flaws, not its requests."""
        if not result.flaws:
            self._alone = 0
            return
        flawed = {
            plan.chunks[number].sequence.request.request_id
            for number, flaw in result.flaws.items()
            if isinstance(flaw, NotFinite)
        }
        if {chunk.sequence.request.request_id for chunk in plan.chunks} - flawed:
            self._alone = 0
            return
        self._alone += 1
        if len(flawed) > 1 or self._alone >= ALONE:
            raise DeviceFault(
                f"no logits are finite, of {len(flawed)} requests in the step and"
                f" {self._alone - 1} before it: the weights on the device, or the device, are bad"
            )
