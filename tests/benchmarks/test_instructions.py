"""The rate of our own squares is measured where they are what programs multiply by."""

from __future__ import annotations

import pytest
import torch

from actors.engine import inductor
from benchmarks.instructions import own_products


@pytest.mark.skipif(not inductor.multiplies_in_vectors(), reason="products are not ours here")
@pytest.mark.parametrize("integers", [False, True])
def test_a_product_of_the_machine_code_takes_some_time(integers: bool) -> None:
    rate = own_products(integers)
    threads = torch.get_num_threads()
    assert 1e9 < rate / threads < 2e13, "multiplications of a core in a second"


def test_where_programs_multiply_otherwise_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "multiplies_in_vectors", lambda: False)
    assert own_products(integers=False) == 0.0
