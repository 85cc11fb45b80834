"""Installs planned collectives for a whole program: the default process group is exchanged for one that plans.

    from loadmaster.executor import collective
    collective.use("plans")                    # a folder; after init_process_group, on every rank

What was made before keeps the group it was made with: call ``use`` before DDP, FSDP2 or a device mesh are. Every size
is timed against the inner group first, which keeps what it is faster at: ``print(installed.calibration)``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor.collective.agreement import Place, agree_on
from loadmaster.executor.collective.calibration import MEASURED, Calibration, expect_fitting
from loadmaster.executor.collective.calibration import calibrate as measure
from loadmaster.executor.collective.engine import Engine, MakeEngine, ReferenceEngine
from loadmaster.executor.collective.fused.engine import FusedEngine
from loadmaster.executor.collective.native.group import LaunchEngine, NativeGroup, extension, launcher_of
from loadmaster.executor.collective.process_group import PlannedGroup
from loadmaster.executor.collective.sources import Planned, Plans, read_plans
from loadmaster.executor.torch_private.distributed import (
    default_group,
    device_types_of,
    make_p2p_op,
    register_group,
    replace_default_group,
    replace_make_p2p_op,
    unregister_group,
    world,
)
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem

_numbers = itertools.count()
_installed: list[Installed] = []


class Installed:
    """Planned collectives that are on: as a context manager, until the block ends.

    ``group`` is the planned group: the default one, or one to pass to calls, DDP and FSDP2 in place of that given.
    ``compiled`` says whether planned calls run without Python in them; where not, the log says why.
    """

    def __init__(self, planned: PlannedGroup | NativeGroup, deciding: PlannedGroup, *, default: bool) -> None:
        self._planned, self._deciding, self._default = planned, deciding, default
        self.group: dist.ProcessGroup = planned.process_group
        self.compiled = isinstance(planned, NativeGroup)

    def disable(self) -> None:
        """Give the inner group its place back. What still holds the planned group goes on, by the inner one's means."""
        if self not in _installed:
            return
        _installed.remove(self)
        if not _installed:
            replace_make_p2p_op(make_p2p_op)
        group = self.group
        self._planned.shutdown()
        if group not in world().pg_names:
            return  # destroy_process_group has been here before.
        if self._default and world().default_pg is group:
            replace_default_group(self._planned.inner)
        for known in _registers():
            known.pop(group, None)
        for tagged in world().tags_to_pg.values():
            if group in tagged:
                tagged.remove(group)
        name: Any = group.group_name
        unregister_group(name)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Counts of calls by the way that they went; see :func:`stats`."""
        group = self._planned
        nested: dict[str, dict[str, Any]] = {"planned": {}, "padded": dict(group.padded), "fell_back": {}}
        for name, counted in (("planned", group.planned), ("fell_back", group.fell_back)):
            for (collective, detail), calls in counted.items():
                nested[name].setdefault(collective, {})[detail] = calls
        return nested

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An uninitialized tensor in memory that all ranks share. Every rank asks for the same, in the same order.

        All-reduce on it, or on the same part of it on every rank, is done in place, without copies in or out; so are an
        all-gather or an all-to-all into it, and a reduce-scatter of it. It stays until the process group ends. Where
        ranks share no memory (CPUs, several hosts), it is a tensor as any other. ``dtype`` None: the default.
        """
        one = torch.empty((), dtype=dtype)
        size_bytes = max(1, math.prod(shape)) * one.element_size()
        engines = (engine for entry in self._deciding.entries.values() for engine in entry.engines)
        found = next((one.empty(size_bytes) for one in engines if isinstance(one, LaunchEngine)), None)
        if found is None:
            return torch.empty(*shape, dtype=dtype, device=_device_of(self.inner))
        memory, region = found
        if isinstance(self._planned, NativeGroup):
            self._planned.share(memory, region)
        return memory.view(one.dtype)[: math.prod(shape)].view(shape)

    @property
    def calibration(self) -> Calibration | None:
        """Measurements that decide which sizes are planned. None: all are."""
        return self._deciding.calibration

    @property
    def inner(self) -> dist.ProcessGroup:
        """The group that is wrapped, which runs calls without a plan."""
        return self._planned.inner

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()


def fitting_engine(
    problem: CollectiveProblem, plan: CollectivePlan, group: dist.ProcessGroup, place: Place | None = None
) -> Engine:
    """Choose one kernel per collective where the GPUs of one node meet; messages between nodes, and on CPUs. What the
    kernel does not do (a maximum, sums of integers) is left to the inner group, which is faster than messages."""
    gpus = torch.cuda.is_available() and any(device.type == "cuda" for device in device_types_of(group))
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
    calibrate: bool | Calibration | str | Path = True,
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
        calibrate: time planned calls against the inner group's, which takes seconds, and leave it what it is faster at;
            False: run by plan whatever has one; or what was measured before, or its file.

    Raises:
        InputError: on every rank: documents that cannot be read, a plan that this group cannot run, a calibration of
            something else, arguments that differ between ranks.
    """
    default = group is None
    inner = default_group() if group is None else group
    if any(inner is one.group for one in _installed):
        raise InputError("group", inner.group_name, "is planned already", "Take it out first: collective.disable().")
    pairs, known = _read_alike(plans, inner, largest_bytes, calibrate)
    name: Any = f"loadmaster:{next(_numbers)}:{inner.group_name}"
    deciding = PlannedGroup(name, inner, pairs, engines or (fitting_engine,), place=place, largest_bytes=largest_bytes)
    launcher = launcher_of(deciding)
    module = extension(inner) if launcher is not None else None
    planned: PlannedGroup | NativeGroup = deciding
    if launcher is not None and module is not None:
        planned = NativeGroup(name, deciding, launcher, module)
    made = planned.process_group
    # The same record as the inner group's, under a name of its own: how torch.distributed knows a group.
    for register in _registers():
        if inner in register:
            register[made] = register[inner]
    world().pg_names[made] = name
    for tagged in world().tags_to_pg.values():
        if inner in tagged:
            tagged.append(made)
    register_group(name, made)
    installed = Installed(planned, deciding, default=default)
    _installed.append(installed)
    replace_make_p2p_op(_p2p_op_of_inner)
    try:
        deciding.calibration = known or (_measured(made, deciding, pairs) if calibrate is True else None)
    except BaseException:
        installed.disable()
        raise
    planned.forget()
    if default:
        replace_default_group(made)
    return installed


def _read_alike(
    plans: Plans, group: dist.ProcessGroup, largest_bytes: int | None, calibrate: bool | Calibration | str | Path
) -> tuple[list[Planned], Calibration | None]:
    """Read the plans and their calibration, the same on every rank: else some would wait for others that gave up."""
    pairs: list[Planned] = []
    known: Calibration | None = None
    refusal = None
    try:
        pairs = read_plans(plans, group.size())
        if not pairs:
            raise InputError("plans", [], "are none", "Give at least one.")
        known = Calibration.load(calibrate) if isinstance(calibrate, (str, Path)) else None
        known = calibrate if isinstance(calibrate, Calibration) else known
        if known is not None:
            expect_fitting(known, _device_of(group), group.size(), _names(pairs))
    except InputError as error:
        refusal = error
    measured = "measure" if calibrate is True else "none" if known is None else str(known)
    said = {
        "versions": f"loadmaster {loadmaster.__version__}, torch {torch.__version__}",
        "plans": list(_names(pairs)),
        "largest_bytes": largest_bytes,
        "calibrate": measured,
    }
    agree_on(group, said, refusal)
    return pairs, known


def _names(pairs: Sequence[Planned]) -> tuple[str, ...]:
    return tuple(f"{problem.collective} of {problem.sha256[:12]}" for problem, _ in pairs)


def _device_of(group: dist.ProcessGroup) -> torch.device:
    if torch.cuda.is_available() and any(device.type == "cuda" for device in device_types_of(group)):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _measured(planned: dist.ProcessGroup, deciding: PlannedGroup, pairs: Sequence[Planned]) -> Calibration:
    entries = [entry for (collective, _), entry in deciding.entries.items() if collective in MEASURED]
    return measure(
        planned,
        deciding.inner,
        [(entry.problem.collective, entry.plan.algorithms[0].from_bytes) for entry in entries],
        _device_of(deciding.inner),
        _names(pairs),
        deciding.largest_bytes,
    )


def disable() -> None:
    """Take out all that is installed."""
    for installed in reversed(_installed[:]):
        installed.disable()


def stats() -> dict[str, dict[str, Any]]:
    """Counts of what was installed last; InputError: nothing is on.

    Calls by plan ({collective: {engine: calls}}), how many of these were padded ({collective: calls}), and calls that
    went to the inner group ({collective: {reason: calls}}). Barriers, sends and receives are not counted.
    """
    if not _installed:
        raise InputError("collective", None, "are not installed", "Call collective.use(plans) first.")
    return _installed[-1].stats()


def _registers() -> list[dict[Any, Any]]:
    known = world()
    return [known.pg_map, known.pg_names, known.pg_group_ranks, known.pg_backend_config, known.pg_to_tag]


def _p2p_op_of_inner(
    self: dist.P2POp,
    op: Any,
    tensor: torch.Tensor,
    peer: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_peer: int | None = None,
) -> None:
    """Give batches of sends and receives the inner group: they are one call of NCCL only on a group of torch's type."""
    make_p2p_op(self, op, tensor, peer, group, tag, group_peer)
    for one in _installed:
        if self.group is one.group:
            self.group = one.inner
