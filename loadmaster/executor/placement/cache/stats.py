"""Figures of what a tensor cache did, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from loadmaster.models.units import show_bytes


@dataclass(frozen=True)
class CacheStats:
    """Figures since the cache was made. A tensor that several operators saved counts once.

    Attributes:
        offloaded_bytes: sent away and let go of on the device.
        kept_bytes: large enough to be sent, but left on the device: the end of the forward pass, or no room elsewhere.
        forwarded_bytes: needed before the store was over, and used from where they were.
        cancelled_bytes: of these, stores that had not begun and never did.
        loaded_bytes: brought back.
        on_demand_bytes: of these, not asked for before they were needed.
        failed_bytes: whose store failed; they stayed on the device.
        host_bytes: host memory that the backend held at most.
        written_bytes, read_bytes: by the backend: to disk and from it, where that is a disk.
        write_gbps, read_gbps: while it wrote and read, in 10^9 bytes a second; None before it did.
        store_wait_s: the host waited for stores, so as not to hold more than the in-flight limit.
        load_wait_s: the host waited for loads. On a GPU, copies from host memory are waited for by the GPU, not here.
        sent: how many of the tensors of a forward pass are sent, and of how many; None before that is decided.
        notes: what else the backend has to say, by subject.
    """

    offloaded_bytes: int
    kept_bytes: int
    forwarded_bytes: int
    cancelled_bytes: int
    loaded_bytes: int
    on_demand_bytes: int
    failed_bytes: int
    host_bytes: int
    written_bytes: int
    read_bytes: int
    write_gbps: float | None
    read_gbps: float | None
    store_wait_s: float
    load_wait_s: float
    sent: tuple[int, int] | None
    notes: dict[str, str]

    def __str__(self) -> str:
        lines = []
        for name, value in asdict(self).items():
            if name == "notes" or value is None:
                continue
            if name == "sent":
                lines.append(f"{value[0]} of {value[1]} tensors of a forward pass are sent")
            elif name.endswith("_bytes"):
                lines.append(f"{name.removesuffix('_bytes').replace('_', ' ')}: {show_bytes(value)}")
            elif name.endswith("_gbps"):
                lines.append(f"{name.removesuffix('_gbps')}: {value:.2f} GB/s")
            else:
                lines.append(f"{name.removesuffix('_s').replace('_', ' ')}: {value:.3f} s")
        return "\n".join([*lines, *(f"{name.replace('_', ' ')}: {said}" for name, said in self.notes.items())])

    def disk_life_s(self, endurance_bytes: float, elapsed_s: float) -> float:
        """Estimate how long a disk lasts at this rate of writing ([Wu24], section 5.3.6). Its maker allows
        ``endurance_bytes`` in its life (65.4e15 for 65.4 PBW); the writes of these figures took ``elapsed_s``, training
        included."""
        return endurance_bytes * elapsed_s / self.written_bytes if self.written_bytes else float("inf")


@dataclass
class Tally:
    """Running counts that become the figures of :class:`CacheStats`."""

    bytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, size_bytes: int) -> None:
        """Count so many bytes more under one name."""
        self.bytes[what] = self.bytes.get(what, 0) + size_bytes

    def spend(self, what: str, seconds: float) -> None:
        """Count so much more waiting time under one name."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def fields(self) -> dict[str, Any]:
        """Return the counts as fields of :class:`CacheStats`."""
        kinds = ("offloaded", "kept", "forwarded", "cancelled", "loaded", "on_demand", "failed")
        counted = {f"{kind}_bytes": self.bytes.get(kind, 0) for kind in kinds}
        return counted | {f"{what}_wait_s": self.seconds.get(what, 0.0) for what in ("store", "load")}
