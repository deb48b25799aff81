"""Names in the order of keys that change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import LedgerBroken
from cluster.orders import Order

Keys = dict[str, tuple[int, str]]


def order_of(keys: Keys) -> Order[tuple[int, str]]:
    return Order(keys.get, keys)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3) | st.none())))
def test_whatever_changes_it_is_sorted_by_the_keys_there_are(
    changes: list[tuple[str, int | None]],
) -> None:
    keys: Keys = {}
    order = order_of(keys)
    for name, number in changes:
        keys.pop(name, None)
        if number is not None:
            keys[name] = number, name
        order.note([name])
        assert order.sorted() == sorted(keys.values())
    order.verify(keys)


def test_a_key_that_changed_unnoticed_is_found_by_its_check() -> None:
    keys = {"a": (1, "a"), "b": (2, "b")}
    order = order_of(keys)
    order.sorted()
    keys["a"] = 3, "a"
    with pytest.raises(LedgerBroken):
        order.verify(keys)
