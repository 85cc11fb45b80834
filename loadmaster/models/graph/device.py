"""Constants of the cost model for kernels of graph layers, by GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from loadmaster.errors import InputError
from loadmaster.models.fields import Bounds, Gbps, Name, Size
from loadmaster.models.graph.schedule import EVERY_TILE, Template, Tiles

_Rate = Annotated[float, Bounds(gt=0, le=1e9)]


@dataclass(frozen=True)
class TemplateTiles:
    """Tiles among which a plan chooses for each kernel, by the kernel's template."""

    leave_out_defaults: ClassVar = True

    gemm: Tiles = EVERY_TILE
    traverse: Tiles = EVERY_TILE
    outer: Tiles = EVERY_TILE
    map: Tiles = EVERY_TILE
    fold: Tiles = EVERY_TILE

    def of(self, template: Template) -> Tiles:
        found: Tiles = getattr(self, template)
        return found


EVERY_TEMPLATE = TemplateTiles()


@dataclass(frozen=True)
class GraphHardware:
    """Constants of one GPU.

    Attributes:
        dram_gbps, l2_gbps: bandwidth of its memory and its cache in these kernels, GB/s (1e9 bytes per second).
        matrix_tflops: rate of matrix products by bytes of an element, 1e12 FLOP/s: (2, 4).
        made_per_us: values of rows that products make on the way, in a microsecond.
        step_us: time that a program waits for memory, each time.
        launch_us: time of a launch in addition to its work.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    memory_bytes: Size
    dram_gbps: Gbps
    l2_gbps: Gbps
    l2_bytes: Size
    matrix_tflops: tuple[_Rate, _Rate]
    made_per_us: _Rate
    step_us: Annotated[float, Bounds(gt=0, le=1e6)]
    launch_us: Annotated[float, Bounds(gt=0, le=1e6)]
    tiles: TemplateTiles = EVERY_TEMPLATE

    def matrix_rate(self, element_bytes: int) -> float:
        """Rate of matrix products by bytes of an element, 1e12 FLOP/s."""
        return self.matrix_tflops[0 if element_bytes == 2 else 1]


# The fastest in trials on an H100, whatever the graph. The model knows of smaller tiles only what they read and pad.
_DEFAULT = Tiles(rows=(64,), columns=(64,), warps=(4,))
FASTEST = TemplateTiles(Tiles(rows=(128,), columns=(64,), warps=(4, 8)), _DEFAULT, _DEFAULT, _DEFAULT, _DEFAULT)

# Until a GPU is calibrated: near the fit to 918 kernels on an H100 in the precision "high", with a third of its rate
# for products, since those of float32 take three at PyTorch's default, "highest". For 16 bits, twice the rate of "high"
# is an estimate. An H200 differs by its memory.
HARDWARE: Mapping[str, GraphHardware] = {
    "h100": GraphHardware("h100", 80 * 10**9, 2700.0, 6300.0, 50 << 20, (100.0, 17.0), 50_000.0, 0.4, 1.5, FASTEST),
    "h200": GraphHardware("h200", 141 * 10**9, 3850.0, 6300.0, 50 << 20, (100.0, 17.0), 50_000.0, 0.4, 1.5, FASTEST),
}


def graph_hardware(name: str) -> GraphHardware:
    """Return the estimated constants of a GPU by its name; raise InputError where there are none."""
    if name not in HARDWARE:
        raise InputError("hardware", name, "has no constants for graph layers", f"Use one of: {', '.join(HARDWARE)}.")
    return HARDWARE[name]
