"""What each GPU's layout was before it was cut, kept on disk, so that no death makes us forget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actors.devices.layout import Instance, Layout
from cluster.plain import from_json, to_json

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Page:
    """The layout of one GPU, and in which life of the machine it was found: slices do not outlast
    a boot, so an older page tells of nothing any more."""

    gpu: str
    boot: str
    instances: tuple[Instance, ...]


class LayoutBook:
    """One file for each GPU that was cut and not restored yet. Who cannot write must not cut:
    `enter` raises OSError."""

    def __init__(self, folder: Path, boot_id: Path = BOOT_ID) -> None:
        self._folder = folder
        self._boot = boot_id.read_text().strip() if boot_id.exists() else ""

    def pages(self) -> dict[str, Layout]:
        """Layouts by GPU. A page that cannot be read is left out."""
        pages = [page for path in self._folder.glob("*.json") if (page := _read(path))]
        return {page.gpu: frozenset(page.instances) for page in pages if page.boot == self._boot}

    def enter(self, gpu: str, layout: Layout) -> None:
        """Whole or not at all, whenever the process dies."""
        self._folder.mkdir(parents=True, exist_ok=True)
        instances = tuple(sorted(layout, key=lambda one: (one.start, one.profile)))
        draft = self._path(gpu).with_suffix(".draft")
        draft.write_text(to_json(Page(gpu, self._boot, instances)))
        draft.replace(self._path(gpu))

    def strike(self, gpu: str) -> None:
        """It has its layout again."""
        self._path(gpu).unlink(missing_ok=True)

    def _path(self, gpu: str) -> Path:
        return self._folder / f"{gpu}.json"


def _read(path: Path) -> Page | None:
    try:
        return from_json(Page, path.read_text())
    except (OSError, ValueError):
        return None
