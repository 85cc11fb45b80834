"""Sums of one pass over rows, slot by slot: each row of a tile adds to its own slot, and slots meet after the loop.

No thread waits for another one inside the loop, and the order of every sum is that of the rows: results do not change
from run to run. A pass runs over the rows themselves, or over partial results of chunks of them.
"""

from __future__ import annotations

from loadmaster.executor.graph.compiled.triton.expressions import Coordinates, Expressions
from loadmaster.executor.graph.compiled.triton.source import Block, Register
from loadmaster.models.graph.phases import Phase

_LOW, _HIGH = 'float("-inf")', 'float("inf")'


class Accumulators:
    """Accumulators of the aggregates of one pass, as text of a kernel. ``rows`` are the axes of the rows that are added
    up for, ``slots`` is that of the rows that are added.
    """

    def __init__(self, e: Expressions, phase: Phase, rows: tuple[str, ...], slots: str) -> None:
        self.e, self.f, self.phase, self.slots = e, e.function, phase, slots
        self.where: dict[int, Coordinates] = {n: self._where(n) for n in phase.aggregates}
        self.axes: dict[int, tuple[str, ...]] = {
            n: self.f.union([Register("", (*rows, slots)), *(c.at for c in at)]) for n, at in self.where.items()
        }
        self._scales: dict[int, Register] = {}

    def _where(self, n: int) -> Coordinates:
        if n not in self.phase.joined:
            return self.e.everywhere(self.e.program.types[n].shape)
        heads, size = self.phase.joined[n]
        return (self.e.joined(self.e.everywhere((heads, size)), size),)

    def reduce(self, n: int) -> str:
        """Return the name of an aggregate's reduction, such as ``max`` or ``logsumexp``."""
        return self.e.program.values[n].reduce or "sum"

    def parts(self, n: int) -> tuple[str, ...]:
        """Names of what an aggregate keeps while it runs."""
        return (f"m{n}", f"a{n}") if self.reduce(n) == "logsumexp" else (f"a{n}",)

    def begin(self, block: Block) -> None:
        """Write the lines that set all accumulators to their start."""
        for n in self.phase.aggregates:
            shape, real = self.f.shape(self.axes[n]), self.f.real
            reduce = self.reduce(n)
            if reduce == "logsumexp":
                block.add(f"m{n} = tl.full({shape}, {_LOW}, {real})")
            start = {"max": _LOW, "min": _HIGH}.get(reduce, "0.0")
            block.add(f"a{n} = tl.full({shape}, {start}, {real})")

    def add(self, block: Block, n: int, x: Register, mask: Register, weight: Register | None = None) -> Register | None:
        """Write the lines that add a tile to an aggregate; of a logsumexp, return e to the x at the current scale.

        ``weight`` goes with partial results: for a logsumexp, the sum that x is the scale of; for a softmax-weighted
        sum, the factor that brings them to the present scale.
        """
        reduce, axes, f = self.reduce(n), self.axes[n], self.f
        none = {"max": _LOW, "logsumexp": _LOW, "min": _HIGH}.get(reduce, "0.0")
        if weight is not None and reduce != "logsumexp":
            x = f.combined("{0} * {1}", x, weight)
        chosen = f.combined(f"tl.where({{0}}, {{1}}, {none})", mask, x)
        tile = f.named(block, f.full(chosen, axes))
        if reduce in ("max", "min"):
            block.add(f"a{n} = tl.{reduce}imum(a{n}, {tile.code})")
        elif reduce == "logsumexp":
            return self._add_exponential(block, n, tile, weight)
        elif n in self.phase.weighted:
            scale = self._scales[self.phase.weighted[n]]
            block.add(f"a{n} = a{n} * {f.aligned(scale, axes)} + {tile.code}")
        else:
            block.add(f"a{n} += {tile.code}")
        return None

    def _add_exponential(self, block: Block, n: int, tile: Register, weight: Register | None) -> Register:
        f, axes = self.f, self.axes[n]
        greatest = f.named(block, Register(f"tl.maximum(m{n}, {tile.code})", axes))
        # Before the first row any finite scale gives zeros; minus infinity would give NaN.
        scale = f.named(block, Register(f"tl.where({greatest.code} == {_LOW}, 0.0, {greatest.code})", axes))
        self._scales[n] = f.named(block, Register(f"tl.exp(m{n} - {scale.code})", axes))
        e_to_x = f.named(block, Register(f"tl.exp({tile.code} - {scale.code})", axes))
        term = e_to_x.code if weight is None else f"{e_to_x.code} * {f.aligned(weight, axes)}"
        block.add(f"a{n} = a{n} * {self._scales[n].code} + {term}")
        block.add(f"m{n} = {greatest.code}")
        return e_to_x

    def met(self, block: Block) -> dict[str, Register]:
        """Reduce over the slots: by name of part; sums that go with a logsumexp are on the scale of its m."""
        found: dict[str, Register] = {}
        brought: dict[int, Register] = {}
        f = self.f
        for n in self.phase.aggregates:
            axes, reduce = self.axes[n], self.reduce(n)
            axis = axes.index(self.slots)
            rest = tuple(a for a in axes if a != self.slots)
            code = f"a{n}"
            if reduce == "logsumexp":
                greatest = f.named(block, Register(f"tl.max(m{n}, axis={axis})", rest))
                scale = f.named(block, Register(f"tl.where({greatest.code} == {_LOW}, 0.0, {greatest.code})", rest))
                brought[n] = f.named(block, f.combined("tl.exp({0} - {1})", Register(f"m{n}", axes), scale))
                found[f"m{n}"] = greatest
            partner = n if reduce == "logsumexp" else self.phase.weighted.get(n)
            if partner is not None:
                code = f"a{n} * {f.aligned(brought[partner], axes)}"
            operator = reduce if reduce in ("max", "min") else "sum"
            found[f"a{n}"] = f.named(block, Register(f"tl.{operator}({code}, axis={axis})", rest))
        return found

    def ended(self, block: Block, met: dict[str, Register], count: Register) -> dict[int, Register]:
        """The aggregates; zeros where there is no row."""
        found: dict[int, Register] = {}
        f = self.f
        for n in self.phase.aggregates:
            value, reduce = met[f"a{n}"], self.reduce(n)
            if reduce == "logsumexp":
                value = f.combined("{0} + tl.log({1})", met[f"m{n}"], value)
            if n in self.phase.weighted:
                value = f.combined("{0} / {1}", value, met[f"a{self.phase.weighted[n]}"])
            if reduce == "mean":
                value = f.combined("{0} / tl.maximum({1}, 1)", value, count)
            value = f.combined("tl.where({1} > 0, {0}, 0.0)", value, count)
            found[n] = f.named(block, value)
        return found
