"""Plans to run, from wherever they are: typed, or documents in files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem

AnyPath = str | os.PathLike[str]
Typed = TypeVar("Typed", CollectiveProblem, CollectivePlan)
Planned = tuple[CollectiveProblem, CollectivePlan]
Pair = tuple[CollectiveProblem | AnyPath, CollectivePlan | AnyPath]
Plans = AnyPath | Iterable[Pair | AnyPath]
"""A file or a folder; or several of these, and of pairs of a problem and its plan, each typed or a path."""


def read_plans(plans: Plans, ranks: int) -> list[Planned]:
    """Read problems with their plans.

    A file holds ``{"problem": document, "plan": document}``, or the document of a problem or of a plan: these find each
    other. A folder holds such files; its plans for other numbers of ranks, and its other files, are left out.
    InputError: a file that cannot be read; a document of another kind; a plan without its problem; a folder without a
    plan for so many ranks.
    """
    files, found = [], []
    for one in [plans] if isinstance(plans, str | os.PathLike) else plans:
        if isinstance(one, str | os.PathLike):
            path = Path(one)
            if path.is_dir():
                found += _of_folder(path, ranks)
            else:
                files.append(path)
        elif isinstance(one, tuple | list) and len(one) == 2:
            found.append(_pair(*one))
        else:
            raise InputError("plans", one, "is no pair of problem and plan", "Give [(problem, plan)], or paths.")
    return found + _of_documents(_documents(files))


def _of_folder(folder: Path, ranks: int) -> list[Planned]:
    documents = _documents(sorted(folder.glob("*.json")))
    found = _of_documents({p: one for p, one in documents.items() if _is_both(one) or one.get("kind") == "collective"})
    fitting = [pair for pair in found if pair[0].topology.rank_count == ranks]
    if not fitting:
        there = ", ".join(map(str, sorted({problem.topology.rank_count for problem, _ in found})))
        raise InputError(
            "plans",
            str(folder),
            f"has no plan for {ranks} ranks" + (f", but for {there}" if there else ""),
            f"Plan for {ranks} ranks, or run as many as planned for.",
        )
    return fitting


def _documents(paths: Iterable[Path]) -> dict[Path, Mapping[str, Any]]:
    # Here and below: the readers of documents take pydantic, which runs with typed plans do without.
    from loadmaster.models.documents import load_document

    return {path: load_document(path) for path in paths}


def _of_documents(documents: Mapping[Path, Mapping[str, Any]]) -> list[Planned]:
    found: list[Planned] = []
    problems: dict[str, CollectiveProblem] = {}
    plans: list[tuple[Path, CollectivePlan]] = []
    for path, document in documents.items():
        if _is_both(document):
            found.append(_pair(document["problem"], document["plan"]))
        elif "problem_sha256" in document:
            plans.append((path, _typed("plan", CollectivePlan, document)))
        else:
            problem = _typed("problem", CollectiveProblem, document)
            problems[problem.sha256] = problem
    for path, plan in plans:
        if plan.problem_sha256 not in problems:
            problem_is = f"of {path} is of none of the problems given"
            raise InputError("plan.problem_sha256", plan.problem_sha256[:12], problem_is, "Give its problem too.")
        found.append((problems[plan.problem_sha256], plan))
    if documents and not found:
        raise InputError("plans", [str(path) for path in documents], "hold no plan", "Give the plan too.")
    return found


def _is_both(document: Mapping[str, Any]) -> bool:
    return {"problem", "plan"} <= set(document)


def _pair(problem: Any, plan: Any) -> Planned:
    asked, found = _typed("problem", CollectiveProblem, problem), _typed("plan", CollectivePlan, plan)
    if found.problem_sha256 != asked.sha256:
        reason = f"of {found.name} is not that of the problem {asked.name} ({asked.sha256[:12]})"
        raise InputError("plan.problem_sha256", found.problem_sha256[:12], reason, "Give the problem the plan is for.")
    return asked, found


def _typed(what: Literal["problem", "plan"], wanted: type[Typed], given: Any) -> Typed:
    if isinstance(given, wanted):
        return given
    from loadmaster.models import kinds

    read = (kinds.read_problem if what == "problem" else kinds.read_plan)(given)
    if not isinstance(read, wanted):
        raise InputError(f"{what}.kind", read.kind, "is no collective", f"Give the {what} of a collective.")
    return read
