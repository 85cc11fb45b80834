"""Products of tiles on tensor cores, as precise as the types and PyTorch's settings ask for."""

from __future__ import annotations

from typing import Literal

import torch

from loadmaster.executor.graph.compiled.triton.source import Block, Function, Register

# bfloat16, float16: as they are. tf32: one product of TensorFloat-32. tf32x3: three, as precise as float32. sums: as
# sums of products, which any type has.
Precision = Literal["bfloat16", "float16", "tf32", "tf32x3", "sums"]


def precision(dtype: torch.dtype) -> Precision:
    """The precision of products in a layer of this dtype.

    That of float32 follows ``torch.set_float32_matmul_precision`` when a kernel is built.
    """
    if dtype == torch.bfloat16:
        return "bfloat16"
    if dtype == torch.float16:
        return "float16"
    if dtype == torch.float32:
        return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return "sums"


def added_product(f: Function, block: Block, total: str, a: Register, b: Register, along: str, how: Precision) -> None:
    """Adds to ``total`` the product of two tiles, summed along an axis: the second of a's, or the first of both.

    Args:
        a: [rows, along] or [along, rows].
        b: [along, columns].
    """
    rows = next(axis for axis in a.axes if axis != along)
    (columns,) = (axis for axis in b.axes if axis != along)
    if how == "sums":
        product = f.combined("{0} * {1}", a, b)
        order = product.axes
        kept = [axis for axis in order if axis != along]
        assert kept == [rows, columns]
        block.add(f"{total} += tl.sum({product.code}, axis={order.index(along)})")
        return
    left, right = (_typed(x, how) for x in (a, b))
    if a.axes == (along, rows):
        left = f"tl.trans({left})"
    option = f', input_precision="{how}"' if how in ("tf32", "tf32x3") else ""
    block.add(f"{total} = tl.dot({left}, {right}, {total}{option})")


def _typed(x: Register, how: Precision) -> str:
    return f"({x.code}).to(tl.{how})" if how in ("bfloat16", "float16") else f"({x.code})"
