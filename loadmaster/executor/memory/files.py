"""Problem and plan documents without pydantic: GPU hosts often have torch and numpy only.

Reading here trusts the document: validate it where Loadmaster is fully installed
(:mod:`loadmaster.models.memory.documents`), which reads and writes the same JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.canonical import plain
from loadmaster.models.memory.plan import Blocker, Compute, Fetch, Infeasibility, MemoryPlan, Schedule, Stage
from loadmaster.models.memory.problem import KIND, MemoryProblem

PROBLEM_SCHEMA = "loadmaster/problem/1"
PLAN_SCHEMA = "loadmaster/plan/1"


def problem_document(problem: MemoryProblem) -> dict[str, Any]:
    """The JSON document of a problem."""
    document: dict[str, Any] = plain(
        {
            "schema": PROBLEM_SCHEMA,
            "kind": KIND,
            "name": problem.name,
            "title": problem.title,
            "budget_bytes": problem.budget_bytes,
            "objective": problem.objective,
            "host_link": None if problem.host_link is None else asdict(problem.host_link),
            "forward": [asdict(f) for f in problem.forward],
            "backward": [asdict(b) for b in problem.backward],
        }
    )
    return document


def read_plan(path: str | Path) -> MemoryPlan:
    """A plan from a JSON file.

    Raises:
        InputError: the file is missing, holds no plan of this kind and version, or lacks a field.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError("path", str(path), f"cannot be read: {error}", "Give a plan's JSON document.") from None
    return plan_from(document, str(path))


def plan_from(document: object, source: str) -> MemoryPlan:
    """A plan from its JSON document.

    Args:
        source: where the document comes from, for errors.

    Raises:
        InputError: it is no plan of this kind and version, or lacks a field.
    """
    if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA or document.get("kind") != KIND:
        raise InputError("path", source, "is no memory plan", f"Give a document with schema {PLAN_SCHEMA}.")
    fields = {k: v for k, v in document.items() if k not in ("schema", "kind", "schedule", "infeasibility")}
    optional = dict.fromkeys(("objective", "bound", "gap", "overhead_gap"))
    infeasibility = document.get("infeasibility")
    schedule = document.get("schedule")
    try:
        return MemoryPlan(
            **{**optional, **fields},
            schedule=None if schedule is None else _schedule(schedule),
            infeasibility=None if infeasibility is None else _infeasibility(infeasibility),
        )
    except (KeyError, TypeError) as error:
        raise InputError("path", source, f"is not a whole plan: {error}", "Export the plan again.") from None


def _schedule(document: Mapping[str, Any]) -> Schedule:
    return Schedule(
        stages=tuple(_stage(s) for s in document["stages"]),
        offload=tuple(document.get("offload", ())),
        gone_before=tuple(document.get("gone_before", ())),
    )


def _stage(document: Mapping[str, Any]) -> Stage:
    return Stage(
        computes=tuple(Compute(**c) for c in document["computes"]),
        implementation=document.get("implementation"),
        keep=tuple(document["keep"]),
        fetches=tuple(Fetch(**f) for f in document.get("fetches", ())),
    )


def _infeasibility(document: Mapping[str, Any]) -> Infeasibility:
    return Infeasibility(**{**document, "blockers": tuple(Blocker(**b) for b in document["blockers"])})
