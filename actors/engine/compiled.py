"""A model's forward pass as one compiled program, made once a machine and kept in a folder.

transformers' layers are hundreds of small operations a step, and torch repacks a bf16 weight at
each product. torch's ahead-of-time compiler packs the weights once, writes products for their very
shapes, and fuses the operations between them (docs/performance.md). It takes minutes and a C++
compiler, so a shard answers without it at first: the program is made by another process (`python -m
actors.engine.compiled`) and taken into use between two steps, after its logits were compared with
the model's own.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
import transformers
from filelock import FileLock
from torch._inductor.utils import fresh_cache
from torch.export.pt2_archive._package import AOTICompiledModel
from transformers import PreTrainedModel

from actors.children import end_with_parent, python_path
from actors.engine.attention import SCHEMA
from actors.engine.loader import load_model, precision_name
from actors.engine.quantized import ROUNDING
from actors.engine.runner import Forward, PagedModel

MOST_WEIGHTS = 2 * 2**30
"""Bytes of weights up to which a model is compiled: the program holds a copy of them."""

LEAST_WEIGHTS = 32 * 2**20
"""Below, a step is too short to be worth minutes of compiling."""

ROWS = 32
"""Rows the program is traced with; it computes any number.

The compiler picks each product's tile by it: at 32 AMX's widest, at 16 one that prefills slower."""

MOST_ROWS = 65_536

PARTS = 2
"""Parts of a product for each CPU. Threads take them as they come, so that one which another
process puts aside holds up a part and not half of the product."""

TEMPLATES = ("cpp_gemm_template", "cpp_grouped_gemm_template")
"""Where the compiler says how threads share parts out, which is none of its options."""

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
            [sys.executable, "-m", __name__, str(self.folder), self.dtype, str(self.path)],
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
    versions = (*libraries, SCHEMA, ROUNDING, ROWS, PARTS, sorted(OPTIONS.items()))
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
    a folder that outlives a process that is killed.
    """
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    return AOTICompiledModel(loader)


def compile_model(model: PreTrainedModel, path: Path) -> None:
    """Write the program of `model` to the folder `path`, whole or not at all.

    Raises what torch's exporter and compiler raise for a model, or a machine, they cannot serve.
    """
    exported = _export(model)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_workspace_prefix(path)) as workspace:
        package, program = f"{workspace}/program.pt2", Path(workspace, "program")
        # The compiler's own files are hundreds of MB that nobody needs again.
        with fresh_cache(dir=workspace), torch.no_grad():  # or nothing is frozen
            torch._inductor.aoti_compile_and_package(
                exported, package_path=package, inductor_configs=OPTIONS
            )
        with ZipFile(package) as packed:
            packed.extractall(workspace)
        program.rename(path)


def _workspace_prefix(path: Path) -> str:
    return f".compiling-{path.name}-"


def _export(model: PreTrainedModel) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=1, max=MOST_ROWS)
    kept = torch.export.Dim("kept", min=1, max=MOST_ROWS)
    tokens = torch.arange(ROWS)[None]
    example = (tokens, tokens.clone(), torch.arange(ROWS // 2), torch.zeros(1, dtype=torch.int64))
    with torch.no_grad():
        return torch.export.export(
            PagedModel(model),
            example,
            dynamic_shapes=({1: rows}, {1: rows}, {0: kept}, None),
            strict=False,
        )


def _hand_out_as_they_come() -> None:
    """Rewrite the compiler's templates for this process; what is not found in them stays."""
    import_module("torch._inductor.lowering")  # imports the templates itself, and has to come first
    for name in TEMPLATES:
        template = import_module(f"torch._inductor.codegen.{name}")
        text: str = vars(template)["GEMM_TEMPLATE"]
        vars(template)["GEMM_TEMPLATE"] = text.replace(
            "schedule(static, 1)", "schedule(dynamic, 1)"
        )


def main() -> None:
    """Compile the model of a folder for this machine."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("dtype")
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    end_with_parent()
    os.nice(19)  # streams that are running keep the processor
    # A product has as many parts as threads now, and any number of threads shares them out then.
    torch.set_num_threads(PARTS * (os.cpu_count() or 1))
    _hand_out_as_they_come()
    args.path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{args.path}.lock"):  # shards that start together make it once
        for left in args.path.parent.glob(f"{_workspace_prefix(args.path)}*"):  # of one killed
            shutil.rmtree(left, ignore_errors=True)
        if not args.path.exists():
            device = torch.device("cpu")
            model = load_model(args.folder, args.dtype, device, attn_implementation="eager")
            compile_model(model, args.path)


if __name__ == "__main__":
    main()
