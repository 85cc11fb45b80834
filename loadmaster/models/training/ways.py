"""Ways to treat a group of parameters: where its master weights and state are, and where its update runs; and the bytes
that each way takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadmaster.models.training.plan import GroupPlan, State, Weights
from loadmaster.models.training.problem import Group
from loadmaster.models.training.residency import update_loads_bytes, update_stores_bytes

__all__ = ["FROZEN", "IN_FILES", "TRAINED", "Way", "ways"]


@dataclass(frozen=True)
class Way:
    """One combination of places; ``name`` is said after a number of groups. Bytes are those of one group."""

    name: str
    weights: Weights
    state: State
    update: Literal["device", "host", "none"]

    @property
    def has_stay(self) -> bool:
        """True where the update runs on the device and needs bytes from the host."""
        return self.update == "device" and (self.state == "host" or self.weights != "device")

    def is_of(self, at: GroupPlan | Way) -> bool:
        """Return whether these are the places that a plan of a group, or another way, has."""
        return (self.weights, self.state, self.update) == (at.weights, at.state, at.update)

    def resident_bytes(self, group: Group) -> int:
        """Device bytes in every phase: weights or their copy, and state."""
        weights = {"device": group.weight_bytes, "copy": group.copy_bytes, "streamed": 0}[self.weights]
        return weights + (group.state_bytes if self.state == "device" else 0)

    def loaded_bytes(self, group: Group) -> int:
        """Bytes that an update on the device loads: state and master weights. The update itself makes the copy."""
        return update_loads_bytes(group, self) if self.has_stay else 0

    def stored_bytes(self, group: Group) -> int:
        """Bytes that an update on the device has there and stores: what it loaded, and the copy where that is
        streamed."""
        return update_stores_bytes(group, self) if self.has_stay else 0


TRAINED = (
    Way("resident", "device", "device", "device"),
    Way("with state on the host", "device", "host", "device"),
    Way("updated on the host", "copy", "host", "host"),
    Way("streamed and updated on the host", "streamed", "host", "host"),
    Way("with weights and state on the host", "copy", "host", "device"),
    Way("streamed and updated on the device", "streamed", "host", "device"),
)
IN_FILES = (
    Way("updated on the host with state in files", "copy", "disk", "host"),
    Way("streamed and updated on the host with state in files", "streamed", "disk", "host"),
)
FROZEN = (
    Way("frozen", "device", "device", "none"),
    Way("frozen with a copy on the device", "copy", "device", "none"),
    Way("frozen and streamed", "streamed", "device", "none"),
)


def ways(group: Group, *, has_disk: bool = False) -> tuple[Way, ...]:
    """List the ways that a group may have; those with state in files, where there is a disk, come last. State of no
    bytes is the same on the host and on the device: where the weights stay, such a group is resident."""
    if not group.is_trained:
        return FROZEN
    return tuple(
        way
        for way in (*TRAINED, *(IN_FILES if has_disk and group.state_bytes else ()))
        if (way.update != "host" or group.host_update_us is not None)
        and (way.weights != "device" or way.state == "device" or group.state_bytes > 0)
    )
