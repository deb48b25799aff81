"""Our machine code multiplies as torch does, and a row the same whatever rows are beside it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from actors.engine import products
from actors.engine.products import COLUMNS, STRETCH, Numbers

pytestmark = pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported(), reason="this processor has no AVX512-BF16"
)

Multiply = Callable[[Tensor, Tensor, Tensor, bool], None]
"""Of rows `[rows, depth]` and columns `[depth, COLUMNS]` the products, into the third's sums."""

DEPTHS = (4, 2 * STRETCH, 8 * STRETCH + 20)
"""Less than a stretch, a whole number of them for one kind, and some that are left."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("products")
    products.write_object(folder)
    found, library = folder / products.OBJECT, folder / "products.so"
    subprocess.run(["g++", "-shared", "-o", library, found], check=True)
    return ctypes.CDLL(str(library))


def _multiplier(library: ctypes.CDLL, numbers: Numbers) -> Multiply:
    function = library[numbers.name]
    function.argtypes = [ctypes.c_int64] * 6 + [ctypes.c_bool] + [ctypes.c_void_p] * 3
    function.restype = None

    def multiply(rows: Tensor, columns: Tensor, sums: Tensor, resumed: bool) -> None:
        depth = rows.shape[1]
        in_words = columns.view(depth // numbers.in_word, numbers.in_word, COLUMNS)
        packed = in_words.transpose(1, 2).contiguous()
        sizes = len(rows), COLUMNS, depth, rows.stride(0), COLUMNS, sums.stride(0)
        function(*sizes, resumed, *(each.data_ptr() for each in (rows, packed, sums)))

    return multiply


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("rows", [1, 3, 8, 15, 34])
def test_bytes_and_integers_are_multiplied_exactly(
    library: ctypes.CDLL, rows: int, depth: int
) -> None:
    torch.manual_seed(rows)
    left = torch.randint(0, 256, (rows, depth), dtype=torch.uint8)
    right = torch.randint(-127, 128, (depth, COLUMNS), dtype=torch.int8)
    sums = torch.full((rows, COLUMNS + 5), 7, dtype=torch.int32)
    _multiplier(library, products.BYTES)(left, right, sums[:, :COLUMNS], False)
    assert torch.equal(sums[:, :COLUMNS], left.int() @ right.int())
    assert (sums[:, COLUMNS:] == 7).all(), "wrote beside the square"


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("rows", [1, 3, 8, 15, 34])
def test_pairs_are_multiplied_and_added_to_what_is_there(
    library: ctypes.CDLL, rows: int, depth: int
) -> None:
    left, right = _pairs(rows, depth)
    sums = torch.ones(rows, COLUMNS)
    _multiplier(library, products.PAIRS)(left, right, sums, True)
    exact = 1 + left.double() @ right.double()
    assert (sums - exact).abs().max() < 1e-6 * depth


def test_a_row_does_not_depend_on_the_rows_beside_it(library: ctypes.CDLL) -> None:
    left, right = _pairs(23, 700)
    multiply = _multiplier(library, products.PAIRS)
    together, alone = torch.empty(23, COLUMNS), torch.empty(1, COLUMNS)
    multiply(left, right, together, False)
    for row in range(23):
        multiply(left[row : row + 1], right, alone, False)
        assert torch.equal(alone[0], together[row])


def _pairs(rows: int, depth: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(depth)
    return torch.randn(rows, depth).bfloat16(), torch.randn(depth, COLUMNS).bfloat16()
