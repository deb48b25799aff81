"""Wishes and a topology become a plan of shards on devices, explained line by line."""

from cluster.placement.planner import place, plan
from cluster.placement.seats import Seats
from cluster.placement.wishes import (
    Kind,
    Missing,
    NewSlice,
    Placement,
    Plan,
    Rank,
    Recut,
    Wish,
)

__all__ = [
    "Kind",
    "Missing",
    "NewSlice",
    "Placement",
    "Plan",
    "Rank",
    "Recut",
    "Seats",
    "Wish",
    "place",
    "plan",
]
