"""Cost model of a kernel: bytes, products and steps, and the time that they take on a GPU.

    time = max(DRAM bytes / bandwidth, cache bytes / bandwidth, matrix FLOP / rate + values made / rate)
           + steps * step + launches * launch

*Bytes.* What is stored, and what is read: :mod:`.reading`.

*Products.* A tile of rows has one relation: each relation's last tile is padded. Each tile reads the weight through the
cache. An outer product transposes its rows first, at two thirds of the rate. Values made on the way for the rows of a
product delay it; elsewhere they cost nothing but their reads: they are computed while the kernel waits for these.

*Steps.* The program that takes longest ends the kernel, and its steps count: it runs over a row that is not cut, or a
chunk, in steps, each of which waits for memory (:mod:`.cut`). An aggregate that needs another one of its kernel runs
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loadmaster.models.graph.cut import chunk_rows, cut_of
from loadmaster.models.graph.device import GraphHardware
from loadmaster.models.graph.inline import Need, required
from loadmaster.models.graph.lowering import kernel_of, template_of
from loadmaster.models.graph.operators import OPERATORS
from loadmaster.models.graph.phases import phases
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.reading import Reading
from loadmaster.models.graph.schedule import MOST_STORES, Kernel, Template, Tile
from loadmaster.models.graph.spaces import WEIGHT_SPACES
from loadmaster.models.graph.statistics import GraphStatistics

# Rows of an outer product that a program takes at once.
OUTER_ROWS = 32
OUTER_SLOWER = 1.5
# Part of a step where rows are taken in the order of memory: their numbers need not be read first.
STEP_AS_THEY_LIE = 0.5
# The parts of a tile on which the time of a template depends.
_COUNTED: Mapping[Template, tuple[str, ...]] = {"gemm": ("rows",), "traverse": ("rows", "warps")}


@dataclass(frozen=True)
class Work:
    """Work of a kernel, in the quantities that its time depends on.

    Attributes:
        dram_bytes, l2_bytes: moved between the GPU's memory and its cache; between the cache and the kernel.
        stored_bytes: part of them that it stores.
        matrix_flops, outer_flops: of products; of these, of outer products.
        made: values that are made for the rows of a product.
        steps: of the program that takes longest.
    """

    dram_bytes: float
    l2_bytes: float
    stored_bytes: int
    matrix_flops: float = 0.0
    outer_flops: float = 0.0
    made: float = 0.0
    steps: float = 0.0
    launches: int = 1

    def terms_us(self, hardware: GraphHardware, element_bytes: int) -> tuple[float, float, float]:
        """Time of each resource, us: memory, cache and arithmetic; a kernel waits for the slowest."""
        flops = self.matrix_flops + (OUTER_SLOWER - 1.0) * self.outer_flops
        return (
            self.dram_bytes / (hardware.dram_gbps * 1e3),
            self.l2_bytes / (hardware.l2_gbps * 1e3),
            flops / (hardware.matrix_rate(element_bytes) * 1e6) + self.made / hardware.made_per_us,
        )

    def time_us(self, hardware: GraphHardware, element_bytes: int) -> float:
        """Estimated time of the kernel, us."""
        waits_us = self.steps * hardware.step_us + self.launches * hardware.launch_us
        return max(self.terms_us(hardware, element_bytes)) + waits_us


class Costs:
    """Costs of a program's kernels on a graph."""

    def __init__(
        self, program: Program, statistics: GraphStatistics, element_bytes: int, hardware: GraphHardware
    ) -> None:
        self.program, self.statistics = program, statistics
        self.element_bytes, self.hardware = element_bytes, hardware
        self._reading = Reading(program, statistics, element_bytes, hardware.l2_bytes)

    def value_bytes(self, n: int) -> int:
        """Bytes of a value that is kept or given."""
        typed = self.program.types[n]
        return self.statistics.rows(typed.space) * typed.numbers * self.element_bytes

    def cold_bytes(self, n: int) -> float:
        """Bytes of a stored value that go to the GPU's memory."""
        size = self.value_bytes(n)
        return size * self._reading.cold(size)

    def fastest(self, kernel: Kernel, need: Need) -> tuple[Kernel, float]:
        """Cut a kernel into the device's tiles that take least time, and return the time; of equal ones, by rule."""
        of, parts = self._by_tile(kernel, need), _COUNTED.get(kernel.template, ())
        different: dict[tuple[int, ...], Tile] = {}
        for tile in self.hardware.tiles.of(kernel.template).from_(kernel.tile):
            different.setdefault(tuple(getattr(tile, part) for part in parts), tile)
        times = [(of(tile).time_us(self.hardware, self.element_bytes), tile) for tile in different.values()]
        time_us, tile = min(times, key=lambda timed: timed[0])
        return replace(kernel, tile=tile), time_us

    def work(self, kernel: Kernel, need: Need) -> Work:
        return self._by_tile(kernel, need)(kernel.tile)

    def _by_tile(self, kernel: Kernel, need: Need) -> Callable[[Tile], Work]:
        stored = sum(self.value_bytes(n) for n in kernel.stores)
        dram, cache = self._reading.bytes(kernel, need)
        found = Work(dram + sum(map(self.cold_bytes, kernel.stores)), cache + stored, stored)
        if kernel.template in ("gemm", "outer", "fold"):
            return self._product(kernel, need, found)
        return self._traversal(kernel, need, found) if kernel.template == "traverse" else lambda _: found

    def _traversal(self, kernel: Kernel, need: Need, work: Work) -> Callable[[Tile], Work]:
        over, to = kernel.over or kernel.rows, kernel.rows
        over_rows, longest = self.statistics.rows(over), self.statistics.longest_row(over, to)
        to_rows, widest = self.statistics.rows(to), self._widest(kernel, need)
        aggregates = tuple(n for n in kernel.stores if self.program.values[n].op == "aggregate")
        passes = len(phases(self.program, aggregates, need.reads - {*kernel.stores})) if len(aggregates) > 1 else 1

        def of(tile: Tile) -> Work:
            cut = cut_of(tile, widest, to, over_rows, to_rows, longest)
            if cut.bound == 0:
                steps = STEP_AS_THEY_LIE * min(longest, chunk_rows(over_rows)) / cut.chunk_slots
            else:
                steps = min(longest, cut.bound or longest) / cut.slots
            launches = (cut.bound != 0) + (0 if cut.bound is None else 2 * passes)
            return replace(work, steps=passes * steps, launches=launches)

        return of

    def _widest(self, kernel: Kernel, need: Need) -> int:
        """Width of the widest row that a kernel reads, makes or stores, without weights."""
        types = self.program.types
        read = (types[n].numbers for n in need.reads | need.inline if types[n].space not in WEIGHT_SPACES)
        return max(*read, *(types[n].numbers for n in kernel.stores), 1)

    def _product(self, kernel: Kernel, need: Need, work: Work) -> Callable[[Tile], Work]:
        values = [n for n in kernel.stores if OPERATORS[self.program.values[n].op].sort != "map"]
        (n,) = [n for n in values if self.program.values[n].op in ("linear", "outer", "fold")]
        of = self.program.values[n]
        if of.op == "fold":
            flops = 2.0 * self.program.types[of.inputs[0]].numbers * self.program.types[n].shape[-1]
            folded = replace(work, matrix_flops=flops * self.statistics.rows(kernel.rows))
            return lambda _: folded
        space = kernel.over or kernel.rows
        weight = self.program.types[n if of.op == "outer" else of.inputs[1]]
        types: Sequence[int] = (self.statistics.rows(space),)
        if weight.space != "one":
            types = self.statistics.by_type(space)
        made = float(self._made(need) * self.statistics.rows(space))
        if of.op == "linear":

            def typed(tile: Tile) -> Work:
                rows, tiles = _padded(types, tile.rows)
                through = float(tiles * weight.numbers * self.element_bytes)
                flops = 2.0 * rows * weight.numbers
                return replace(work, matrix_flops=flops, made=made, l2_bytes=work.l2_bytes + through)

            return typed
        chunk = chunk_rows(self.statistics.rows(space))
        rows, _ = _padded(types, OUTER_ROWS)
        # Every chunk leaves its sum, for another launch to add up.
        moved = 2.0 * sum(math.ceil(count / chunk) for count in types) * weight.numbers * 4
        flops = 2.0 * rows * weight.numbers
        summed = replace(
            work,
            matrix_flops=flops,
            outer_flops=flops,
            made=made,
            l2_bytes=work.l2_bytes + moved,
            steps=min(chunk, max(types)) / OUTER_ROWS,
            launches=2,
        )
        return lambda _: summed

    def _made(self, need: Need) -> int:
        """Count the values of a row that are made of several others; one made of a single value is not counted."""
        return sum(len(self.program.values[v].inputs) > 1 for v in need.inline)


def _padded(types: Iterable[int], tile: int) -> tuple[int, int]:
    """Count the rows, each type's padded to whole tiles, and the tiles."""
    tiles = sum(-(-rows // tile) for rows in types)
    return tiles * tile, tiles


def least_us(costs: Costs) -> float:
    """Lower bound of the time of all schedules of a program, us, without looking at schedules.

    Products, gradients of weights and folds have a kernel each: at least the time of its result, its products and a
    launch. Aggregates share kernels, so each pays for what it stores and for its part of a launch.
    """
    program, hardware = costs.program, costs.hardware
    found = 0.0
    for n in required(program):
        template = template_of(program, n)
        if template in ("gemm", "outer", "fold"):
            kernel = kernel_of(program, (n,))
            found += costs.fastest(kernel, Need())[1]
        elif template == "traverse":
            stored_us = costs.cold_bytes(n) / (hardware.dram_gbps * 1e3)
            found += stored_us + hardware.launch_us / MOST_STORES[template]
    return found
