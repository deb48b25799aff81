"""Whose turn it is by the tokens each has had: virtual time, and what a request will cost."""

from __future__ import annotations

MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
"""Gains of RFC 6298, section 2: slow enough to be calm, fast enough to follow."""

FORGET_ABOVE = 64


class FairClock:
    """Virtual time of competing flows, charged in tokens: start-time fair queueing.

        start(flow)  = max(virtual time, finish(flow))
        finish(flow) = start(flow) + tokens / weight     once it is served
        virtual time = start of the flow served last

    Goyal, Vin and Cheng, "Start-time fair queueing", SIGCOMM 1996, a kin of Golestani's
    self-clocked fair queueing (INFOCOM 1994); the flow with the smallest start goes next. Over any
    time in which two flows wait, what they get per weight differs by no more than one request of
    each. Who was idle starts at the present and has saved nothing up. As in the virtual token
    counter of Sheng et al. ("Fairness in serving large language models", OSDI 2024), tokens are
    charged as expected and corrected when they are known.
    """

    __slots__ = ("_finish", "_forget_above", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._finish: dict[str, float] = {}
        self._forget_above = FORGET_ABOVE

    def start(self, flow: str) -> float:
        """Where `flow` stands if it begins to wait at this moment."""
        return max(self.now, self._finish.get(flow, 0.0))

    def charge(self, flow: str, start: float, tokens: float, weight: float) -> None:
        """`flow`, which waited and stood at `start`, is served `tokens`."""
        if start > self.now:
            self.now = start
        self._finish[flow] = max(start, self._finish.get(flow, start)) + tokens / weight
        if len(self._finish) > self._forget_above:
            self._forget()

    def serve(self, flow: str, tokens: float, weight: float) -> None:
        """The same for one that did not wait: it stood where it would have begun to."""
        finish = self._finish.get(flow, 0.0)
        if finish > self.now:
            self.now = finish
        self._finish[flow] = self.now + tokens / weight
        if len(self._finish) > self._forget_above:
            self._forget()

    def correct(self, flow: str, tokens: float, weight: float) -> None:
        """It turned out to be so many more, or fewer."""
        self._finish[flow] = self._finish.get(flow, self.now) + tokens / weight

    def _forget(self) -> None:
        """Who stands at the present or before it is as good as unknown."""
        self._finish = {flow: at for flow, at in self._finish.items() if at > self.now}
        self._forget_above = max(FORGET_ABOVE, 2 * len(self._finish))


class OutputEstimate:
    """How long a tenant's outputs will be: their mean, and a surcharge for being hard to foretell.

    mean + `penalty` x mean deviation, both as exponentially weighted in RFC 6298 (Jacobson and
    Karels 1988): who sends now ten tokens and now a thousand is charged more in advance than who is
    even, and gets back what was too much when the output has ended.
    """

    __slots__ = ("_deviation", "_expected", "_mean", "_penalty")

    def __init__(self, prior: float, penalty: float) -> None:
        self._penalty = penalty
        self._mean: float | None = None
        self._deviation = 0.0
        self._expected = prior

    def observe(self, tokens: float) -> None:
        """An output ended after so many tokens."""
        if self._mean is None:
            self._mean, self._deviation = tokens, tokens / 2
        else:
            self._deviation += (abs(tokens - self._mean) - self._deviation) * DEVIATION_GAIN
            self._mean += (tokens - self._mean) * MEAN_GAIN
        self._expected = self._mean + self._penalty * self._deviation

    def expect(self, at_most: int) -> int:
        """Tokens to charge in advance for an output of `at_most`."""
        return at_most if at_most <= self._expected else round(self._expected)
