"""The knobs of what happens when shards are lost, and when they leave."""

from __future__ import annotations

from pydantic import Field

from cluster.frozen import Frozen


class FailoverConfig(Frozen):
    """What becomes of an accepted request when its shard is lost: it goes on at another one."""

    patience_s: float = Field(
        120.0, ge=0, description="So long it waits for a shard, from one token to the next."
    )
    first_delay_s: float = Field(
        0.05, gt=0, description="Before another shard is asked for; then doubling."
    )
    longest_delay_s: float = Field(2.0, gt=0, description="Bound of that.")
    max_deaths: int = Field(
        32, ge=1, description="Shards that may die while they run it before it is refused."
    )
    watch_s: float = Field(
        1.0, ge=0, description="For each that went silent under it the next first lives so long."
    )


class FleetConfig(Frozen):
    """How shards leave and are replaced, and how long they live without the Fleet."""

    drain_s: float = Field(
        30.0, ge=0, description="So long one that leaves finishes requests; the rest moves then."
    )
    hand_over_s: float = Field(
        5.0, ge=0, description="So long its pages can then be fetched by other shards; 0: never."
    )
    surge: int = Field(
        1, ge=0, le=4096, description="Shards of a model begun beside outdated ones; 0: none."
    )
    orphan_s: float = Field(
        120.0, ge=10, description="Actors that no Fleet and no other of ours holds end after that."
    )
    manage_mig: bool = Field(
        False,
        description="Cut GPUs to have the slices shards want; put the layout back at the end.",
    )
