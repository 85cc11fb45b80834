"""The rows that a kernel works on at one place of its text, and how it finds the row of another space from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from loadmaster.executor.graph.compiled.triton.source import Block, Function, Register
from loadmaster.models.graph.inline import OF_NODES
from loadmaster.models.graph.spaces import Space, is_coarser

# How a value is seen. From edges and pairs; or as a value of nodes: of the sources or targets of the rows, or, where
# the rows are nodes themselves, of these.
Seen = Literal["edge", "node", "source", "target"]


@dataclass
class Rows:
    """Rows of a space, as a tile of their numbers.

    Attributes:
        mask: which of them there are; None: all.
        block: where what is computed for them is written.
        coarser: rows of a coarser space, to which all of these belong; what depends on these alone is computed there.
        find: finds the rows of another space in another way than by the number of these; None: by that.
        wide: spaces of which offsets need 64 bits.
        memo: what has been computed, by what it is.
    """

    function: Function
    space: Space
    number: Register
    mask: Register | None
    block: Block
    wide: frozenset[Space]
    coarser: Rows | None = None
    find: Callable[[Space], Register] | None = None
    memo: dict[object, Register] = field(default_factory=dict)

    def where(self, of: Space, seen: Seen) -> Rows:
        """The rows on which a value of a space is computed: these, or coarser ones."""
        if self.coarser is not None and self._depends_on(of, seen, self.coarser):
            return self.coarser.where(of, seen)
        return self

    def _depends_on(self, of: Space, seen: Seen, rows: Rows) -> bool:
        if seen in ("source", "target"):
            return is_coarser("one" if of == "one" else seen, rows.space)
        return is_coarser(of, rows.space)

    def index(self, of: Space, seen: Seen) -> Register | None:
        """The row of a space that each row belongs to; None: the only one."""
        if of == "one":
            return None
        if of == self.space and seen in ("edge", "node"):
            return self.number
        if seen == "edge":
            return self._found(of)
        node = self._found(seen) if seen in ("source", "target") else self.number
        return node if of in OF_NODES else self._mapped("node", of, node)

    def _found(self, of: Space) -> Register:
        if of == self.space or (of in OF_NODES and self.space in OF_NODES):
            return self.number
        if self.find is None:
            return self._mapped(self.space, of, self.number)
        key = ("found", of)
        if key not in self.memo:
            self.memo[key] = self.function.named(self.block, self.find(of))
        return self.memo[key]

    def _mapped(self, fine: Space, coarse: Space, number: Register) -> Register:
        key = ("mapped", fine, coarse, number)
        if key not in self.memo:
            name = self.function.parameter(f"{coarse}_of_{fine}", "map", fine, coarse)
            self.memo[key] = self.function.named(self.block, self.function.load(name, number, self.mask_of(number)))
        return self.memo[key]

    def mask_of(self, number: Register) -> Register | None:
        """The mask for what is read at these numbers."""
        return self.mask if self.mask is not None and set(self.mask.axes) <= set(number.axes) else None

    def offset(self, of: Space, seen: Seen, numbers: int) -> Register | None:
        """The offset of the row in a tensor with so many numbers for each row; None: 0."""
        row = self.index(of, seen)
        if row is None:
            return None
        wide = f"({row.code}).to(tl.int64)" if of in self.wide else row.code
        return Register(f"{wide} * {numbers}" if numbers != 1 else wide, row.axes)
