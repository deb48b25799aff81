"""The report ledger: no event is missed, and none is told twice."""

from __future__ import annotations

import pytest

from actors.engine_thread import Outcome, Snapshot
from actors.reporting import ReportLedger
from cluster.batching import Progress
from cluster.findable import PageEvents
from cluster.messages import ShardRef
from cluster.reports import NO_PREFILLING, HeldRequest, Prefilling, ReportAck, ShardCapacity
from cluster.stats import EngineStats

REF = ShardRef("m/shard-0", "m", "m/shard-0", "life")
FINE, RESYNC = ReportAck(1, resync=False), ReportAck(1, resync=True)
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def outcome(
    started: tuple[str, ...] = (),
    ended: tuple[str, ...] = (),
    stored: tuple[bytes, ...] = (),
    removed: tuple[bytes, ...] = (),
    snapshot: Snapshot | None = None,
    prefilling: Prefilling = NO_PREFILLING,
) -> Outcome:
    stats = EngineStats(0, 0, 0, 10, 4, 1, 5, *(0,) * 17, compiled=False, device_s=0.0)
    progress = Progress(started, ended, (7,) * len(ended), prefilling)
    return Outcome((), progress, PageEvents(stored, removed), stats, snapshot)


def held(request_id: str) -> HeldRequest:
    return HeldRequest(request_id, 8, 8, 1)


@pytest.fixture
def ledger() -> ReportLedger:
    """One that has introduced itself."""
    ledger = ReportLedger(REF, ShardCapacity(4, 10, 8, 64))
    ledger.enter(outcome(snapshot=Snapshot((), ())))
    ledger.draft()
    ledger.acknowledged(FINE)
    return ledger


def test_the_first_report_is_full() -> None:
    ledger = ReportLedger(REF, ShardCapacity(4, 10, 8, 64))
    assert ledger.wants_snapshot
    ledger.enter(outcome(snapshot=Snapshot((held("r"),), (A,))))
    report = ledger.draft()
    assert (report.full, report.held, report.stored) == (True, (held("r"),), (A,))


def test_events_of_several_turns_travel_in_one_report_and_once(ledger: ReportLedger) -> None:
    ledger.enter(outcome(started=("r",), stored=(A,)))
    ledger.enter(outcome(ended=("r",), stored=(B,)))
    report = ledger.draft()
    assert (report.started, report.ended, report.stored) == (("r",), ("r",), (A, B))
    assert report.produced == (7,)
    ledger.acknowledged(FINE)
    assert not ledger.has_news
    assert ledger.draft().stored == ()


def test_pages_alone_are_no_news_but_travel_with_a_start_or_an_end(ledger: ReportLedger) -> None:
    ledger.enter(outcome(stored=(A,)))
    ledger.enter(outcome(removed=(B,)))
    assert not ledger.has_news
    ledger.enter(outcome(ended=("r",)))
    assert ledger.has_news
    report = ledger.draft()
    assert (report.stored, report.removed, report.ended) == ((A,), (B,), ("r",))


def test_what_goes_on_elsewhere_is_displaced_when_it_ends(ledger: ReportLedger) -> None:
    ledger.displace(["moved"])
    ledger.enter(outcome(ended=("done", "moved")))
    report = ledger.draft()
    assert (report.ended, report.produced, report.displaced) == (("done",), (7,), ("moved",))


def test_how_fast_prompts_were_computed_is_told_once(ledger: ReportLedger) -> None:
    ledger.enter(outcome(prefilling=Prefilling(100, 0.5)))
    ledger.enter(outcome(started=("r",), prefilling=Prefilling(20, 0.25)))
    assert ledger.draft().prefilling == Prefilling(120, 0.75)
    ledger.acknowledged(FINE)
    assert ledger.draft().prefilling == NO_PREFILLING


def test_of_a_page_only_the_last_word_counts(ledger: ReportLedger) -> None:
    ledger.enter(outcome(stored=(A,), removed=(B,)))
    ledger.enter(outcome(stored=(B,), removed=(A,)))
    report = ledger.draft()
    assert (report.stored, report.removed) == ((B,), (A,))


def test_events_during_a_report_wait_for_the_next(ledger: ReportLedger) -> None:
    ledger.draft()
    ledger.enter(outcome(ended=("r",)))
    ledger.acknowledged(FINE)
    assert ledger.draft().ended == ("r",)


def test_after_a_lost_report_the_next_waits_for_a_snapshot_and_is_full(
    ledger: ReportLedger,
) -> None:
    ledger.enter(outcome(stored=(A,)))
    ledger.draft()
    ledger.lost()
    assert ledger.wants_snapshot
    assert not ledger.draft().full
    ledger.enter(outcome(stored=(B,), snapshot=Snapshot((), (A, B))))
    report = ledger.draft()
    assert report.full
    assert set(report.stored) == {A, B}


def test_events_between_snapshot_and_report_are_in_it(ledger: ReportLedger) -> None:
    ledger.acknowledged(RESYNC)
    ledger.enter(outcome(snapshot=Snapshot((held("r"), held("s")), (A, B))))
    ledger.enter(outcome(ended=("r",), stored=(C,), removed=(A,)))
    report = ledger.draft()
    assert report.held == (held("s"),)
    assert set(report.stored) == {B, C}


def test_free_pages_count_cached_ones_and_numbers_rise(ledger: ReportLedger) -> None:
    ledger.enter(outcome())
    first, second = ledger.draft(), ledger.draft()
    assert first.free_pages == 6
    assert second.number == first.number + 1


def test_what_ended_before_a_snapshot_is_told_with_it() -> None:
    ledger = ReportLedger(REF, ShardCapacity(4, 10, 8, 64))
    ledger.enter(outcome(ended=("early",)))
    ledger.enter(outcome(ended=("now",), snapshot=Snapshot((), ())))
    report = ledger.draft()
    assert report.full
    assert (report.ended, report.produced) == (("early", "now"), (7, 7))


def test_how_fast_prompts_were_computed_before_a_snapshot_is_told_with_it() -> None:
    ledger = ReportLedger(REF, ShardCapacity(4, 10, 8, 64))
    ledger.enter(outcome(prefilling=Prefilling(100, 0.5)))
    ledger.enter(outcome(snapshot=Snapshot((), ()), prefilling=Prefilling(20, 0.25)))
    report = ledger.draft()
    assert report.full
    assert report.prefilling == Prefilling(120, 0.75)
