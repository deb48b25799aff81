"""Numbers on their way from the host to a device, without the host waiting for those before them.

A copy from ordinary memory holds the host up until all that the device was asked for is done. From
pinned memory it does not: torch keeps what it pinned for the next copy, once this one is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """`array` on `device`; on a CPU the same memory."""
    return _staged(array, device).to(device, non_blocking=True)


def upload_rows(arrays: Sequence[NDArray[Any]], device: torch.device) -> Sequence[Tensor]:
    """Several of one length and type, to a GPU in one copy."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return upload(np.stack(arrays), device).unbind()


def refill(target: Tensor, array: NDArray[Any]) -> None:
    """Copy `array` over `target`, of the same shape and type, whose memory stays where it is."""
    target.copy_(_staged(array, target.device), non_blocking=True)


def indices(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Rows or tokens, int64."""
    return upload(np.asarray(numbers, dtype=np.int64), device)


def _staged(array: NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(array)
    return host.pin_memory() if device.type == "cuda" else host
