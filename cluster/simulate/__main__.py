"""The command: the only place here that reads a real clock and writes to a terminal."""

from __future__ import annotations

import sys
from time import perf_counter

from cluster.simulate.command import main

if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:], perf_counter))
