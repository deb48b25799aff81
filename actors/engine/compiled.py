"""A model's forward pass as one compiled program, made once a machine and kept in a folder.

transformers' layers are hundreds of small operations a step, and torch repacks a bf16 weight at
each product. torch's ahead-of-time compiler packs the weights once, writes products for their very
shapes, and fuses the operations between them (docs/performance.md). It takes minutes and a C++
compiler, so a shard answers without it at first: the program is made by another process
(`compiling`) and taken into use between two steps, after its logits were compared with the model's
own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.export.pt2_archive._package import AOTICompiledModel
from transformers import PreTrainedModel

from actors.children import python_path
from actors.engine.attention import SCHEMA
from actors.engine.loader import precision_name
from actors.engine.memory import drop_read
from actors.engine.quantized import ROUNDING
from actors.engine.runner import Forward

MOST_WEIGHTS = 2 * 2**30
"""Bytes of weights up to which a model is compiled: the program holds a copy of them."""

LEAST_WEIGHTS = 32 * 2**20
"""Below, a step is too short to be worth minutes of compiling."""

ROWS = 32
"""Rows the program is traced with; it computes any number.

The compiler picks each product's tile by it: at 32 AMX's widest, at 16 one that prefills slower."""

PARTS = 2
"""Parts of a product for each CPU. Threads take them as they come, so that one which another
process puts aside holds up a part and not half of the product."""

PRODUCTS = 3
"""Counts the ways in which products were computed so far (`inductor`), as programs are kept."""

OPTIONS: dict[str, Any] = {
    "freezing": True,  # weights are constants, laid out once as the products read them
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP",  # products are part of the program, no library's
    "cpp.enable_grouped_gemm_template": True,  # gate and up, and what joins them, are one product
    "cpp.dynamic_threads": True,  # the shard decides how many, and changes it as others join
    "cpp.min_chunk_size": 16_384,  # a step of few rows is done before a second thread has woken
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """A program that would serve the model of `folder` better than it does by itself."""

    folder: Path
    dtype: str
    path: Path

    def fulfil(self) -> Forward | None:
        """Make the program unless it is there, and load it. Blocks, minutes; None, logged, if the
        compiler cannot: the model goes on as it is.
        """
        if not self.path.exists() and not self._compile():
            return None
        try:
            return load_program(self.path)
        except RuntimeError as error:
            logger.warning("%s cannot be loaded, serving without it: %s", self.path, error)
            shutil.rmtree(self.path, ignore_errors=True)  # who wishes for it next makes it anew
            return None

    def _compile(self) -> bool:
        made = subprocess.run(
            [
                sys.executable,
                "-m",
                "actors.engine.compiling",
                str(self.folder),
                self.dtype,
                str(self.path),
            ],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": python_path()},
        )
        if made.returncode:
            logger.warning("%s could not be compiled: %s", self.folder, made.stderr[-2000:])
        return made.returncode == 0


def program_wish(folder: Path, model: PreTrainedModel, programs: Path) -> Wish | None:
    """The program for `model`, loaded from `folder`, if one is worth while here."""
    if not _worth_compiling(model):
        return None
    dtype = precision_name(model)
    return Wish(folder, dtype, _program_path(folder, dtype, programs))


def _worth_compiling(model: PreTrainedModel) -> bool:
    size = sum(weight.nbytes for weight in model.parameters())
    return (
        model.device.type == "cpu"
        and LEAST_WEIGHTS <= size <= MOST_WEIGHTS
        and shutil.which(os.environ.get("CXX", "g++")) is not None
    )


def _program_path(folder: Path, dtype: str, programs: Path) -> Path:
    """Where the program for the model in `folder` is kept.

    Its name depends on all that it does: weights, precision, versions, processor.
    """
    files = sorted([folder / "config.json", *folder.glob("*.safetensors")])
    weights = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    libraries = (torch.__version__, transformers.__version__)
    versions = (*libraries, SCHEMA, ROUNDING, ROWS, PARTS, PRODUCTS, sorted(OPTIONS.items()))
    processor = (
        torch.backends.cpu.get_cpu_capability(),
        torch.cpu.get_capabilities(),
        os.cpu_count(),
    )
    identity = repr((folder.name, weights, dtype, versions, processor))
    return programs / f"{folder.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def load_program(path: Path) -> Forward:
    """The program in the folder `path`. Raises RuntimeError.

    The library in it is used where it lies: torch would unpack a package for each process anew, in
    a folder that outlives a process that is killed. Of the weights, which are part of it, torch has
    made a copy by now.
    """
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    drop_read(path)
    return AOTICompiledModel(loader)
