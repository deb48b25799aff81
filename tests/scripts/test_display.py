"""What a log gets to read of a bring-up: what has changed, and now and then a sign of life."""

from __future__ import annotations

import pytest

from scripts.display import AGAIN_S, Display


class Watch:
    """Time as the test says."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_seconds_that_pass_are_told_once_in_a_while(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Display(watch) as display:
        display.stage("Shards")
        for second in range(40):
            display.tell(f"m/shard-0 is loading for {second} s")
            watch.now += 1
    assert printed(capsys) == [
        "Shards",
        "Shards: m/shard-0 is loading for 0 s",
        "Shards: m/shard-0 is loading for 15 s",
        "Shards: m/shard-0 is loading for 30 s",
    ]


def test_what_changes_is_told_at_once(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    with Display(watch) as display:
        display.stage("Shards")
        for state in ("pending for 1 s", "loading for 0 s", "pending for 0 s (no node)"):
            display.tell(f"m/shard-0 is {state}")
    assert len(printed(capsys)) == 4


def test_another_shard_is_news(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    with Display(watch) as display:
        display.stage("Shards")
        for shard in range(2):
            display.tell(f"m/shard-{shard} is loading for 0 s")
    assert len(printed(capsys)) == 3


def test_what_stays_as_it_is_is_told_once(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    with Display(watch) as display:
        display.stage("Ray")
        display.tell("waits")
        watch.now += 2 * AGAIN_S
        display.tell("waits")
    assert printed(capsys) == ["Ray", "Ray: waits"]


def test_each_stage_is_told_with_the_seconds_it_took(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Display(watch) as display:
        display.stage("Ray")
        watch.now += 2
        display.stage("Shards")
        watch.now += 3
    assert printed(capsys) == ["Ray", "Shards"]
    assert display.seconds == {"Ray": 2.0, "Shards": 3.0}
