"""A real shared object in the place of libnvidia-ml, half of which is missing, is read as far as
it goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPILER = shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here")
def test_half_a_library_shows_half_of_the_truth(tmp_path: Path) -> None:
    source = Path(__file__).with_name("half_a_library.c")
    library = tmp_path / "libnvidia-ml.so.1"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
    answer = subprocess.run(
        [sys.executable, "-m", "actors.devices", "--json"],
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    (node,) = json.loads(answer.stdout)["nodes"]
    first, second = node["gpus"]
    assert (first["name"], first["memory_bytes"], first["lost"]) == ("A100", 42949672960, False)
    assert first["compute_capability"] == [8, 0]
    assert [(cut["profile"], cut["memory_bytes"]) for cut in first["slices"]] == [
        ("1g.5gb", 5100273664)
    ]
    assert second["lost"]
    assert f"GPU 1 ({second['uuid']}): memory cannot be read: GPU is lost" in node["warnings"]
    assert "PCI address cannot be read: Function Not Found" in answer.stderr
