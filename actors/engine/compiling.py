"""Makes the program of a model, which `compiled` finds: `python -m actors.engine.compiling`."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from zipfile import ZipFile

import torch
from filelock import FileLock
from torch._inductor.utils import fresh_cache
from transformers import PreTrainedModel

from actors.children import end_with_parent
from actors.engine import inductor
from actors.engine.compiled import OPTIONS, PARTS, ROWS
from actors.engine.loader import load_model
from actors.engine.runner import PagedModel

MOST_ROWS = 65_536


def compile_model(model: PreTrainedModel, path: Path) -> None:
    """Write the program of `model` to the folder `path`, whole or not at all.

    Raises what torch's exporter and compiler raise for a model, or a machine, they cannot serve.
    """
    exported = _export(model)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_workspace_prefix(path)) as workspace:
        package, program = f"{workspace}/program.pt2", Path(workspace, "program")
        # The compiler's own files are hundreds of MB that nobody needs again.
        with fresh_cache(dir=workspace), torch.no_grad():  # or nothing is frozen
            options = OPTIONS | inductor.prepare(Path(workspace))  # which compiles something, too
            torch._inductor.aoti_compile_and_package(
                exported, package_path=package, inductor_configs=options
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
