"""What is changed of torch's compiler in the process that compiles, as it has no options for it."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch._inductor.lowering  # imports the templates itself, and has to come first
from torch._inductor.codegen.cpp_micro_gemm import (
    CppMicroBrgemm,
    LayoutType,
    generate_gemm_config,
    register_micro_gemm,
)
from torch._inductor.cpu_vec_isa import VecAMX, VecAVX512, VecAVX512VNNI, pick_vec_isa

from actors.engine import products

TEMPLATES = ("cpp_gemm_template", "cpp_grouped_gemm_template")
"""Where the compiler says how threads share parts out."""

SQUARES = [(32, products.COLUMNS, 32), (16, products.COLUMNS, 32)]
"""Rows, columns and depth of what is multiplied at a time. The compiler chooses by the rows."""

_configs: Any = generate_gemm_config  # which, as the next two, is not typed
_register: Any = register_micro_gemm
_Base: Any = CppMicroBrgemm


def prepare(workspace: Path) -> dict[str, Any]:
    """Have it compile as we want it, in this process from now on. Returns the options of it that
    this takes; what they name is written to `workspace`, and needed until all is compiled.
    """
    _hand_out_as_they_come()
    if not multiplies_in_vectors():
        return {}
    _register_squares()
    products.write_object(workspace)
    looked_at = os.environ.get("LIBRARY_PATH", "").split(os.pathsep)  # by the linker
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(workspace), *looked_at]))
    return {"aot_inductor.custom_op_libs": [f":{products.OBJECT}"]}


def _hand_out_as_they_come() -> None:
    """Parts of products go to threads as they come; what is not found in the templates stays."""
    for name in TEMPLATES:
        template = import_module(f"torch._inductor.codegen.{name}")
        text: str = vars(template)["GEMM_TEMPLATE"]
        vars(template)["GEMM_TEMPLATE"] = text.replace(
            "schedule(static, 1)", "schedule(dynamic, 1)"
        )


def multiplies_in_vectors() -> bool:
    """Whether this processor can, and has nothing better."""
    return torch.cpu._is_avx512_bf16_supported() and not isinstance(pick_vec_isa(), VecAMX)


@cache
def _register_squares() -> None:
    """Squares of products are ours (`products`).

    The compiler's own kernel for such processors widens every bfloat16 to float32: half as fast in
    decodes, a fifth in prompts (docs/performance.md).
    """
    pairs = _configs(
        VecAVX512, SQUARES, torch.bfloat16, output_dtype=torch.float, extra_check=_in_words
    )
    integers = _configs(
        VecAVX512VNNI, SQUARES, torch.uint8, torch.int8, torch.int32, extra_check=_in_words
    )
    _register(*pairs, *integers)(_Square)


class _Square(_Base):  # type: ignore[misc]
    """Called as oneDNN's kernel, which the compiler knows, is called."""

    def codegen_define(self, kernel: Any) -> str:
        """The call, after a declaration of what the linker finds in our object."""
        code: str = super().codegen_define(kernel)
        if self.pack_vnni_B_locally:  # weights that are no constants lie otherwise
            return code
        options = self.get_common_options()
        numbers = ", ".join(f"const {options[each]}*" for each in ("input_t", "input2_t"))
        sizes = ", ".join(["int64_t"] * 6)
        declared = (
            f'extern "C" void {self._name}({sizes}, bool, {numbers}, {options["output_t"]}*);'
        )
        code = code.replace("#include <ATen/native/CPUBlas.h>", declared)
        return code.replace("at::native::cpublas::brgemm", self._name)

    @property
    def _name(self) -> str:
        return (products.PAIRS if self.input_dtype == torch.bfloat16 else products.BYTES).name

    def get_b_layout(self) -> LayoutType:
        """Weights lie as words of depth, packed once as the model is frozen."""
        return LayoutType.VNNI2 if self.input_dtype == torch.bfloat16 else LayoutType.VNNI4

    def codegen_finalize(self, kernel: Any) -> str:
        code: str = super().codegen_finalize(kernel)
        return code if self.pack_vnni_B_locally else ""


def _in_words(
    config: Any, _m: object, _n: object, k: int, alpha: float, _threads: int, **_: object
) -> bool:
    in_word = 4 // config.input_dtype.itemsize
    return k % in_word == 0 and alpha == 1
