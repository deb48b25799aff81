"""A shard that ends by itself: who hears what, before it is gone."""

from __future__ import annotations

import pytest

from actors.doors import Doors
from actors.engine_thread import Crash
from actors.last_words import LastWords
from cluster.errors import ShardLost

LONG_S = 3600.0
"""Until it exits: no test lasts as long."""


class Bedside:
    """A shard with two requests of one door, and what the door hears."""

    def __init__(self) -> None:
        self.doors = Doors(timeout_s=10.0, max_backlog=8)
        for request_id in ("in the step", "beside it"):
            self.doors.enter("door", request_id, now=0.0)
        self.dismissed = 0
        self.words = LastWords("s", self.doors, LONG_S, self.dismiss)

    def dismiss(self) -> None:
        self.dismissed += 1

    async def heard(self) -> dict[str, str]:
        """Of each request, the kind of its failure."""
        batch = await self.doors.poll("door", 0, wait_s=0)
        return {one.request_id: getattr(one, "kind", "") for one in batch.deltas}


async def test_who_was_in_the_step_that_failed_is_told_so_and_the_others_go_on_elsewhere() -> None:
    bed = Bedside()
    bed.words.crashed(Crash(RuntimeError("fire"), ("in the step",)))

    assert await bed.heard() == {"in the step": "StepFailed", "beside it": "Displaced"}
    assert bed.words.are_said
    with pytest.raises(ShardLost, match="fire"):
        await bed.words.wait()


async def test_who_has_no_owner_lets_every_request_go_on_elsewhere() -> None:
    bed = Bedside()
    bed.words.adrift()

    assert await bed.heard() == {"in the step": "Displaced", "beside it": "Displaced"}


async def test_where_endless_work_ends_the_shard_has_failed() -> None:
    bed = Bedside()

    async def work() -> None:
        raise ValueError("a bug")

    bed.words.keep_running(work())
    with pytest.raises(ShardLost, match="a bug"):
        await bed.words.wait()


async def test_endless_work_that_ends_without_an_error_has_failed_as_well() -> None:
    bed = Bedside()

    async def work() -> None:
        return

    bed.words.keep_running(work())
    with pytest.raises(ShardLost, match="has ended"):
        await bed.words.wait()


@pytest.mark.parametrize(
    ("error", "kind"), [(MemoryError(), "StepFailed"), (ShardLost("killed"), "Displaced")]
)
async def test_who_was_in_a_step_at_which_another_rank_failed_is_told_so(
    error: Exception, kind: str
) -> None:
    bed = Bedside()

    async def watch() -> None:
        raise error

    bed.words.keep_running(watch(), lambda: ("in the step",))
    with pytest.raises(ShardLost):
        await bed.words.wait()
    assert await bed.heard() == {"in the step": kind, "beside it": "Displaced"}


async def test_who_gives_itself_up_ends_first_what_must_not_outlive_it() -> None:
    bed = Bedside()
    bed.words.adrift()
    assert bed.dismissed == 1
