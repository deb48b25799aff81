"""A folder stays while anybody lives who was given its lock, and goes with the next start then."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from scripts.run_folder import OWNER, PREFIX, SWEEPING_S, RunFolder, sweep

# Makes a folder in the place it is told, and hands its lock on to a child that waits for stdin.
OWNER_AND_CHILD = """
import subprocess, sys, time
from pathlib import Path
from scripts.run_folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
child = subprocess.Popen(
    waits, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(folder.lock,)
)
print(child.pid, flush=True)
time.sleep(600)
"""


def folders(place: Path) -> list[Path]:
    return sorted(place.glob(f"{PREFIX}*/"))


def left_over(place: Path) -> Path:
    """What somebody leaves who is killed."""
    folder = RunFolder(place)
    (folder.path / "log").touch()
    os.close(folder.lock)
    return folder.path


def test_what_the_dead_have_left_goes_and_what_the_living_have_stays(tmp_path: Path) -> None:
    left_over(tmp_path)
    left_over(tmp_path)
    living = RunFolder(tmp_path)
    sweep(tmp_path)
    assert folders(tmp_path) == [living.path]
    living.remove()
    assert folders(tmp_path) == []


def test_a_folder_stays_until_the_child_of_its_killed_owner_ends_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER_AND_CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = os.pidfd_open(int(owner.stdout.readline()))
        signal.pidfd_send_signal(child, signal.SIGSTOP)  # or it would end with its owner
        owner.kill()
    sweep(tmp_path)
    assert len(folders(tmp_path)) == 1
    signal.pidfd_send_signal(child, signal.SIGKILL)
    assert select.select([child], [], [], 30)[0]  # it is dead
    os.close(child)
    sweep(tmp_path)
    assert folders(tmp_path) == []


def test_what_is_kept_or_bears_another_name_stays(tmp_path: Path) -> None:
    kept = RunFolder(tmp_path)
    kept.keep()
    other = tmp_path / "shoal-other"
    other.mkdir()
    (other / OWNER).touch()
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {kept.path, other}


def test_the_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = left_over(tmp_path)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    sweep(tmp_path)
    assert folders(tmp_path) == [folder]


def test_sweeping_is_given_up_after_a_while(tmp_path: Path) -> None:
    for _ in range(3):
        left_over(tmp_path)
    times = count(0.0, SWEEPING_S)  # each folder takes as long as all may
    sweep(tmp_path, lambda: next(times))
    assert len(folders(tmp_path)) == 2
