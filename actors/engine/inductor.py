"""What is changed of torch's compiler in the process that compiles, as it has no options for it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch._inductor.lowering  # imports the templates itself, and has to come first
from torch._inductor.codegen.cpp_micro_gemm import (
    CppMicroBrgemm,
    LayoutType,
    generate_gemm_config,
    register_micro_gemm,
)
from torch._inductor.cpu_vec_isa import VecAMX, VecAVX512, pick_vec_isa

TEMPLATES = ("cpp_gemm_template", "cpp_grouped_gemm_template")
"""Where the compiler says how threads share parts out."""

BLOCKS = [(32, 32, 32), (48, 16, 32), (16, 48, 32)]
"""Rows, columns and depth of the squares that products are computed in; the compiler chooses. They
are its own for the library's half-precision kernels."""


@cache
def prepare() -> None:
    """Have it compile as we want it, in this process from now on."""
    _hand_out_as_they_come()
    _multiply_pairs()


def _hand_out_as_they_come() -> None:
    """Parts of products go to threads as they come; what is not found in the templates stays."""
    for name in TEMPLATES:
        template = import_module(f"torch._inductor.codegen.{name}")
        text: str = vars(template)["GEMM_TEMPLATE"]
        vars(template)["GEMM_TEMPLATE"] = text.replace(
            "schedule(static, 1)", "schedule(dynamic, 1)"
        )


def _multiply_pairs() -> None:
    """In bfloat16, without AMX, squares of products are the library's (oneDNN's brgemm).

    The compiler's own kernel for such processors widens every number to float32: half as fast in
    decodes, a fifth in prompts as pairs multiplied by AVX512-BF16 (docs/performance.md).
    """
    if not torch.cpu._is_avx512_bf16_supported() or isinstance(pick_vec_isa(), VecAMX):
        return
    configs = _configs(
        VecAVX512, BLOCKS, torch.bfloat16, output_dtype=torch.float, extra_check=_in_pairs
    )
    _register(*configs)(_PairedBrgemm)


_configs: Any = generate_gemm_config  # which, as the next, is not typed
_register: Any = register_micro_gemm


class _PairedBrgemm(CppMicroBrgemm):
    def get_b_layout(self) -> LayoutType:
        """Weights lie as pairs of rows, packed once as the model is frozen."""
        return LayoutType.VNNI2


def _in_pairs(
    _config: object, _m: object, _n: object, k: int, alpha: float, _threads: int, **_: object
) -> bool:
    return k % 2 == 0 and alpha == 1
