"""All that a process started is ended with it, whatever became of those in between."""

from __future__ import annotations

import subprocess
import sys

import psutil

SLEEP = "import time; time.sleep(600)"

# Starts a grandchild whose parent dies at once and a child, ends both, and says who they were.
ENDS_ITS_TREE = """
import subprocess, sys
from scripts.processes import adopt_orphans, end_descendants

adopt_orphans()
sleeper = [sys.executable, "-c", sys.argv[1]]
parent = (
    "import subprocess, sys;"
    "print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid)"
)
orphan = subprocess.check_output([sys.executable, "-c", parent, *sleeper], text=True)
child = subprocess.Popen(sleeper, stdout=subprocess.DEVNULL)
print(end_descendants(), orphan.strip(), child.pid)
"""


def test_children_and_orphans_of_children_are_ended_and_strangers_are_not() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as stranger:
        tree = subprocess.check_output([sys.executable, "-c", ENDS_ITS_TREE, SLEEP], text=True)
        ended, orphan, child = map(int, tree.split())
        assert ended == 2
        assert not psutil.pid_exists(orphan)
        assert not psutil.pid_exists(child)
        assert stranger.poll() is None
        stranger.kill()
