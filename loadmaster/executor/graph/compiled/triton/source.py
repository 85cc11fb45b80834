"""The text of one Triton kernel while it is written: blocks of lines, named axes, parameters; and its file.

A line computes a tile with named axes: ``("g", "r", "x64")`` is [rows, rows that belong to each, numbers]. Tiles are
brought to the same axes by name, so that whoever writes an expression need not count dimensions.

Triton reads a kernel's source from its file, and keeps what it compiled by that source. The file's name depends on its
content alone, so the next process, and the next graph, find both.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from loadmaster.executor.steps.user_cache import user_folder
from loadmaster.models.files import write_text

# The environment variable that names the folder.
FOLDER = "LOADMASTER_KERNEL_CACHE"
Argument = tuple[str | int, ...]


class Register(NamedTuple):
    """Name or expression of a tile with these axes, or of a scalar without any."""

    code: str
    axes: tuple[str, ...] = ()


@dataclass
class Block:
    """Lines of one indentation, and blocks inside."""

    lines: list[str | Block] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Append a line at this block's indentation."""
        self.lines.append(line)

    def inside(self, head: str) -> Block:
        """The block that a line such as ``for ...:`` opens."""
        self.lines.append(head)
        found = Block()
        self.lines.append(found)
        return found

    def beside(self) -> Block:
        """A block at this place and of this indentation, which may be added to later."""
        found = _Beside()
        self.lines.append(found)
        return found

    def rendered(self, depth: int) -> list[str]:
        """Lines of the block and those inside, indented from ``depth`` on."""
        found: list[str] = []
        for line in self.lines:
            if isinstance(line, Block):
                found += line.rendered(depth if isinstance(line, _Beside) else depth + 1)
            else:
                found.append("    " * depth + line)
        return found


class _Beside(Block):
    """A block that is no deeper than the one around it."""


@dataclass
class Function:
    """Source of one Triton kernel.

    Attributes:
        real: the type of its arithmetic, ``tl.float32`` or ``tl.float64``.
        sizes: numbers along each axis, powers of two, in the order of the dimensions of tiles.
        arguments: what each parameter is bound to.
    """

    name: str
    real: str
    sizes: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, Argument] = field(default_factory=dict)
    head: Block = field(default_factory=Block)
    body: Block = field(default_factory=Block)
    _names: int = 0

    def parameter(self, name: str, *bound: str | int) -> str:
        """Add a parameter that is bound to this; return its name."""
        self.arguments[name] = bound
        return name

    def of_table(self, table: str, columns: Sequence[str], suffix: str = "") -> None:
        """Load this program's row of a table of a graph: each column becomes a name, with this suffix."""
        self.body.add(f"{table} = tl.program_id(0)")
        for column in columns:
            name = self.parameter(f"{table}_{column}", "table", f"{table}_{column}")
            self.body.add(f"{column}{suffix} = tl.load({name} + {table})")

    def axis(self, name: str, size: int) -> str:
        """Declare an axis of tiles; tiles have their axes in the order in which they are first named here."""
        assert self.sizes.setdefault(name, size) == size, name
        return name

    def union(self, registers: Iterable[Register]) -> tuple[str, ...]:
        """The axes of any of these."""
        found = {axis for register in registers for axis in register.axes}
        return tuple(axis for axis in self.sizes if axis in found)

    def aligned(self, register: Register, axes: Sequence[str]) -> str:
        """A tile as one that has room for these axes too; a scalar as it is."""
        if not register.axes or register.axes == tuple(axes):
            return register.code
        places = ", ".join(":" if axis in register.axes else "None" for axis in axes)
        return f"{atom(register.code)}[{places}]"

    def shape(self, axes: Sequence[str]) -> str:
        """Shape of a tile with these axes, as text."""
        return "[" + ", ".join(str(self.sizes[axis]) for axis in axes) + "]"

    def named(self, block: Block, register: Register) -> Register:
        """Assign an expression to a name of its own."""
        self._names += 1
        name = f"t{self._names}"
        block.add(f"{name} = {register.code}")
        return Register(name, register.axes)

    def combined(self, formula: str, *registers: Register) -> Register:
        """A formula of ``{0}``, ``{1}``, ... number by number."""
        axes = self.union(registers)
        return Register(formula.format(*(self.aligned(r, axes) for r in registers)), axes)

    def both(self, *masks: Register | None) -> Register | None:
        """The mask of where all masks hold; None: everywhere."""
        given = [mask for mask in masks if mask is not None]
        if not given:
            return None
        return self.combined(" & ".join(f"({{{i}}})" for i in range(len(given))), *given)

    def load(self, name: str, offset: Register, mask: Register | None, other: str = "0") -> Register:
        """Load from this parameter at offsets, which have all axes of the mask; ``other`` where it does not hold."""
        where = f"{name} + {offset.code}"
        if mask is None:
            return Register(f"tl.load({where})", offset.axes)
        return Register(f"tl.load({where}, mask={self.aligned_mask(mask, offset.axes)}, other={other})", offset.axes)

    def full(self, register: Register, axes: tuple[str, ...]) -> Register:
        """A tile that has all these axes, repeated over those that it lacks."""
        if register.axes == axes:
            return register
        if not register.axes:
            return Register(f"tl.full({self.shape(axes)}, {register.code}, {self.real})", axes)
        return Register(f"tl.broadcast_to({self.aligned(register, axes)}, {self.shape(axes)})", axes)

    def store(self, block: Block, name: str, offset: Register, value: Register, mask: Register | None) -> None:
        """Writes a value to the parameter of this name, as numbers of its type."""
        axes = self.union((offset, value, *([] if mask is None else [mask])))
        where = f"{name} + {self.aligned(offset, axes)}"
        if offset.axes != axes:
            where = f"tl.broadcast_to({where}, {self.shape(axes)})"
        guard = "" if mask is None else f", mask={self.aligned_mask(mask, axes)}"
        block.add(f"tl.store({where}, ({self.full(value, axes).code}).to({name}.dtype.element_ty){guard})")

    def aligned_mask(self, mask: Register, axes: Sequence[str]) -> str:
        """A mask for tiles with these axes."""
        return (
            mask.code
            if mask.axes == tuple(axes)
            else f"tl.broadcast_to({self.aligned(mask, axes)}, {self.shape(axes)})"
        )

    def text(self) -> str:
        names = ", ".join(self.arguments)
        counts = [name for name, bound in self.arguments.items() if bound[0] == "count"]
        lines = [f"@triton.jit(do_not_specialize={counts!r})", f"def {self.name}({names}):"]
        return "\n".join(lines + self.head.rendered(1) + self.body.rendered(1)) + "\n"


def atom(code: str) -> str:
    """An expression as one that binds tightest."""
    return code if code.isidentifier() else f"({code})"


@cache
def _of_this_process() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="loadmaster-kernels-")


def folder() -> Path:
    """Folder of the sources: in the user's cache, or where the environment says; temporary if that is not writable."""
    said = os.environ.get(FOLDER)
    found = Path(said) if said else user_folder("graph_kernels")
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(_of_this_process().name)
    return found if os.access(found, os.W_OK) else Path(_of_this_process().name)


def written(text: str, where: Path) -> Path:
    """The file of a source, whole: written in one step, and again if it holds anything else."""
    path = where / f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:32]}.py"
    try:
        if path.read_text(encoding="utf-8") == text:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    write_text(path, text, FOLDER)
    return path


@cache
def imported(text: str) -> ModuleType:
    path = written(text, folder())
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
