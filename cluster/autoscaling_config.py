"""The knobs of autoscaling: how few and how many shards, and what decides between."""

from __future__ import annotations

from pydantic import Field, model_validator

from cluster.frozen import Frozen


class AutoscalingConfig(Frozen):
    """Bounds of a model's shards and how their number moves between them; see docs/operations.md.

    With `min_shards` 0 a model that nobody asks for sleeps: it has no shard, and the first request
    for it waits for one.
    """

    min_shards: int = Field(1, ge=0, le=4096)
    max_shards: int = Field(ge=1, le=4096)
    target_utilization: float = Field(
        0.65, gt=0, le=1, description="Of places, pages and prefill, whichever is fullest."
    )
    growth: float = Field(4.0, gt=1, description="At most so many times as many shards at once.")
    settle_s: float = Field(
        30.0, ge=0, description="So long after new shards serve, latencies still tell of before."
    )
    down_after_s: float = Field(
        300.0, ge=0, description="Fewer shards have to have been enough for so long, seconds."
    )
    idle_s: float = Field(
        300.0, gt=0, description="With min_shards 0: it sleeps once nobody asked for so long."
    )

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> AutoscalingConfig:
        if self.min_shards > self.max_shards:
            raise ValueError(f"min_shards must not exceed max_shards ({self.max_shards})")
        return self

    @property
    def may_sleep(self) -> bool:
        return not self.min_shards

    def bounded(self, shards: int) -> int:
        return min(max(shards, self.min_shards), self.max_shards)
