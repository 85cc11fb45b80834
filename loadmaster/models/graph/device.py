"""What a GPU does to the kernels of graph layers: the constants of the cost model."""

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
    """The tiles among which a plan chooses for each kernel, by the kernel's template."""

    leave_out_defaults: ClassVar = True

    gemm: Tiles = EVERY_TILE
    traverse: Tiles = EVERY_TILE
    outer: Tiles = EVERY_TILE
    map: Tiles = EVERY_TILE
    fold: Tiles = EVERY_TILE

    def of(self, template: Template) -> Tiles:
        """Of one template."""
        found: Tiles = getattr(self, template)
        return found


EVERY_TEMPLATE = TemplateTiles()


@dataclass(frozen=True)
class GraphHardware:
    """One GPU.

    Attributes:
        memory_bytes: of the device.
        dram_gbps, l2_gbps: what its memory and its cache give these kernels, GB/s (1e9 bytes per second).
        l2_bytes: of the cache.
        matrix_tflops: of matrix products by bytes of an element, 1e12 FLOP/s: (2, 4).
        made_per_us: values of rows that products make on the way, in a microsecond.
        step_us: what a program waits for memory, each time.
        launch_us: what a launch costs beside its work.
        tiles: that kernels may be cut into; all that they have, where none are left out.
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
        """Of matrix products, 1e12 FLOP/s."""
        return self.matrix_tflops[0 if element_bytes == 2 else 1]


# What was fastest in trials on an H100, whatever the graph. The model knows no more of smaller tiles than what they
# read and fill up.
_DEFAULT = Tiles(rows=(64,), columns=(64,), warps=(4,))
FASTEST = TemplateTiles(Tiles(rows=(128,), columns=(64,), warps=(4, 8)), _DEFAULT, _DEFAULT, _DEFAULT, _DEFAULT)

# Until a GPU is calibrated: near what 918 kernels on an H100 gave in the precision "high", with a third of its rate
# for products, since those of float32 take three at PyTorch's default, "highest". Of 16 bits, twice the rate is an
# estimate. An H200 differs by its memory.
HARDWARE: Mapping[str, GraphHardware] = {
    "h100": GraphHardware("h100", 80 * 10**9, 2700.0, 6300.0, 50 << 20, (100.0, 17.0), 50_000.0, 0.4, 1.5, FASTEST),
    "h200": GraphHardware("h200", 141 * 10**9, 3850.0, 6300.0, 50 << 20, (100.0, 17.0), 50_000.0, 0.4, 1.5, FASTEST),
}


def graph_hardware(name: str) -> GraphHardware:
    """The estimated constants of a GPU by its name.

    Raises:
        InputError: there are none.
    """
    if name not in HARDWARE:
        raise InputError("hardware", name, "has no constants for graph layers", f"Use one of: {', '.join(HARDWARE)}.")
    return HARDWARE[name]
