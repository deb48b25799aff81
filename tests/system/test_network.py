"""Machines of a test leave nothing behind, whatever fails while they are made or removed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.system import network
from tests.system.network import Network

TAG = os.getpid() % 100_000


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def left() -> bool:
    return f"shoal-{TAG}-" in ip("netns", "list") or f"shoal{TAG}:" in ip("link", "show")


@pytest.fixture
def taken() -> Iterator[None]:
    """The name of the second machine's cable."""
    if not network.is_possible():
        pytest.skip("needs network namespaces")
    ip("link", "add", f"sh{TAG}-1", "type", "bridge")
    yield
    ip("link", "del", f"sh{TAG}-1")


@pytest.mark.usefixtures("taken")
def test_a_machine_that_cannot_be_wired_takes_all_with_it() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        Network(machines=3)
    assert not left()


def test_a_machine_that_cannot_be_removed_keeps_no_other() -> None:
    if not network.is_possible():
        pytest.skip("needs network namespaces")
    there = Network(machines=3)
    ip("netns", "del", there.machines[1].name)
    with pytest.raises(subprocess.CalledProcessError):
        there.remove()
    assert not left()
