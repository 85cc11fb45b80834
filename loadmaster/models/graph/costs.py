"""What a kernel costs: bytes, products and rows, and the time that they take on a GPU.

    time = max(DRAM bytes / bandwidth, cache bytes / bandwidth, matrix FLOP / rate, vector FLOP / rate,
               rows / rate + longest row / rate) + launch

*Reads.* A row is read once for each row that the kernel runs over; once for each row that it stores where it is the
same for all of these. Every different row comes from DRAM once. When it is asked for again it comes from the cache with
the chance that the cache holds it: the part of all rows that fits. Rows out of order come in sectors of 32 bytes.

*Products.* A tile of rows has one relation: each relation's last tile is padded. Each tile reads the weight through the
cache. What is made number by number costs nothing beside its reads: it is done while the kernel waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.graph.device import GraphHardware
from loadmaster.models.graph.inline import Need, base, rows_class
from loadmaster.models.graph.operators import OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel, Tile
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space, is_coarser
from loadmaster.models.graph.statistics import GraphStatistics

SECTOR_BYTES = 32
INDEX_BYTES = 4
# An outer product sums so many rows before it stores a term of its sum.
OUTER_ROWS = 1024
# A longer row of a traversal is cut into pieces of so many.
LONGEST_PIECE = 2048
TILE_ROWS = (32, 64, 128)


@dataclass(frozen=True)
class Work:
    """What a kernel does.

    Attributes:
        dram_bytes, l2_bytes: moved between the GPU's memory and its cache; between the cache and the kernel.
        stored_bytes: of these, what it stores.
        matrix_flops, vector_flops: of products with weights; of dot products within rows.
        rows, tail_rows: of a traversal: rows that it stores; rows that its longest piece runs over.
    """

    dram_bytes: float
    l2_bytes: float
    stored_bytes: int
    matrix_flops: float = 0.0
    vector_flops: float = 0.0
    rows: int = 0
    tail_rows: int = 0

    def terms_us(self, hardware: GraphHardware, element_bytes: int) -> tuple[float, ...]:
        """What each of the resources takes."""
        return (
            self.dram_bytes / (hardware.dram_gbps * 1e3),
            self.l2_bytes / (hardware.l2_gbps * 1e3),
            self.matrix_flops / (hardware.matrix_rate(element_bytes) * 1e6),
            self.vector_flops / (hardware.vector_tflops * 1e6),
            self.rows / hardware.rows_per_us + self.tail_rows / hardware.tail_rows_per_us,
        )

    def time_us(self, hardware: GraphHardware, element_bytes: int) -> float:
        """Of the kernel."""
        return max(self.terms_us(hardware, element_bytes)) + hardware.launch_us


class Costs:
    """The costs of a program's kernels on a graph."""

    def __init__(
        self, program: Program, statistics: GraphStatistics, element_bytes: int, hardware: GraphHardware
    ) -> None:
        self.program, self.statistics = program, statistics
        self.element_bytes, self.hardware = element_bytes, hardware

    def value_bytes(self, n: int) -> int:
        """Of a value that is kept or given."""
        typed = self.program.types[n]
        return self.statistics.rows(typed.space) * typed.numbers * self.element_bytes

    def time_us(self, kernel: Kernel, need: Need) -> float:
        """Of a kernel that needs this."""
        return self.work(kernel, need).time_us(self.hardware, self.element_bytes)

    def tiled(self, kernel: Kernel, need: Need) -> Kernel:
        """The kernel with the tile that takes least time; the smallest of equals."""
        if kernel.template not in ("gemm", "outer"):
            return kernel
        tiles = [replace(kernel, tile=Tile(rows=rows)) for rows in TILE_ROWS]
        return min(tiles, key=lambda k: self.time_us(k, need))

    def work(self, kernel: Kernel, need: Need) -> Work:
        """Of a kernel.

        Args:
            need: of all that it stores.
        """
        stored = sum(self.value_bytes(n) for n in kernel.stores)
        dram, cache = self._read(kernel, need)
        found = Work(dram + stored, cache + stored, stored)
        over = kernel.over or kernel.rows
        vectors = sum(self._vector_flops(v) for v in {*need.inline, *kernel.stores}) * self.statistics.rows(over)
        found = replace(found, vector_flops=float(vectors))
        if kernel.template in ("gemm", "outer", "fold"):
            found = self._product(kernel, found)
        if kernel.template == "traverse":
            longest = min(self.statistics.longest_row(over, kernel.rows), LONGEST_PIECE)
            found = replace(found, rows=self.statistics.rows(kernel.rows), tail_rows=longest)
        return found

    def _read(self, kernel: Kernel, need: Need) -> tuple[float, float]:
        """Bytes from DRAM, and from the cache."""
        over, own = kernel.over or kernel.rows, rows_class(kernel.rows)
        dram = cache = 0.0
        spaces: set[Space] = set()
        weights = {base(self.program, self.program.values[n].inputs[1]) for n in kernel.stores if self._is_linear(n)}
        for n, seen in need.seen:
            if n in kernel.stores:
                continue
            if n in weights:
                dram += self.value_bytes(n)
                continue
            at = over
            # One for each row that is stored, however many are run over.
            if kernel.over is not None and (rows_class(seen) == own or is_coarser(seen, kernel.rows)):
                at = kernel.rows
            if rows_class(seen) != rows_class(at):
                spaces.add(seen)
            in_order = rows_class(seen) == rows_class(at) and (at != kernel.over or kernel.rows in WEIGHT_SPACES)
            found = self._rows_bytes(n, self.statistics.rows(at), in_order)
            dram, cache = dram + found[0], cache + found[1]
        # Row numbers, from where the kernel runs to what it reads; where its own rows begin, and which they are.
        indices = sum(self.statistics.rows(over) for space in spaces if space != "one")
        if kernel.over is not None:
            indices += self.statistics.rows(kernel.rows) + self.statistics.rows(over)
        return dram + INDEX_BYTES * indices, cache + INDEX_BYTES * indices

    def _is_linear(self, n: int) -> bool:
        return self.program.values[n].op == "linear"

    def _rows_bytes(self, n: int, reads: int, in_order: bool) -> tuple[float, float]:
        """Of reading rows of a value so many times."""
        rows = self.statistics.rows(self.program.types[n].space)
        row_bytes = self.program.types[n].numbers * self.element_bytes
        if in_order:
            return float(rows * row_bytes), float(rows * row_bytes)
        row_bytes = SECTOR_BYTES * math.ceil(row_bytes / SECTOR_BYTES)
        different = min(rows, reads)
        # Narrow rows share sectors, as long as the cache holds them.
        whole = rows * self.program.types[n].numbers * self.element_bytes
        missed = 1.0 - min(1.0, self.hardware.l2_bytes / max(whole, 1))
        first = min(different * row_bytes, whole)
        again = reads * row_bytes - first
        return first + missed * again, float(first + again)

    def _vector_flops(self, v: int) -> int:
        """Of a row of a value."""
        value = self.program.values[v]
        if value.op not in ("dot", "row_sum", "head_sum"):
            return 0
        return 2 * max(self.program.types[i].numbers for i in value.inputs)

    def _product(self, kernel: Kernel, work: Work) -> Work:
        values = [n for n in kernel.stores if OPERATORS[self.program.values[n].op].sort != "map"]
        (n,) = [n for n in values if self.program.values[n].op in ("linear", "outer", "fold")]
        of = self.program.values[n]
        if of.op == "fold":
            flops = 2 * self.program.types[of.inputs[0]].numbers * self.program.types[n].shape[-1]
            return replace(work, matrix_flops=float(flops * self.statistics.rows(kernel.rows)))
        space = kernel.over or kernel.rows
        weight = self.program.types[n if of.op == "outer" else of.inputs[1]]
        types: Sequence[int] = (self.statistics.rows(space),)
        if weight.space != "one":
            types = self.statistics.by_type(space)
        padded, tiles = _padded(types, kernel.tile.rows)
        if of.op == "linear":
            through = float(tiles * weight.numbers * self.element_bytes)
            return replace(work, matrix_flops=2.0 * padded * weight.numbers, l2_bytes=work.l2_bytes + through)
        terms = sum(math.ceil(rows / OUTER_ROWS) for rows in types) * weight.numbers * 4
        moved = 2.0 * terms
        return replace(
            work,
            matrix_flops=2.0 * padded * weight.numbers,
            dram_bytes=work.dram_bytes + moved,
            l2_bytes=work.l2_bytes + moved,
        )


def _padded(types: Iterable[int], tile: int) -> tuple[int, int]:
    """Rows, each type's filled up to whole tiles, and how many tiles."""
    tiles = sum(-(-rows // tile) for rows in types)
    return tiles * tile, tiles


def fitted(
    hardware: GraphHardware, measured: Sequence[tuple[Work, float]], element_bytes: int, name: str
) -> GraphHardware:
    """The constants at which the model comes closest to measured kernels.

    Each kernel counts for the resource that it waits for. Rates are found by least squares of relative errors; then
    kernels are assigned anew, until none changes. A resource that no kernel waits for keeps its rate.

    Args:
        measured: of each kernel what it does, and its time in microseconds.

    Raises:
        InputError: there are no kernels, or times are not above 0.
    """
    times = np.array([us for _, us in measured])
    if not len(times) or times.min() <= 0:
        raise InputError("measured", len(times), "kernels with times above 0 are needed", "Measure some kernels.")
    seen: set[tuple[int, ...]] = set()
    while True:
        terms = np.array([work.terms_us(hardware, element_bytes) for work, _ in measured])
        waits = terms.argmax(axis=1)
        if tuple(waits.tolist()) in seen:
            return replace(hardware, name=name)
        seen.add(tuple(waits.tolist()))
        hardware = _scaled(hardware, terms, waits, times, element_bytes)


def _scaled(
    hardware: GraphHardware, terms: np.ndarray, waits: np.ndarray, times: np.ndarray, element_bytes: int
) -> GraphHardware:
    """Rates and launch time that fit, where each kernel waits for one resource."""
    used = np.unique(waits)
    a = np.zeros((len(times), len(used) + 1))
    a[np.arange(len(times)), np.searchsorted(used, waits)] = terms[np.arange(len(times)), waits]
    a[:, -1] = 1.0
    found = np.linalg.lstsq(a / times[:, None], np.ones(len(times)), rcond=None)[0]
    slower = np.ones(terms.shape[1])
    # A resource is neither free nor a hundred times what was believed: too few kernels wait for it to say.
    slower[used] = np.clip(found[:-1], 0.01, 100.0)
    matrix = list(hardware.matrix_tflops)
    matrix[0 if element_bytes == 2 else 1] /= float(slower[2])
    return replace(
        hardware,
        dram_gbps=hardware.dram_gbps / float(slower[0]),
        l2_gbps=hardware.l2_gbps / float(slower[1]),
        matrix_tflops=(matrix[0], matrix[1]),
        vector_tflops=hardware.vector_tflops / float(slower[3]),
        rows_per_us=hardware.rows_per_us / float(slower[4]),
        tail_rows_per_us=hardware.tail_rows_per_us / float(slower[4]),
        launch_us=max(0.0, float(found[-1])),
    )
