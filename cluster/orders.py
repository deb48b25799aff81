"""Names in the order of keys that change, kept sorted and looked at often."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from cluster.errors import LedgerBroken

K = TypeVar("K", bound=tuple[Any, ...])


class Order(Generic[K]):
    """The keys of those that have one, sorted; `key_of` tells each one's, None where it has none.

    Whose key may have changed is noted, and put in its place before the next look, so that many
    changes between two looks cost one move.
    """

    def __init__(self, key_of: Callable[[str], K | None], names: Iterable[str]) -> None:
        self._key_of = key_of
        self._keys: dict[str, K] = {}
        self._sorted: list[K] = []
        self._noted = set(names)

    def note(self, names: Iterable[str]) -> None:
        """Their keys may have changed, or they are new, or gone."""
        self._noted.update(names)

    def sorted(self) -> list[K]:
        """All keys, the smallest first; to be read at once, and not to be changed."""
        keys, ordered, key_of = self._keys, self._sorted, self._key_of
        for name in self._noted:
            old, new = keys.pop(name, None), key_of(name)
            if old is not None:
                del ordered[bisect_left(ordered, old)]
            if new is not None:
                keys[name] = new
                insort(ordered, new)
        self._noted.clear()
        return ordered

    def verify(self, names: Iterable[str]) -> None:
        """Raises LedgerBroken where the order is not that of the keys of `names`."""
        keys = [key for name in names if (key := self._key_of(name)) is not None]
        if self.sorted() != sorted(keys):
            raise LedgerBroken(f"order: {len(keys)} keys are not in order, or not up to date")
