"""JSON of the kind ``memory``: problem and plan documents to typed data and back.

Fields, stages and accounting are those of the published training graphs; captured graphs and offload add the optional
ones (``host_link``, ``role``, ``recomputable``, ``offloadable``, ``node``, ``module``, ``source``, energies).
"""

from __future__ import annotations

from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments, expect_with_status
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import BackwardOperator, ForwardOperator, InPlace, MemoryProblem, Objective


def check_problem(problem: MemoryProblem) -> None:
    """Refuse a typed problem that means nothing; raises as :func:`check_graph` does."""
    check_graph(problem.forward, problem.backward, problem.objective)


def check_graph(
    forward: tuple[ForwardOperator, ...], backward: tuple[BackwardOperator, ...], objective: Objective
) -> None:
    """Refuse operators and edges that are not a training graph, with an ``InputError`` that names the field. It refuses
    ids out of order, edges that point forwards or nowhere, encoded results and in-place operators that contradict each
    other, and energies missing where the objective asks for them."""
    count = len(forward)
    ordered = "Number the operators 0, 1, 2, ... in execution order; each may read only earlier ones."
    for position, f in enumerate(forward):
        where = f"forward[{position}]"
        if f.id != position:
            raise InputError(f"{where}.id", f.id, f"is not its position {position}", ordered)
        for name, ids in (("inputs", f.inputs), ("live_inputs", f.live_inputs)):
            for i in ids:
                if i >= count:
                    raise InputError(f"{where}.{name}", i, "names no forward operator: a dangling edge", ordered)
                if i >= position:
                    raise InputError(f"{where}.{name}", i, "is not earlier: the graph would be cyclic", ordered)
        if f.encodes is not None and f.encodes >= position:
            raise InputError(f"{where}.encodes", f.encodes, "is not an earlier forward operator", ordered)
        if f.encodes is not None and forward[f.encodes].encodes is not None:
            raise InputError(
                f"{where}.encodes", f.encodes, "is itself an encoded result", "Name the operator both encode."
            )
        if f.in_place is not None and f.encodes is None and f.in_place.overwrites not in f.inputs:
            raise InputError(
                f"{where}.in_place.overwrites", f.in_place.overwrites, "is not an input", "Name one of its inputs."
            )
        if f.in_place is not None and f.encodes is not None and forward[f.encodes].in_place is None:
            raise InputError(
                f"{where}.in_place", f.encodes, "its parent has no in_place", "Remove it, or give the parent one."
            )
        if f.in_place is not None:
            _check_in_place(where, f, f.in_place)
        parent = None if f.encodes is None else forward[f.encodes].in_place
        if f.in_place is not None and parent is not None and f.in_place.overwrites != parent.overwrites:
            raise InputError(
                f"{where}.in_place.overwrites",
                f.in_place.overwrites,
                f"is not what its parent overwrites, forward {parent.overwrites}",
                "Give the same: only the parent writes.",
            )
    for position, b in enumerate(backward):
        where = f"backward[{position}]"
        if b.id != position + 1:
            raise InputError(f"{where}.id", b.id, f"is not {position + 1}", "Number backward operators 1, 2, 3, ...")
        for number, c in enumerate(b.implementations):
            for i in c.needs:
                if i >= count:
                    raise InputError(
                        f"{where}.implementations[{number}].needs",
                        i,
                        "names no forward operator: a dangling edge",
                        f"Forward ids run from 0 to {count - 1}.",
                    )
    if objective == "energy":
        _check_energies(forward, backward)


def _check_in_place(where: str, operator: ForwardOperator, in_place: InPlace) -> None:
    """Refuse an operator that saves more time or energy in place than it takes."""
    least_us = min(c.time_us for c in (*operator.implementations, *operator.recompute_implementations))
    if least_us + in_place.time_delta_us < 0:
        raise InputError(
            f"{where}.in_place.time_delta_us",
            in_place.time_delta_us,
            f"makes the operator's time of {least_us} us negative",
            f"Give at least {-least_us}.",
        )
    energies = [c.energy_uj for c in (*operator.implementations, *operator.recompute_implementations)]
    least_uj = min((e for e in energies if e is not None), default=0.0)
    delta_uj = in_place.energy_delta_uj
    if delta_uj is not None and least_uj + delta_uj < 0:
        raise InputError(
            f"{where}.in_place.energy_delta_uj",
            delta_uj,
            f"makes the operator's energy of {least_uj} uJ negative",
            f"Give at least {-least_uj}.",
        )


def _check_energies(forward: tuple[ForwardOperator, ...], backward: tuple[BackwardOperator, ...]) -> None:
    remedy = 'Give every implementation an energy_uj, or set "objective" to "time".'
    for f in forward:
        for name, choices in (
            ("implementations", f.implementations),
            ("recompute_implementations", f.recompute_implementations),
        ):
            for number, c in enumerate(choices):
                if c.energy_uj is None:
                    raise InputError(f"forward[{f.id}].{name}[{number}].energy_uj", None, "is missing", remedy)
        if f.in_place is not None and f.in_place.energy_delta_uj is None:
            raise InputError(f"forward[{f.id}].in_place.energy_delta_uj", None, "is missing", remedy)
    for position, b in enumerate(backward):
        for number, k in enumerate(b.implementations):
            if k.energy_uj is None:
                raise InputError(
                    f"backward[{position}].implementations[{number}].energy_uj", None, "is missing", remedy
                )


def _check_plan(plan: MemoryPlan) -> None:
    expect_with_status(plan, "objective", "schedule")
    schedule = plan.schedule
    if schedule is not None and len(schedule.gone_before) not in (0, len(schedule.offload)):
        raise InputError(
            "schedule.gone_before",
            list(schedule.gone_before),
            f"has {len(schedule.gone_before)} entries for the {len(schedule.offload)} of schedule.offload",
            "Give one for each, or leave the field out: all are there until the backward pass starts.",
        )


DOCUMENTS = KindDocuments(MemoryProblem, MemoryPlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
