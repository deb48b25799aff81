"""A free port is one that can be had, and that nobody is given who asks for any."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scripts import ports


def first_given(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "ip_local_port_range"
    given.write_text(f"{port}\t60999\n")
    monkeypatch.setattr(ports, "GIVEN", given)


def test_it_lies_below_those_that_the_system_gives_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_given(ports.ASIDE.stop, tmp_path, monkeypatch)
    assert all(ports.free_port() in ports.ASIDE for _ in range(20))


def test_where_the_system_gives_out_those_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_given(ports.ASIDE.start, tmp_path, monkeypatch)
    monkeypatch.setattr(ports, "TRIED", -1)  # no number of any
    with socket.create_server((ports.LOOPBACK, ports.free_port())) as held:
        assert held.getsockname()[1] > 0


def test_one_that_is_held_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_given(2**16, tmp_path, monkeypatch)
    with socket.create_server((ports.LOOPBACK, 0)) as held:
        taken = held.getsockname()[1]
        monkeypatch.setattr(ports, "ASIDE", range(taken, taken + 1))
        monkeypatch.setattr(ports, "TRIED", 1)
        assert ports.free_port() != taken
