"""The ``training`` problem: the layers of one training step, the ways to run each, and the groups of parameters that
are updated.

A step is a cycle of phases (:mod:`loadmaster.models.training.phases`): the forward pass of every layer, in order, then
the backward pass of every layer, in reverse, once for each micro-batch. Sizes are bytes, times microseconds. Sources:
[Ren21] (ZeRO-Offload: updates on the host), [Wu24] chapter 5 (keep, recompute or offload).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from loadmaster.models.canonical import plain, sha256
from loadmaster.models.fields import READING, Ascending, Bounds, Index, Name, PositiveSize, Size
from loadmaster.models.placement.problem import Tier, Us
from loadmaster.models.shown import ShownProblem


@dataclass(frozen=True)
class Point:
    """One way to run a layer: what it keeps between its passes, and what that costs.

    Attributes:
        forward_us, backward_us: time of each pass; recomputation is part of the backward pass.
        kept_bytes: from its forward to its backward pass, the layer's input included.
        forward_bytes, backward_bytes: taken in addition while each pass runs: temporary results, gradients of results,
            what is recomputed.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    forward_us: Us
    backward_us: Us
    kept_bytes: Size
    forward_bytes: Size = 0
    backward_bytes: Size = 0


@dataclass(frozen=True)
class LayerClass:
    """Layers that do the same, and the ways to run one of them."""

    name: Name
    points: Annotated[tuple[Point, ...], Bounds(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Layer:
    """A layer of the model. ``layer_class`` is the number of its class."""

    name: Name
    layer_class: Index


@dataclass(frozen=True)
class Group:
    """Parameters that move together and are updated together.

    Attributes:
        layers: that use them; several where parameters are shared.
        weight_bytes: master weights, which the optimizer updates.
        copy_bytes: what layers read where the master weights are on the host: a copy, in low precision if they cast.
        gradient_bytes: of the master weights; 0: frozen.
        copy_gradient_bytes: gradient where the layers read the copy.
        state_bytes: the optimizer's state.
        update_us, host_update_us: time of the update on the device and on the host; None: the host cannot run it.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    layers: Annotated[tuple[Index, ...], Bounds(min_length=1), Ascending()]
    weight_bytes: PositiveSize
    copy_bytes: PositiveSize
    gradient_bytes: Size = 0
    copy_gradient_bytes: Size = 0
    state_bytes: Size = 0
    update_us: Us = 0.0
    host_update_us: Us | None = None

    @property
    def is_trained(self) -> bool:
        """True unless the parameters are frozen."""
        return self.gradient_bytes > 0


@dataclass(frozen=True, repr=False)
class TrainingProblem(ShownProblem):
    """One training step that repeats.

    Attributes:
        layers: in the order of the forward pass.
        host: host memory and the link to it; moves in both directions run at the same time.
        disk: files that the host may keep optimizer state in; ``to_gbps`` writes, ``from_gbps`` reads. They share the
            disk's link, so that one move runs at a time. None: there is none.
        fixed_bytes: device memory that is always taken: inputs, buffers, workspace.
        micro_batches: passes over the layers before the update; gradients add up meanwhile.
        clip_grad_norm: whether every update waits for the norm of all gradients.
        budget_bytes: device memory for the whole step; None: to be given at planning time.
        captured_with: packages and their versions.
    """

    name: Name
    layers: Annotated[tuple[Layer, ...], Bounds(min_length=1, max_length=2_000)]
    classes: Annotated[tuple[LayerClass, ...], Bounds(min_length=1, max_length=2_000)]
    groups: Annotated[tuple[Group, ...], Bounds(min_length=1, max_length=20_000)]
    host: Tier
    disk: Tier | None = None
    fixed_bytes: Size = 0
    micro_batches: Annotated[int, Bounds(ge=1, le=1_000)] = 1
    clip_grad_norm: bool = False
    title: str | None = None
    budget_bytes: Size | None = None
    captured_with: Mapping[str, str] | None = None

    kind: Literal["training"] = "training"

    __pydantic_config__: ClassVar = READING

    @property
    def unit(self) -> str:
        """Unit of the time of a step, ``us``."""
        return "us"

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the problem, for a person who waits for its plan."""
        return {"layers": len(self.layers), "groups": len(self.groups)}

    def points(self, layer: int) -> tuple[Point, ...]:
        """List the ways to run a layer."""
        return self.classes[self.layers[layer].layer_class].points

    @cached_property
    def sha256(self) -> str:
        """Hash of the step and the host, without the budget, names and the tools of the capture."""
        left_out = ("name", "title", "budget_bytes", "captured_with")
        identity = {k: v for k, v in plain(self).items() if k not in left_out}
        for part in ("layers", "classes", "groups"):
            identity[part] = [{k: v for k, v in row.items() if k != "name"} for row in identity[part]]
        for one in identity["classes"]:
            one["points"] = [{k: v for k, v in row.items() if k != "name"} for row in one["points"]]
        for tier in {"host", "disk"} & identity.keys():
            identity[tier] = {k: v for k, v in identity[tier].items() if k != "name"}
        return sha256(identity)
