"""What each tenant may spend and has used: token budgets over a sliding window, and counters."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from cluster.errors import LedgerBroken
from cluster.fairness import OutputEstimate
from cluster.messages import Submission
from cluster.scheduling_config import SchedulingConfig, TenantConfig
from cluster.stats import Usage

PARTS = 60
"""A window moves in so many steps: its memory is bounded, and it forgets a 60th late at most."""


@dataclass(slots=True)
class Part:
    """Tokens spent within a 60th of a window; they count until `expires_at`."""

    expires_at: float
    tokens: int = 0


class SlidingWindow:
    """Tokens spent in the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._parts: deque[Part] = deque()
        self._spent = 0

    def spend(self, tokens: int, now: float) -> Part:
        """What comes back later is given back to the part returned."""
        self._expire(now)
        step = self._span_s / PARTS
        expires_at = (math.floor(now / step) + 1) * step + self._span_s
        if not self._parts or self._parts[-1].expires_at < expires_at:
            self._parts.append(Part(expires_at))
        self._parts[-1].tokens += tokens
        self._spent += tokens
        return self._parts[-1]

    def give_back(self, part: Part, tokens: int, now: float) -> None:
        """Tokens of `part` that were not needed after all; negative, it needed more."""
        self._expire(now)
        if part.expires_at > now:
            part.tokens -= tokens
            self._spent -= tokens

    def spent(self, now: float) -> int:
        self._expire(now)
        return self._spent

    def wait_for(self, tokens: int, limit: int, now: float) -> float:
        """Seconds until `tokens` more stay within `limit` if nobody spends any meanwhile.

        What alone exceeds the limit may be spent where nothing else counts. Rounded up to the
        millisecond, so that waiting exactly so long is enough.
        """
        self._expire(now)
        left, wait_s = self._spent, 0.0
        for part in self._parts:
            if left <= max(limit - tokens, 0):
                break
            left -= part.tokens
            wait_s = math.ceil((part.expires_at - now) * 1000.0 + 1.0) / 1000.0
        return wait_s

    def _expire(self, now: float) -> None:
        while self._parts and self._parts[0].expires_at <= now:
            self._spent -= self._parts.popleft().tokens

    def verify(self, owner: str) -> None:
        """Raises LedgerBroken where the sum kept is not that of the parts."""
        counted = sum(part.tokens for part in self._parts)
        if counted != self._spent or len(self._parts) > PARTS + 1:
            raise LedgerBroken(f"budget of {owner}: kept {self._spent}, counted {counted}")


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant's window, what its outputs are like, and what it has used so far."""

    window: SlidingWindow
    outputs: OutputEstimate
    in_hand: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    page_seconds: float = 0.0
    served: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one tenant's configuration, which are asked for several times a request:
    pydantic's fields are slower to read. `holds`: one bounds what it may have on shards."""

    weight: float
    tokens_per_window: int | None
    burst_tokens: int
    max_concurrency: int | None
    max_pages: int | None
    holds: bool


class Reservation(NamedTuple):
    """Tokens set aside for one request until it is known what it needed; without a budget there is
    no `part` to take them from."""

    tenant: str
    part: Part | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Which budget is used up, in words, and in how many seconds it will have room again."""

    message: str
    retry_after_s: float


class Tenants:
    """The ledger of all tenants. Budgets live as long as the scheduler: a new one starts afresh.

    A request reserves its prompt and all the output it asked for, and gets back what it did not
    need: so the wait that a refusal names is true, since nothing that runs can come to cost more.
    No more than `max_tenants` are remembered, but those that have requests in hand all are: of the
    others the one that was heard of last the longest ago is forgotten.
    """

    def __init__(self, config: SchedulingConfig) -> None:
        self._config = config
        self._limits = {tenant.name: _limits(tenant) for tenant in config.tenants}
        self._default = _limits(config.default_tenant)
        self._unknown = self._estimate()
        self._tenants: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._reserved: dict[str, Reservation] = {}

    def limits(self, tenant: str) -> Limits:
        return self._limits.get(tenant, self._default)

    def weight_of(self, tenant: str) -> float:
        return self._limits.get(tenant, self._default).weight

    def expected_output(self, submission: Submission) -> int:
        """Tokens to charge in advance for all its choices."""
        known = self._tenants.get(submission.tenant)
        outputs = known.outputs if known else self._unknown
        return outputs.expect(submission.max_tokens) * submission.choices

    def objection(self, submission: Submission, burst: float, now: float) -> Exhausted | None:
        """Which budget has no room for it; `burst` is the share of the burst it may use."""
        limits = self.limits(submission.tenant)
        if limits.tokens_per_window is None:
            return None
        tenant = self._tenants.get(submission.tenant)
        if tenant is None or submission.request_id in self._reserved:
            return None
        limit = limits.tokens_per_window + math.floor(limits.burst_tokens * burst)
        asked = most_tokens(submission)
        wait_s = tenant.window.wait_for(asked, limit, now)
        if not wait_s:
            return None
        return Exhausted(
            f"tenant {submission.tenant!r} may use {limit} tokens of class {submission.sla} in"
            f" {self._config.budget_window_s:g} s, and {asked} more would exceed that",
            wait_s,
        )

    def reserve(self, submission: Submission, now: float) -> None:
        """It is taken in, to wait or to run."""
        if submission.request_id in self._reserved:
            return
        name, tokens = submission.tenant, most_tokens(submission)
        tenant = self._of(name)
        if not tenant.in_hand:
            del self._idle[name]
        tenant.in_hand += 1
        part = tenant.window.spend(tokens, now) if self.limits(name).tokens_per_window else None
        self._reserved[submission.request_id] = Reservation(name, part, tokens)

    def settle(self, request_id: str, needed: int, now: float) -> None:
        """It is over, or never was served (`needed` 0): the rest is given back."""
        reservation = self._reserved.pop(request_id, None)
        if reservation is None:
            return
        tenant = self._tenants[reservation.tenant]
        if reservation.part is not None:
            tenant.window.give_back(reservation.part, reservation.tokens - needed, now)
        tenant.in_hand -= 1
        if not tenant.in_hand:
            self._idle[reservation.tenant] = None
            self._forget()

    def observe(self, tenant: str, tokens: float) -> None:
        """An output of `tenant` ended after so many tokens."""
        self._of(tenant).outputs.observe(tokens)

    def served(self, name: str, prompt: int, cached: int, output: int, page_s: float) -> None:
        """A request of tenant `name` ended: its tokens, and its pages x seconds."""
        tenant = self._of(name)
        tenant.served += 1
        tenant.prompt_tokens += prompt
        tenant.cached_tokens += cached
        tenant.output_tokens += output
        tenant.page_seconds += page_s

    def refused(self, name: str) -> None:
        self._of(name).refused += 1

    def usage(self) -> dict[str, Usage]:
        """What each tenant that is remembered has used."""
        return {name: _usage(tenant) for name, tenant in self._tenants.items()}

    def spent(self, tenant: str, now: float) -> int:
        """Tokens of its window that are used or reserved."""
        known = self._tenants.get(tenant)
        return known.window.spent(now) if known else 0

    def _of(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            window = SlidingWindow(self._config.budget_window_s)
            tenant = self._tenants[name] = Tenant(window, self._estimate())
            self._idle[name] = None
            self._forget()
        elif not tenant.in_hand:
            self._idle.move_to_end(name)
        return tenant

    def _estimate(self) -> OutputEstimate:
        return OutputEstimate(self._config.expected_output_tokens, self._config.jitter_penalty)

    def _forget(self) -> None:
        """Those that were heard of last the longest ago, where there are too many."""
        while len(self._tenants) > self._config.max_tenants and len(self._idle) > 1:
            name, _ = self._idle.popitem(last=False)
            del self._tenants[name]

    def verify(self) -> None:
        """Raises LedgerBroken where a window or the count of requests in hand does not add up."""
        counted = dict.fromkeys(self._tenants, 0)
        for reservation in self._reserved.values():
            counted[reservation.tenant] += 1
        for name, tenant in self._tenants.items():
            tenant.window.verify(name)
            if counted[name] != tenant.in_hand:
                raise LedgerBroken(f"{name} has {tenant.in_hand} in hand, counted {counted[name]}")
        if self._idle.keys() != {name for name in counted if not counted[name]}:
            raise LedgerBroken(f"tenants: {len(self._idle)} kept as idle, not those that are")

    @property
    def reservations(self) -> frozenset[str]:
        """The requests that tokens are set aside for."""
        return frozenset(self._reserved)


def most_tokens(submission: Submission) -> int:
    """All that it could come to use: its prompt, and its whole output for each choice."""
    return submission.prompt_tokens + submission.max_tokens * submission.choices


def _limits(tenant: TenantConfig) -> Limits:
    return Limits(
        tenant.weight,
        tenant.tokens_per_window,
        tenant.burst_tokens,
        tenant.max_concurrency,
        tenant.max_pages,
        tenant.holds,
    )


def _usage(tenant: Tenant) -> Usage:
    return Usage(
        tenant.prompt_tokens,
        tenant.cached_tokens,
        tenant.output_tokens,
        tenant.page_seconds,
        tenant.served,
        tenant.refused,
    )
