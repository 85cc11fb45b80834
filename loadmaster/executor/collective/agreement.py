"""Agreement before a plan runs: the group must have the ranks, hosts and order of devices that the plan is made for.

Every rank tells every other which plan it has and where it is. All ranks then come to the same verdict, so that a
refusal is one everywhere, and none is left waiting.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.distributed import device_types_of
from loadmaster.models.canonical import sha256
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem


@dataclass(frozen=True)
class Place:
    """Host and device that a rank runs on; ranks of one node of the topology share ``host``; device None: no GPU."""

    host: str
    device: int | None = None


def place_here(group: dist.ProcessGroup) -> Place:
    """Return where this process runs: its host's name, and the GPU it has made current if the group has GPUs."""
    device = None
    if torch.cuda.is_available() and any(kind.type == "cuda" for kind in device_types_of(group)):
        device = torch.cuda.current_device()
        visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        if device < len(visible) and visible[device].isdecimal():
            device = int(visible[device])
    return Place(socket.gethostname(), device)


def identity(problem: CollectiveProblem, plan: CollectivePlan, order: str) -> str:
    """Hash of what ranks must have in common to run together: the problem and every send of every algorithm."""
    algorithms = [
        [
            *(a.size_bytes, a.chunk_count, a.form, a.from_bytes),
            [[s.start_ns, s.source, s.target, list(s.chunks), s.combines] for s in a.sends],
        ]
        for a in plan.algorithms
    ]
    return sha256({"problem": problem.sha256, "order": order, "algorithms": algorithms})


def agree_on(group: dist.ProcessGroup, arguments: Mapping[str, object], refusal: InputError | None = None) -> None:
    """Refuse arguments that are not the same everywhere, or that some rank refuses. Every rank of the group calls it.
    ``refusal`` says why this rank refuses its own. All ranks raise InputError; one that refused its own, that
    refusal."""
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, (dict(arguments), refusal), group=group)
    if refusal is not None:
        raise refusal
    for rank, (theirs, refused) in enumerate(said):
        if refused is not None:
            raise InputError("rank", rank, f"was refused its arguments: {refused}", "Correct them there.")
        for name, value in theirs.items():
            if value != said[0][0][name]:
                remedy = "Give every rank the same."
                raise InputError(name, [said[0][0][name], value], f"differs between ranks 0 and {rank}", remedy)


def agree(problem: CollectiveProblem, plan: CollectivePlan, group: dist.ProcessGroup, place: Place, order: str) -> str:
    """Refuse a plan that this group cannot run; otherwise return its identity. Every rank of the group calls it.
    InputError on every rank: the plan is of another problem, has no algorithm, differs between ranks, or is for another
    number of ranks, other hosts, or another order of devices."""
    mine = {
        "plan": identity(problem, plan, order),
        "of": plan.problem_sha256 == problem.sha256,
        "any": bool(plan.algorithms),
        "place": (place.host, place.device),
    }
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, mine, group=group)
    for rank, one in enumerate(said):
        if not one["of"]:
            remedy = "Give the problem the plan is for."
            raise InputError("plan.problem_sha256", rank, "on this rank is of another problem", remedy)
        if not one["any"]:
            raise InputError("plan.algorithms", plan.status, "is empty: there is nothing to run", "Plan it again.")
        if one["plan"] != said[0]["plan"]:
            remedy = "Give every rank the same problem and plan."
            raise InputError("plan", [0, rank], "differs between these two ranks", remedy)
    _expect_places(problem, [Place(*one["place"]) for one in said])
    return str(mine["plan"])


def _expect_places(problem: CollectiveProblem, places: list[Place]) -> None:
    node_of = problem.topology.node_of
    if len(places) != len(node_of):
        reason = f"is the number of ranks planned for; the group has {len(places)}"
        remedy = f"Plan for {len(places)} ranks, or run {len(node_of)}."
        raise InputError("topology.node_of", len(node_of), reason, remedy)
    for b in range(len(places)):
        for a in range(b):
            if (node_of[a] == node_of[b]) != (places[a].host == places[b].host):
                found = f"on host {places[a].host}" if places[a].host == places[b].host else "on two hosts"
                planned = "one node" if node_of[a] == node_of[b] else "two nodes"
                reason = f"these ranks are planned for on {planned} and run {found}"
                remedy = "Start the ranks node by node as planned, or plan for the hosts as they are."
                raise InputError("topology.node_of", [a, b], reason, remedy)
            device, other = places[a].device, places[b].device
            if places[a].host == places[b].host and device is not None and other is not None and device >= other:
                raise InputError(
                    "device",
                    [device, other],
                    f"are the GPUs of ranks {a} and {b}: the plan takes them in ascending order, one a rank",
                    "Call torch.cuda.set_device(LOCAL_RANK) before, and leave the order of CUDA_VISIBLE_DEVICES alone.",
                )
