"""Generated code for one kernel of a schedule: kernels of the GPU, and how each is launched."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property

from loadmaster.executor.graph.compiled.triton.source import Argument, Function, module_text
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import WEIGHT_SPACES
from loadmaster.models.graph.value import GIVEN

# Rows of many tables are numbered by a count that the host knows when it binds a kernel to a graph.
Count = str


@dataclass(frozen=True)
class Scratch:
    """A buffer between two launches, in the type of the arithmetic.

    Attributes:
        name: of the parameter.
        count: the count of its rows.
        numbers: in a row.
    """

    name: str
    count: Count
    numbers: int


@dataclass(frozen=True)
class Launch:
    """Launch of one generated kernel.

    Attributes:
        grid: programs in each dimension: a number, or (count, rows of each program).
        warps: of each program.
        stages: of loads ahead of products.
        fuses: whether products and sums may be rounded once; where values are compared with values that another
            kernel computes again, they may not.
    """

    function: Function
    grid: tuple[int | tuple[Count, int], ...]
    warps: int
    stages: int = 1
    fuses: bool = True


@dataclass(frozen=True)
class Generated:
    """All launches of a kernel, in order.

    Attributes:
        tile_rows: rows of each tile of the table that a typed product reads.
    """

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()
    tile_rows: int = 0

    @cached_property
    def text(self) -> str:
        """The source of a module with all kernels."""
        return module_text(launch.function for launch in self.launches)


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
        program.values[n].reduce in ("max", "min") or _reads_equal(program, n) for n in kernel.stores
    )


def _reads_equal(program: Program, n: int) -> bool:
    waiting, seen = [n], set[int]()
    while waiting:
        i = waiting.pop()
        if program.values[i].op == "equal":
            return True
        if i not in seen:
            seen.add(i)
            waiting += program.values[i].inputs
    return False
