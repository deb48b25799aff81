"""All that a process started is ended with it, whatever became of those in between."""

from __future__ import annotations

import subprocess
import sys

import psutil

# Starts a grandchild whose parent dies at once, ends its descendants, and says who was ended.
ENDS_ITS_TREE = """
import subprocess, sys
from scripts.processes import adopt_orphans, end_descendants

adopt_orphans()
parent = (
    "import subprocess, sys;"
    "print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE).pid)"
)
orphan = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True).stdout
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(end_descendants(), orphan.strip(), child.pid)
"""


def test_children_and_orphans_of_children_are_ended_and_strangers_are_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        done = subprocess.run(
            [sys.executable, "-c", ENDS_ITS_TREE], capture_output=True, text=True, check=True
        )
        ended, orphan, child = map(int, done.stdout.split())
        assert not psutil.pid_exists(orphan)
        assert not psutil.pid_exists(child)
        assert ended in (1, 2)  # the orphan may have read the end of its stdin by itself
        assert stranger.poll() is None
        stranger.kill()
