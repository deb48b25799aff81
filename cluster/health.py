"""When a device must not be trusted any more: two readings of its health, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a program brings on itself, by NVIDIA's table of XIDs: its own next call fails."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """A GPU at one moment, called by what a shard has of it. What was not told is None.

    `ecc_errors`: uncorrected ones since the driver was loaded. `defect`: why it has to be reset or
    replaced. `xids`: numbers of the critical errors that the driver told since the last reading.
    """

    uuid: str
    lost: bool = False
    ecc_errors: int | None = None
    defect: str = ""
    xids: tuple[int, ...] = ()


def faults(before: DeviceHealth, after: DeviceHealth) -> tuple[str, ...]:
    """What befell the device in between that its memory or its results may not have survived."""
    found = []
    if after.lost and not before.lost:
        found.append("it has fallen off the bus")
    new_errors = (after.ecc_errors or 0) - (before.ecc_errors or 0)
    if before.ecc_errors is not None and new_errors > 0:
        found.append(f"{new_errors} uncorrected ECC errors")
    if after.defect and after.defect != before.defect:
        found.append(after.defect)
    found += [f"XID {xid}" for xid in after.xids if xid not in APPLICATION_XIDS]
    return tuple(found)
