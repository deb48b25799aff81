"""The first signal asks to end; nothing after it interrupts the ending."""

from __future__ import annotations

from signal import SIGINT, SIGTERM

import pytest

from scripts.signals import Asked, Signals


def test_the_first_signal_asks_and_the_others_hurry() -> None:
    signals = Signals()
    with pytest.raises(Asked) as asked:
        signals.receive(SIGTERM)
    assert asked.value.signum == SIGTERM
    assert not signals.hurried
    signals.receive(SIGINT)
    signals.receive(SIGINT)
    assert signals.hurried


def test_a_signal_within_what_must_be_whole_is_heard_after_it() -> None:
    signals, made = Signals(), []

    def make() -> None:
        with signals.held():
            signals.receive(SIGINT)
            made.append("whole")

    with pytest.raises(Asked):
        make()
    assert made == ["whole"]


def test_a_failure_within_what_must_be_whole_is_not_hidden_by_a_signal() -> None:
    signals = Signals()

    def fail() -> None:
        with signals.held():
            signals.receive(SIGINT)
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()


def test_no_signal_interrupts_an_ending_that_began_without_one() -> None:
    signals = Signals()
    signals.only_hurry()
    signals.receive(SIGINT)
    assert signals.hurried
