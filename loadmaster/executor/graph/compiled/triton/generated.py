"""Generated code for one kernel of a schedule: kernels of the GPU, how each is launched, and products of tiles."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from loadmaster.executor.graph.compiled.triton.source import Argument, Block, Function, Register
from loadmaster.models.graph.operators import GIVEN
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import WEIGHT_SPACES

# bfloat16, float16: as they are. tf32: one product of TensorFloat-32. tf32x3: three, as precise as float32. sums: as
# sums of products, which any type has.
Precision = Literal["bfloat16", "float16", "tf32", "tf32x3", "sums"]
# Rows of many tables are numbered by a count that the host knows when it binds a kernel to a graph.
Count = str


@dataclass(frozen=True)
class Scratch:
    """A buffer between two launches, in the type of the arithmetic."""

    name: str
    count: Count
    numbers: int


@dataclass(frozen=True)
class Launch:
    """Launch of one generated kernel.

    Attributes:
        grid: programs in each dimension: a number, or (count, rows of each program).
        stages: of loads ahead of products.
        fuses: whether products and sums may be rounded once; not where another kernel computes compared values again.
    """

    function: Function
    grid: tuple[int | tuple[Count, int], ...]
    warps: int
    stages: int = 1
    fuses: bool = True


@dataclass(frozen=True)
class Generated:
    """All launches of a kernel, in order; ``tile_rows``: rows of each tile of the table that a typed product reads."""

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()
    tile_rows: int = 0

    @cached_property
    def text(self) -> str:
        """The source of a module with all kernels."""
        head = "import triton\nimport triton.language as tl\n"
        return head + "".join("\n\n" + launch.function.text() for launch in self.launches)


def held_by(program: Program, kernel: Kernel, kept: Iterable[int]) -> dict[int, Argument]:
    """Values that a kernel reads from memory, with what the parameters for them are bound to."""
    given = (n for n, value in enumerate(program.values) if value.op in GIVEN)
    found: dict[int, Argument] = {n: ("value", n) for n in (*given, *kept)}
    for n in kernel.stores:
        found.pop(n, None)
    return found


def widest_row(program: Program, kernel: Kernel, held: Container[int]) -> int:
    """Numbers of the widest row that a kernel reads, makes on the way or stores; weights aside."""
    found = 1
    waiting, seen = list(kernel.stores), set[int]()
    while waiting:
        n = waiting.pop()
        if n in seen:
            continue
        seen.add(n)
        if program.types[n].space not in WEIGHT_SPACES or n in kernel.stores:
            found = max(found, program.types[n].numbers)
        if n not in held:
            waiting += program.values[n].inputs
    return found


def compares(program: Program, kernel: Kernel) -> bool:
    """Return whether a kernel compares values for equality, or makes values that others compare with."""
    return any(value.op == "equal" for value in program.values) and any(
        program.values[n].reduce in ("max", "min")
        or any(program.values[i].op == "equal" for i in (n, *program.above[n]))
        for n in kernel.stores
    )


def precision(dtype: torch.dtype) -> Precision:
    """The precision of products in a dtype; float32's follows ``torch.set_float32_matmul_precision`` at the build."""
    if dtype == torch.bfloat16:
        return "bfloat16"
    if dtype == torch.float16:
        return "float16"
    if dtype == torch.float32:
        return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return "sums"


def added_product(f: Function, block: Block, total: str, a: Register, b: Register, along: str, how: Precision) -> None:
    """Add to ``total`` the product of a, [rows, along] or [along, rows], and b, [along, columns], over ``along``."""
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
