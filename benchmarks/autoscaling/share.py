"""Let a process run only a share of the time, so that its speed is its own.

    python -m benchmarks.autoscaling.share PID SHARE

A shard brings a device along; three of them on two cores would bring none. Stopped for the rest of
each period, each computes as fast as one that is alone, as long as the shares leave cores idle.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

PERIOD_S = 0.02


def hold(pid: int, share: float) -> None:
    """Until it ends, or we are asked to; then it runs."""
    process = os.pidfd_open(pid)  # its id may be another's once it has ended
    with suppress(ProcessLookupError, KeyboardInterrupt):
        while True:
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - share))
            signal.pidfd_send_signal(process, signal.SIGCONT)
            time.sleep(PERIOD_S * share)
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGCONT)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hold(int(sys.argv[1]), float(sys.argv[2]))
