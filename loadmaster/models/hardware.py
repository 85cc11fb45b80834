"""Catalogue of hardware, from which a plan's costs are estimated where the device itself is not present.

Compute rates and memory bandwidths are the makers' dense peaks, host links and launch overheads are what such machines
reach. Sources: NVIDIA data sheets (Tesla P100, V100, A100, H100, H200) and the Ada architecture paper (RTX 4090);
H200 memory, host link and disk as measured on one (torch 2.11, PCIe 5 x16, pinned memory, 1 GiB copies).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

from loadmaster.errors import InputError
from loadmaster.models.fields import Bounds, Gbps, Size

GIB = 2**30
# Where a result that travels cuts a compiled graph: before the operator that waits for its room, and before and after
# the backward operator that it is fetched for. What was one kernel is two: at most a launch more each.
CUTS = 3
# Across them a tensor of the result's size (its gradient, mostly) is written once and read once that one kernel would
# have kept to itself. Counted in the kernels that Inductor makes of the backward pass, at 0.53 of eager's peak: 1.7
# bytes for each byte sent in GoogleNet, 2.0 in ResNet-50.
MOVED_PER_BYTE = 2
DType = Literal["float64", "float32", "tf32", "bfloat16", "float16"]


@dataclass(frozen=True)
class HostLink:
    """Link to host memory, and the costs of a compiled graph from which a result is sent over it.

    Attributes:
        to_host_gbps, from_host_gbps: bandwidths, GB/s (1e9 bytes per second).
        capacity_bytes: room for offloaded tensors.
        cut_us: cost of every result sent, in addition to its copies.
        cut_gbps: of device memory, which moves :data:`MOVED_PER_BYTE` bytes more for each byte sent; None: it does not.
    """

    leave_out_defaults: ClassVar = True

    to_host_gbps: Gbps
    from_host_gbps: Gbps
    capacity_bytes: Size | None = None
    cut_us: Annotated[float, Bounds(ge=0, le=1e9)] = 0.0
    cut_gbps: Gbps | None = None

    def cutting_us(self, size_bytes: int) -> float:
        """Time by which sending a result of that many bytes lengthens the compute, in addition to its copies."""
        moved_us = 0.0 if self.cut_gbps is None else MOVED_PER_BYTE * size_bytes / (self.cut_gbps * 1e3)
        return self.cut_us + moved_us

    def to_host_us(self, size_bytes: int) -> float:
        """Time to send that many bytes to the host, us."""
        return size_bytes / (self.to_host_gbps * 1e3)

    def from_host_us(self, size_bytes: int) -> float:
        """Time to bring that many bytes back, us."""
        return size_bytes / (self.from_host_gbps * 1e3)


@dataclass(frozen=True)
class Hardware:
    """Device of the catalogue.

    Attributes:
        name: as a user writes it ("a100-80gb").
        title: its full name; on GPUs, a part of the name that the driver reports.
        dram_gbps: peak memory bandwidth, GB/s (1e9 bytes per second).
        tflops: peak dense rate of matrix products per number format, 1e12 FLOP/s. A format that is missing runs at the
            float32 rate.
        to_host_gbps, from_host_gbps: pinned copies over the host link, GB/s, one direction at a time.
        launch_us: cost of a kernel in addition to its work.
        compute_share, dram_share: the parts of the peaks that large operators reach.
        measured: whether memory and host link were measured rather than taken from a data sheet.
    """

    name: str
    title: str
    memory_bytes: int
    dram_gbps: float
    tflops: Mapping[DType, float]
    to_host_gbps: float
    from_host_gbps: float
    launch_us: float = 4.0
    compute_share: float = 0.65
    dram_share: float = 0.8
    measured: bool = False

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """PyTorch's name for such devices."""
        return "cpu" if self.name == "cpu" else "cuda"

    def tflops_for(self, dtype: DType) -> float:
        """Peak rate of matrix products in this format, 1e12 FLOP/s."""
        return self.tflops.get(dtype, self.tflops["float32"])

    def host_link(self, *, compiled: bool = False) -> HostLink:
        """Host link of the device; with the costs of cuts, if the step is compiled."""
        if not compiled:
            return HostLink(self.to_host_gbps, self.from_host_gbps)
        cut_gbps = self.dram_gbps * self.dram_share
        return HostLink(self.to_host_gbps, self.from_host_gbps, cut_us=CUTS * self.launch_us, cut_gbps=cut_gbps)

    def document(self) -> dict[str, object]:
        """Write the entry as plain JSON values."""
        return asdict(self) | {"tflops": dict(self.tflops)}


# Peak rates in TFLOP/s.
_PASCAL: Mapping[DType, float] = {"float64": 5.3, "float32": 10.6, "float16": 21.2}
_VOLTA: Mapping[DType, float] = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_AMPERE: Mapping[DType, float] = {"float64": 19.5, "float32": 19.5, "tf32": 156.0, "bfloat16": 312.0, "float16": 312.0}
_HOPPER: Mapping[DType, float] = {"float64": 67.0, "float32": 67.0, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4}
_ADA: Mapping[DType, float] = {"float64": 1.3, "float32": 82.6, "tf32": 82.6, "bfloat16": 165.2, "float16": 165.2}
_CPU: Mapping[DType, float] = {"float64": 0.12, "float32": 0.24, "bfloat16": 0.24, "float16": 0.12}

_CATALOGUE = (
    Hardware("p100", "Tesla P100-SXM2-16GB", 16 * GIB, 732.0, _PASCAL, 12.0, 12.0, launch_us=6.0),
    Hardware("v100-16gb", "Tesla V100-SXM2-16GB", 16 * GIB, 900.0, _VOLTA, 12.0, 12.0, launch_us=5.0),
    Hardware("v100-32gb", "Tesla V100-SXM2-32GB", 32 * GIB, 900.0, _VOLTA, 12.0, 12.0, launch_us=5.0),
    Hardware("a100-40gb", "NVIDIA A100-SXM4-40GB", 40 * GIB, 1555.0, _AMPERE, 25.0, 25.0),
    Hardware("a100-80gb", "NVIDIA A100-SXM4-80GB", 80 * GIB, 2039.0, _AMPERE, 25.0, 25.0),
    Hardware("h100", "NVIDIA H100 80GB HBM3", 80 * GIB, 3350.0, _HOPPER, 55.0, 55.0, launch_us=3.0),
    Hardware("h200", "NVIDIA H200", 139 * GIB, 4800.0, _HOPPER, 55.4, 55.5, launch_us=3.0, measured=True),
    Hardware("rtx4090", "NVIDIA GeForce RTX 4090", 24 * GIB, 1008.0, _ADA, 25.0, 25.0),
    # One core of a server with AVX-512, from the steps of examples/ on it: enough to order operators by cost.
    Hardware("cpu", "one CPU core", 16 * GIB, 24.0, _CPU, 10.0, 10.0, launch_us=5.0),
)


def catalogue() -> tuple[Hardware, ...]:
    """List all entries of the catalogue, oldest GPU first, the CPU last."""
    return _CATALOGUE


def hardware(name: str, field: str = "hardware") -> Hardware:
    """Return the entry of this name, whatever its capitals; raise InputError, which names ``field`` and lists the
    names, for others."""
    for entry in _CATALOGUE:
        if entry.name == name.lower():
            return entry
    known = ", ".join(entry.name for entry in _CATALOGUE)
    raise InputError(field, name, "is not in the catalogue", f"Choose one of: {known}.")


def hardware_reported_as(device_name: str) -> Hardware | None:
    """Return the entry whose title is in the driver's name of a GPU ("NVIDIA H200"), or None."""
    matching = [entry for entry in _CATALOGUE if entry.title in device_name]
    return max(matching, key=lambda entry: len(entry.title), default=None)
