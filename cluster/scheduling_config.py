"""The knobs of the central scheduler: classes of service, tenants, placement."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field, model_validator

from cluster.frozen import Frozen


class SlaClass(Frozen):
    """A class of service: its share, its promises and its bounds; earlier ones are higher."""

    name: str = Field(min_length=1)
    tiers: tuple[str, ...] = Field((), description="Values of `service_tier` that mean it.")
    weight: float = Field(1.0, gt=0, description="Share of the tokens where classes compete.")
    ttft_s: float | None = Field(None, gt=0, description="Target: first token, seconds.")
    tpot_s: float | None = Field(None, gt=0, description="Target: each further token, seconds.")
    max_queued: int | None = Field(None, ge=0, description="By default the scheduler's.")
    queue_timeout_s: float = Field(300.0, gt=0, description="So long a request waits at most.")
    aging_s: float = Field(
        30.0, gt=0, description="After that a head that fits nowhere holds up higher classes too."
    )
    fill: float = Field(
        1.0, gt=0, le=1, description="It gets places while fewer than this share are taken."
    )
    burst_share: float = Field(
        1.0, ge=0, le=1, description="How much of a tenant's burst its requests may use."
    )


DEFAULT_CLASSES = (
    SlaClass(
        name="P0",
        tiers=("priority",),
        weight=256.0,
        ttft_s=0.8,
        tpot_s=0.1,
        queue_timeout_s=60.0,
        aging_s=5.0,
    ),
    SlaClass(
        name="P1",
        tiers=("auto", "default"),
        weight=16.0,
        ttft_s=2.0,
        tpot_s=0.2,
        fill=0.9,
        burst_share=0.5,
    ),
    SlaClass(
        name="P2",
        tiers=("flex", "batch"),
        queue_timeout_s=3600.0,
        aging_s=120.0,
        fill=0.75,
        burst_share=0.0,
    ),
)


class TenantConfig(Frozen):
    """What one tenant may use; what is not bounded here is bounded by the queue alone."""

    name: str = Field("", description="As in its keys; empty for `default_tenant`.")
    default_class: str | None = Field(None, description="Of its requests that name none.")
    weight: float = Field(1.0, gt=0, description="Share of the tokens among tenants of a class.")
    tokens_per_window: int | None = Field(None, ge=1, description="Prompt and output tokens.")
    burst_tokens: int = Field(0, ge=0, description="On top, times the class's `burst_share`.")
    max_concurrency: int | None = Field(None, ge=1, description="Requests on shards at once.")
    max_pages: int | None = Field(None, ge=1, description="Pages of its requests at once.")

    @property
    def holds(self) -> bool:
        """Whether there is a bound on what it may have on shards."""
        return self.max_concurrency is not None or self.max_pages is not None


class PlacementConfig(Frozen):
    """What placing a request costs, in tokens; see docs/scheduling.md."""

    decode_tokens: float = Field(64.0, ge=0, description="Cost of a running sequence beside it.")
    page_pressure: float = Field(1.0, ge=0, description="Cost of a prompt token on a full shard.")
    load_weight: float = Field(
        0.25, ge=0, description="Cost of a token of work that a shard already has."
    )
    patience: float = Field(
        4.0, ge=0, description="Prompt tokens waited for to find one token cached."
    )
    affinity_min_tokens: int = Field(
        64, ge=0, description="A cached prefix shorter than this is no reason for a shard."
    )
    explore: float = Field(0.01, ge=0, le=1, description="Share of requests that go by load alone.")
    prefill_window_s: float = Field(
        0.25, gt=0, description="Prompt leased to a shard ahead of its computation, seconds of it."
    )
    prefill_window_tokens: int = Field(
        4096, ge=1, description="The same while the shard's speed is unknown, and at least a half."
    )


class SchedulingConfig(Frozen):
    """The central scheduler."""

    classes: tuple[SlaClass, ...] = Field(DEFAULT_CLASSES, min_length=1)
    default_class: str = "P1"
    tenants: tuple[TenantConfig, ...] = Field((), description="Those with limits of their own.")
    default_tenant: TenantConfig = Field(TenantConfig(), description="Limits of all the others.")
    budget_window_s: float = Field(60.0, gt=0, description="What `tokens_per_window` counts over.")
    max_tenants: int = Field(10_000, ge=1, description="Tenants remembered while idle.")
    expected_output_tokens: float = Field(
        128.0, gt=0, description="Output to charge in advance while a tenant's is unknown."
    )
    jitter_penalty: float = Field(
        1.0, ge=0, description="Mean deviations of a tenant's output charged on top of its mean."
    )
    placement: PlacementConfig = PlacementConfig()
    short_first_s: float = Field(
        0.002, ge=0, description="An uncached prompt token stands its request back so long."
    )
    gather_min_s: float = Field(0.0, ge=0, description="Requests gather so long while busy.")
    gather_max_s: float = Field(0.05, ge=0, description="Requests gather no longer than this.")
    max_explained: int = Field(4096, ge=0, description="Decisions kept to be explained.")
    max_queued: int = Field(
        1024, ge=0, description="Requests of one class waiting before its next gets 429."
    )
    claim_timeout_s: float = Field(
        30.0, gt=0, description="A lease that no shard has seen is looked into."
    )
    heartbeat_s: float = Field(1.0, gt=0, description="A shard reports at least this often.")
    audit_s: float = Field(
        30.0, gt=0, description="So often doors, routers, scheduler and shards compare their books."
    )
    shard_timeout_s: float = Field(10.0, gt=0, description="Silent for so long, a shard is lost.")
    step_timeout_s: float = Field(
        120.0, gt=0, description="A shard whose step takes longer is lost: its device hangs."
    )
    not_ready_timeout_s: float = Field(
        30.0, gt=0, description="So long a request waits while no shard serves its model."
    )
    router_timeout_s: float = Field(
        15.0, gt=0, description="A router that asked nothing for so long is given up."
    )
    max_indexed_pages: int = Field(
        1_000_000, ge=1, description="Bound of the prefix index: pages summed over shards."
    )

    @model_validator(mode="after")
    def _classes_are_consistent(self) -> SchedulingConfig:
        names = [sla.name for sla in self.classes]
        if len(set(names)) != len(names):
            raise ValueError(f"class names must differ, got {names}")
        if self.default_class not in names:
            raise ValueError(f"default_class must be one of {names}, got {self.default_class!r}")
        meant = [tier for sla in self.classes for tier in {sla.name, *sla.tiers}]
        if len(set(meant)) != len(meant):
            raise ValueError(f"a tier or name must mean one class only, got {sorted(meant)}")
        return self

    @model_validator(mode="after")
    def _windows_are_in_order(self) -> SchedulingConfig:
        if self.gather_min_s > self.gather_max_s:
            raise ValueError(f"gather_min_s must not exceed gather_max_s ({self.gather_max_s})")
        return self

    @model_validator(mode="after")
    def _tenants_have_names(self) -> SchedulingConfig:
        names = [tenant.name for tenant in self.tenants]
        if "" in names or len(set(names)) != len(names):
            raise ValueError(f"tenants need names that differ, got {names}")
        classes = {sla.name for sla in self.classes} | {None}
        tenants = (*self.tenants, self.default_tenant)
        strangers = [t.default_class for t in tenants if t.default_class not in classes]
        if strangers:
            raise ValueError(f"default_class of a tenant must be a class, got {strangers}")
        return self


def ranks_of(classes: Iterable[SlaClass]) -> dict[str, int]:
    """How many classes stand above each, by its name; they are configured highest first."""
    return {sla.name: rank for rank, sla in enumerate(classes)}
