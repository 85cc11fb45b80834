"""Installs planned collectives for a whole program: the default process group is exchanged for one that plans.

    from loadmaster.executor import collective
    collective.use("plans")                    # a folder; after init_process_group, on every rank

What was made before keeps the group it was made with: call ``use`` before DDP, FSDP2 or a device mesh are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as registry
from torch.distributed import distributed_c10d as c10d

from loadmaster.errors import InputError
from loadmaster.executor.collective.agreement import Place, agree_on
from loadmaster.executor.collective.engine import Engine, MakeEngine, ReferenceEngine
from loadmaster.executor.collective.fused.engine import FusedEngine
from loadmaster.executor.collective.process_group import PlannedGroup
from loadmaster.executor.collective.sources import Planned, Plans, read_plans
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem

_numbers = itertools.count()
_installed: list[Installed] = []
_make_p2p_op = dist.P2POp.__init__


class Installed:
    """Planned collectives that are on: as a context manager, until the block ends.

    Attributes:
        group: the planned group: the default one, or one to pass to calls, DDP and FSDP2 in place of that given.
    """

    def __init__(self, group: PlannedGroup, *, default: bool) -> None:
        self.group, self._default = group, default

    def disable(self) -> None:
        """Give the inner group its place back. What still holds the planned group goes on, by the inner one's means."""
        if self not in _installed:
            return
        _installed.remove(self)
        if not _installed:
            dist.P2POp.__init__ = _make_p2p_op  # type: ignore[method-assign]
        group = self.group
        group.shutdown()
        if group not in c10d._world.pg_names:
            return  # destroy_process_group has been here before.
        if self._default and c10d._world.default_pg is group:
            c10d._update_default_pg(group.inner)
        for known in _registers():
            known.pop(group, None)
        for tagged in c10d._world.tags_to_pg.values():
            if group in tagged:
                tagged.remove(group)
        name: Any = group.group_name
        registry._unregister_process_group(name)

    def stats(self) -> dict[str, dict[str, Any]]:
        """How many calls went which way; see :func:`stats`."""
        return _stats(self.group)

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()


def fitting_engine(
    problem: CollectiveProblem, plan: CollectivePlan, group: dist.ProcessGroup, place: Place | None = None
) -> Engine:
    """One kernel per collective where the GPUs of one node meet; messages between nodes, and on CPUs.

    What the kernel does not do (a maximum, sums of integers) is left to the inner group, which is faster at it than
    messages are.
    """
    gpus = torch.cuda.is_available() and any(device.type == "cuda" for device in group._device_types)
    if gpus and problem.topology.node_count == 1:
        return FusedEngine(problem, plan, group, place)
    return ReferenceEngine(problem, plan, group, place)


def use(
    plans: Plans,
    group: dist.ProcessGroup | None = None,
    *,
    engines: Sequence[MakeEngine] | None = None,
    place: Place | None = None,
    largest_bytes: int | None = None,
) -> Installed:
    """Run collectives by plan from now on. Every rank of the group calls it, with the same arguments.

    Args:
        plans: one per collective (and root): pairs of a problem and its plan, each typed or the path of its document;
            or files, or a folder: see :func:`loadmaster.executor.collective.sources.read_plans`.
        group: None: the default group, which is exchanged, so that all that asks for it gets the planned one. Another
            group stays as it is; pass ``.group`` of what is returned in its place.
        engines: what runs them, in the order in which they are asked; None: :func:`fitting_engine`.
        place: where this rank runs; None: found out.
        largest_bytes: leave larger calls to the inner group.

    Raises:
        InputError: on every rank alike: documents that cannot be read, a plan that this group cannot run, arguments
            that differ between ranks.
    """
    default = group is None
    inner = c10d._get_default_group() if group is None else group
    if isinstance(inner, PlannedGroup):
        raise InputError("group", inner.group_name, "is planned already", "Take it out first: collective.disable().")
    pairs = _read_alike(plans, inner, largest_bytes)
    name: Any = f"loadmaster:{next(_numbers)}:{inner.group_name}"
    planned = PlannedGroup(name, inner, pairs, engines or (fitting_engine,), place=place, largest_bytes=largest_bytes)
    # The same record as the inner group's, under a name of its own: how torch.distributed knows a group.
    for known in _registers():
        if inner in known:
            known[planned] = known[inner]
    c10d._world.pg_names[planned] = name
    for tagged in c10d._world.tags_to_pg.values():
        if inner in tagged:
            tagged.append(planned)
    registry._register_process_group(name, planned)
    if default:
        c10d._update_default_pg(planned)
    dist.P2POp.__init__ = _p2p_op_of_inner  # type: ignore[method-assign]
    _installed.append(Installed(planned, default=default))
    return _installed[-1]


def _read_alike(plans: Plans, group: dist.ProcessGroup, largest_bytes: int | None) -> list[Planned]:
    """The plans, once it is known that every rank has the same: else some would wait for others that have given up."""
    pairs: list[Planned] = []
    refusal = None
    try:
        pairs = read_plans(plans, group.size())
        if not pairs:
            raise InputError("plans", [], "are none", "Give at least one.")
    except InputError as error:
        refusal = error
    collectives = [f"{problem.collective} of {problem.sha256[:12]}" for problem, _ in pairs]
    agree_on(group, {"plans": collectives, "largest_bytes": largest_bytes}, refusal)
    return pairs


def disable() -> None:
    """Take out all that is installed."""
    for installed in reversed(_installed[:]):
        installed.disable()


def stats() -> dict[str, dict[str, Any]]:
    """Of what was installed last: calls by plan ({collective: {engine: calls}}), how many of these were padded
    ({collective: calls}), and calls that went to the inner group ({collective: {reason: calls}}). Calls that plans know
    nothing of (barriers, sends and receives) are not counted.

    Raises:
        InputError: nothing is on.
    """
    if not _installed:
        raise InputError("collective", None, "are not installed", "Call collective.use(plans) first.")
    return _installed[-1].stats()


def _stats(group: PlannedGroup) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {"planned": {}, "padded": dict(group.padded), "fell_back": {}}
    for name, counted in (("planned", group.planned), ("fell_back", group.fell_back)):
        for (collective, detail), calls in counted.items():
            nested[name].setdefault(collective, {})[detail] = calls
    return nested


def _registers() -> list[dict[Any, Any]]:
    world = c10d._world
    return [world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag]


def _p2p_op_of_inner(
    self: dist.P2POp,
    op: Any,
    tensor: torch.Tensor,
    peer: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_peer: int | None = None,
) -> None:
    """Batches of sends and receives are one call of NCCL only on a group of torch's own type: give them that."""
    _make_p2p_op(self, op, tensor, peer, group, tag, group_peer)
    if isinstance(self.group, PlannedGroup):
        self.group = self.group.inner
