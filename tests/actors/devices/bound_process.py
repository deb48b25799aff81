"""A process that binds itself, says so, and waits to be looked at: CPUs, NUMA node as arguments."""

from __future__ import annotations

import json
import os
import sys
import threading

from actors.devices.binding import Linux, bind


def main() -> None:
    before = threading.Event()
    threading.Thread(target=before.wait, daemon=True).start()
    cpus = [int(cpu) for cpu in sys.argv[1].split(",")]
    bound = bind(cpus, int(sys.argv[2]), Linux())
    after = threading.Event()
    threading.Thread(target=after.wait, daemon=True).start()
    pages = bytearray(64 * 2**20)
    threads = {thread: sorted(os.sched_getaffinity(int(thread))) for thread in _threads()}
    sys.stdout.write(json.dumps({"memory": bound.memory, "threads": threads}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()
    del pages


def _threads() -> list[str]:
    return os.listdir("/proc/self/task")


if __name__ == "__main__":
    main()
