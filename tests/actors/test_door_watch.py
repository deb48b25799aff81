"""Whoever is asked for and not named among the living is gone, and only he."""

from __future__ import annotations

from actors.door_watch import DoorWatch


async def test_a_door_whose_process_is_not_named_any_more_is_gone() -> None:
    gone: list[str] = []
    watch = DoorWatch(lambda: frozenset({"a", "b"}), gone.append, lambda: frozenset({"b", "c"}))
    await watch.look()
    assert gone == ["a"]


async def test_where_nobody_waits_nobody_is_asked_for() -> None:
    def living() -> frozenset[str]:
        raise AssertionError("there was nothing to ask")

    await DoorWatch(frozenset, lambda door: None, living).look()
