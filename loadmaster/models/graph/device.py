"""What a GPU does to the kernels of graph layers: the constants of the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from loadmaster.errors import InputError
from loadmaster.models.fields import Bounds, Gbps, Name, Size

_Rate = Annotated[float, Bounds(gt=0, le=1e9)]


@dataclass(frozen=True)
class GraphHardware:
    """One GPU.

    Attributes:
        memory_bytes: of the device.
        dram_gbps, l2_gbps: what its memory and its cache give these kernels, GB/s (1e9 bytes per second).
        l2_bytes: of the cache.
        matrix_tflops: of matrix products by bytes of an element, 1e12 FLOP/s: (2, 4).
        vector_tflops: of dot products within rows.
        rows_per_us: rows of a traversal that begin in a microsecond.
        tail_rows_per_us: rows that one program runs over in a microsecond: the longest one ends the traversal.
        launch_us: what a kernel costs beside its work.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    memory_bytes: Size
    dram_gbps: Gbps
    l2_gbps: Gbps
    l2_bytes: Size
    matrix_tflops: tuple[_Rate, _Rate]
    vector_tflops: _Rate
    rows_per_us: _Rate
    tail_rows_per_us: _Rate
    launch_us: Annotated[float, Bounds(ge=0, le=1e6)]

    def matrix_rate(self, element_bytes: int) -> float:
        """Of matrix products, 1e12 FLOP/s."""
        return self.matrix_tflops[0 if element_bytes == 2 else 1]


# Estimates, until a GPU is calibrated: 85 % of the peak of the memory; tensor cores at a third of theirs, because rows
# are short; float32 products as IEEE asks, on the vector units, at a third of their peak.
HARDWARE: Mapping[str, GraphHardware] = {
    "h100": GraphHardware("h100", 80 * 10**9, 2850.0, 5500.0, 50 << 20, (330.0, 22.0), 15.0, 2500.0, 100.0, 2.5),
    "h200": GraphHardware("h200", 141 * 10**9, 4100.0, 5500.0, 50 << 20, (330.0, 22.0), 15.0, 2500.0, 100.0, 2.5),
}


def graph_hardware(name: str) -> GraphHardware:
    """The estimated constants of a GPU by its name.

    Raises:
        InputError: there are none.
    """
    if name not in HARDWARE:
        raise InputError("hardware", name, "has no constants for graph layers", f"Use one of: {', '.join(HARDWARE)}.")
    return HARDWARE[name]
