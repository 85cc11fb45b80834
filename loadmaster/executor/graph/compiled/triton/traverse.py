"""The traversal template: aggregates of the rows that belong to each row.

Short rows are taken several at a time, [rows, slots] of a program, so that many loads are on their way at once. Rows
longer than a bound are cut into chunks: a program for each leaves partial results, one for each row puts them together
in their order; one hub node then does not hold up the rest. Where there are few rows (relations, node types, one) all
are cut.

Each row of a tile adds to its own slot, and slots meet after the loop. No thread waits for another one inside the loop,
and the order of every sum is that of the rows: results do not change from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadmaster.executor.graph.compiled.triton.expressions import Coordinates, Expressions, Unsupported, store_row
from loadmaster.executor.graph.compiled.triton.generated import Generated, Launch, Scratch, compares
from loadmaster.executor.graph.compiled.triton.rows import Rows, Seen
from loadmaster.executor.graph.compiled.triton.source import Argument, Block, Function, Register
from loadmaster.models.graph.cut import Cut, ceil_power
from loadmaster.models.graph.phases import Phase, phases, softmax_of
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import Space

_LOW, _HIGH = 'float("-inf")', 'float("inf")'


class Accumulators:
    """Accumulators of the aggregates of one pass, as text of a kernel. ``rows`` are the axes of the rows that are added
    up for, ``slots`` is that of the rows that are added."""

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
        sum, the factor that brings them to the present scale."""
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


COMBINED_NUMBERS = 4096  # of partial results that a program puts together at once
COMBINED_WARPS = 4


def traversal(
    program: Program,
    kernel: Kernel,
    held: Mapping[int, Argument],
    cut: Cut,
    ordered: bool,
    wide: frozenset[Space],
    real: str,
) -> Generated:
    """The launches of a traversal; ``ordered``: whether the rows that belong to one row are not contiguous."""
    if kernel.over is None:
        raise Unsupported("a traversal without rows to run over")
    aggregates = tuple(n for n in kernel.stores if program.values[n].op == "aggregate")
    to: Space = program.types[aggregates[0]].space
    made = _Traversal(program, kernel, held, cut, ordered, wide, real, aggregates, to, kernel.over)
    return made.generated()


@dataclass
class _Traversal:
    program: Program
    kernel: Kernel
    held: Mapping[int, Argument]
    cut: Cut
    ordered: bool
    wide: frozenset[Space]
    real: str
    aggregates: tuple[int, ...]
    to: Space
    over: Space

    def generated(self) -> Generated:
        order = phases(self.program, self.aggregates, frozenset(self.held))
        fuses = not compares(self.program, self.kernel)
        warps = self.cut.warps
        launches: list[Launch] = []
        scratch: list[Scratch] = []
        if self.cut.bound != 0:
            launches.append(Launch(self._short(order), (("rows", self.cut.rows),), warps, fuses=fuses))
        if self.cut.bound is not None:
            for at, phase in enumerate(order):
                done = {n: ("stored", n) for earlier in order[:at] for n in earlier.aggregates}
                here = {**self.held, **done}
                launches.append(Launch(self._chunk(phase, at, here), (("chunks", 1),), warps, fuses=fuses))
                is_last = at == len(order) - 1
                combined = self._combined(phase, at, here, is_last)
                launches.append(Launch(combined, (("cut_rows", 1),), COMBINED_WARPS, fuses=fuses))
                for n in phase.aggregates:
                    for part in ("m", "a") if self.program.values[n].reduce == "logsumexp" else ("a",):
                        scratch.append(Scratch(f"part_{part}{n}", "chunks", self.program.types[n].numbers))
        return Generated(tuple(launches), tuple(scratch))

    def _short(self, order: list[Phase]) -> Function:
        f = Function("short_rows", self.real)
        rows, slots = self.cut.rows, self.cut.slots
        e = Expressions(self.program, f, self.held)
        count = f.parameter("count", "count", "rows")
        row_axes = (f.axis("g", rows),)
        f.axis("r", slots)
        f.body.add(f"place = tl.program_id(0) * {rows} + tl.arange(0, {rows})")
        place = Register("place", row_axes)
        row_mask: Register | None = Register(f"place < {count}", row_axes)
        ptr = f.parameter("ptr", "ptr", self.over, self.to, self.cut.by_length)
        first = f.named(f.body, f.load(ptr, place, row_mask))
        last = f.named(f.body, f.load(f"{ptr} + 1", place, row_mask))
        length = f.named(f.body, Register(f"{last.code} - {first.code}", row_axes))
        row = place
        if self.cut.by_length:
            row = f.named(f.body, f.load(f.parameter("rows", "rows", self.over, self.to), place, row_mask))
        store_mask = row_mask
        run = length
        if self.cut.bound is not None:
            is_short = Register(f"{length.code} <= {self.cut.bound}", row_axes)
            store_mask = f.both(row_mask, is_short)
            run = f.named(f.body, Register(f"tl.where({is_short.code}, {length.code}, 0)", row_axes))
        longest = f.named(f.body, Register(f"tl.max({run.code}, axis=0)"))
        to = Rows(f, self.to, row, row_mask, f.body.beside(), self.wide)
        for phase in order:
            to.block = f.body.beside()
            sums = Accumulators(e, phase, row_axes, "r")
            sums.begin(f.body)
            loop = f.body.inside(f"for start in range(0, {longest.code}, {slots}):")
            step = f.named(loop, Register(f"start + tl.arange(0, {slots})", ("r",)))
            mask = f.named(loop, f.combined("{0} < {1}", step, run))
            position = f.named(loop, f.combined("{0} + {1}", first, step))
            self._pass(e, sums, phase, self._over(f, loop, position, mask, to), mask)
            self._finish(e, sums, phase, to, length, store_mask, f.body)
        self._post(e, to, store_mask)
        return f

    def _over(self, f: Function, loop: Block, position: Register, mask: Register, to: Rows) -> Rows:
        number = position
        if self.ordered:
            order = f.parameter("order", "order", self.over, self.to, self.cut.by_length)
            number = f.named(loop, f.load(order, position, mask))

        def find(of: Space) -> Register:
            name = f.parameter(f"{of}_of_{self.over}", "grouped", self.over, self.to, of, self.cut.by_length)
            return f.load(name, position, mask)

        return Rows(f, self.over, number, mask, loop, self.wide, to, find)

    def _pass(self, e: Expressions, sums: Accumulators, phase: Phase, over: Rows, mask: Register) -> None:
        seen: Seen = "node" if self.over == "node" else "edge"
        for n in phase.aggregates:
            x = self.program.values[n].inputs[0]
            tile = e.at(x, sums.where[n], over, seen)
            e_to_x = sums.add(over.block, n, tile, mask)
            if e_to_x is not None:
                for softmax in range(len(self.program.values)):
                    if softmax_of(self.program, softmax) == n:
                        over.memo[(softmax, sums.where[n], seen)] = e_to_x

    def _finish(
        self,
        e: Expressions,
        sums: Accumulators,
        phase: Phase,
        to: Rows,
        length: Register,
        mask: Register | None,
        block: Block,
    ) -> None:
        """Ends the sums of a pass and stores them; what is computed of their rows from here on comes after."""
        found = sums.ended(block, sums.met(block), length)
        to.block = block.beside()
        for n in phase.aggregates:
            e.results[n] = (to, sums.where[n], found[n])
            store_row(e, n, sums.where[n], found[n], to, to.block, mask)

    def _post(self, e: Expressions, to: Rows, mask: Register | None) -> None:
        """Store values of the rows themselves, made from the aggregates."""
        for n in self.kernel.stores:
            if n not in self.aggregates:
                where = e.everywhere(self.program.types[n].shape)
                value = e.at(n, where, to, e.root(n, to))
                store_row(e, n, where, value, to, to.block, mask)

    def _chunk(self, phase: Phase, at: int, held: Mapping[int, Argument]) -> Function:
        f = Function(f"chunk_{at}", self.real)
        slots = self.cut.chunk_slots
        e = Expressions(self.program, f, held)
        f.axis("r", slots)
        f.of_table("chunk", ("row", "first", "last"))
        to = Rows(f, self.to, Register("row"), None, f.body.beside(), self.wide)
        sums = Accumulators(e, phase, (), "r")
        sums.begin(f.body)
        loop = f.body.inside(f"for start in range(first, last, {slots}):")
        position = f.named(loop, Register(f"start + tl.arange(0, {slots})", ("r",)))
        mask = f.named(loop, Register(f"{position.code} < last", ("r",)))
        self._pass(e, sums, phase, self._over(f, loop, position, mask, to), mask)
        met = sums.met(f.body)
        for n in phase.aggregates:
            for part in sums.parts(n):
                place = e.place(self.program.types[n].shape, sums.where[n])
                offset = f.combined(f"chunk.to(tl.int64) * {self.program.types[n].numbers} + {{0}}", place)
                name = f.parameter(f"part_{part}", "scratch", f"part_{part}")
                f.store(f.body, name, offset, met[part], e.mask(sums.where[n]))
        return f

    def _combined(self, phase: Phase, at: int, held: Mapping[int, Argument], is_last: bool) -> Function:
        f = Function(f"combined_{at}", self.real)
        e = Expressions(self.program, f, held)
        widest = max(ceil_power(self.program.types[n].numbers) for n in phase.aggregates)
        slots = max(1, min(64, COMBINED_NUMBERS // widest))
        f.axis("r", slots)
        f.of_table("cut", ("row", "length", "begin", "end"))
        row = Register("row")
        to = Rows(f, self.to, row, None, f.body.beside(), self.wide)
        sums = Accumulators(e, phase, (), "r")
        sums.begin(f.body)
        loop = f.body.inside(f"for start in range(begin, end, {slots}):")
        chunk = f.named(loop, Register(f"start + tl.arange(0, {slots})", ("r",)))
        mask = f.named(loop, Register(f"{chunk.code} < end", ("r",)))
        factors: dict[int, Register] = {}
        for n in phase.aggregates:
            parts = {part: self._partial(e, loop, sums, n, part, chunk, mask) for part in sums.parts(n)}
            if sums.reduce(n) == "logsumexp":
                factor = sums.add(loop, n, parts[f"m{n}"], mask, parts[f"a{n}"])
                assert factor is not None
                factors[n] = factor
            else:
                partner = phase.weighted.get(n)
                sums.add(loop, n, parts[f"a{n}"], mask, None if partner is None else factors[partner])
        self._finish(e, sums, phase, to, Register("length"), None, f.body)
        if is_last:
            self._post(e, to, None)
        return f

    def _partial(
        self, e: Expressions, loop: Block, sums: Accumulators, n: int, part: str, chunk: Register, mask: Register
    ) -> Register:
        f = e.function
        place = e.place(self.program.types[n].shape, sums.where[n])
        offset = f.combined(f"{{0}}.to(tl.int64) * {self.program.types[n].numbers} + {{1}}", chunk, place)
        name = f.parameter(f"part_{part}", "scratch", f"part_{part}")
        return f.named(loop, f.load(name, offset, f.both(mask, e.mask(sums.where[n]))))
