"""From a trace to a load: the same for the same seed, with the locality that the trace has."""

from __future__ import annotations

from collections import Counter

from cluster.simulate.traces import TraceRow
from cluster.simulate.workload import Offered, Shape, offered_load

ROWS = tuple(
    TraceRow(3.0 * (number // 4), 512 * (number % 5 + 2), 90, tuple(range(number, number + 7)), 3.0)
    for number in range(200)
)


def names(load: tuple[Offered, ...]) -> list[str]:
    return [one.submission.request_id for one in load]


def test_the_same_seed_gives_the_same_load() -> None:
    assert offered_load(ROWS, Shape(seed=3)) == offered_load(ROWS, Shape(seed=3))


def test_another_seed_gives_other_classes_and_arrivals() -> None:
    one, other = offered_load(ROWS, Shape(seed=3)), offered_load(ROWS, Shape(seed=4))

    assert [o.submission.sla for o in one] != [o.submission.sla for o in other]
    assert [o.arrival_s for o in one] != [o.arrival_s for o in other]


def test_rows_that_the_trace_blurs_together_keep_their_order() -> None:
    assert names(offered_load(ROWS, Shape())) == [f"0-{number}" for number in range(200)]


def test_arrivals_stay_within_what_the_trace_knows_of_them() -> None:
    for one, row in zip(offered_load(ROWS, Shape()), ROWS, strict=True):
        assert 0 <= one.arrival_s - row.arrival_s < row.blur_s


def test_twice_the_speed_is_the_same_load_in_half_the_time() -> None:
    slow, fast = offered_load(ROWS, Shape()), offered_load(ROWS, Shape(speed=2.0))

    assert [one.arrival_s for one in fast] == [one.arrival_s / 2 for one in slow]
    assert [one.submission for one in fast] == [one.submission for one in slow]


def test_lengths_scale_with_the_page_so_that_a_page_stays_a_block() -> None:
    first = offered_load(ROWS, Shape(page_tokens=128))[0]

    assert first.submission.prompt_tokens == 256
    assert first.output_tokens == round(90 / 4)
    assert len(first.submission.page_hashes) == 2


def test_copies_share_no_pages_and_come_at_other_times() -> None:
    load = offered_load(ROWS, Shape(copies=3))
    copies = [[one for one in load if one.submission.request_id.startswith(f"{n}-")] for n in "012"]
    pages = [{page for one in copy for page in one.submission.page_hashes} for copy in copies]

    assert [len(copy) for copy in copies] == [200, 200, 200]
    assert len(pages[0] | pages[1] | pages[2]) == sum(len(each) for each in pages)
    assert len({copy[0].arrival_s for copy in copies}) == 3


def test_the_turns_of_one_session_are_of_one_class_and_tenant() -> None:
    turns = [TraceRow(float(turn), 2048, 10, (0, 77, turn)) for turn in range(20)]
    load = offered_load(turns, Shape(seed=1))

    assert len({(one.submission.sla, one.submission.tenant) for one in load}) == 1


def test_classes_get_their_shares_of_the_sessions() -> None:
    classes = {"P0": 0.5, "P2": 0.5}
    load = offered_load(ROWS, Shape(classes=classes, copies=10))
    found = Counter(one.submission.sla for one in load)

    assert found.keys() == classes.keys()
    assert 900 < found["P0"] < 1100


def test_no_request_says_beforehand_how_long_its_answer_is() -> None:
    rows = (TraceRow(0.0, 512, 40, (0,)), TraceRow(1.0, 512, 400, (1,)))

    assert {one.submission.max_tokens for one in offered_load(rows, Shape())} == {400}
