"""Bases of the problems and plans of every kind, which save and show themselves. Kinds, words and pictures are in other
rooms and on the floor above; they are named here and imported when asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from typing import Any, cast
from weakref import WeakValueDictionary

from loadmaster.models.files import write_text
from loadmaster.models.references import resolve
from loadmaster.models.units import show_cost, show_limit, show_share

_KINDS = "loadmaster.models.kinds"
_LONGEST_NAME = 60

# Problems that were planned in this process and are still held: a notebook draws their plans.
_planned: WeakValueDictionary[str, Any] = WeakValueDictionary()


class ShownProblem:
    """Base of the problems of every kind. (Problems of other packages may do without it.)"""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the problem to a file, or raise InputError; ``loadmaster.load_problem(path)`` reads it back."""
        save_document(path, resolve(f"{_KINDS}:write_problem")(self))

    def summary(self) -> Any:
        """Summarize the problem's size and needs: ``print`` the result, or take its ``figures``
        (:class:`loadmaster.models.summary.Summary`)."""
        return resolve("loadmaster.models.summary:summarize")(self)

    def __repr__(self) -> str:
        problem = cast(Any, self)
        parts = [f"{what} {count}" for what, count in problem.sizes.items()]
        return one_line(self, problem.name, [*parts, *_limit_words(problem)])

    def _repr_html_(self) -> str:
        return cast(str, self.summary()._repr_html_())


class ShownPlan:
    """Base of the plans of every kind, which saves and shows them."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file, or raise InputError; ``loadmaster.load_plan(path)`` reads it back."""
        save_document(path, resolve(f"{_KINDS}:write_plan")(self))

    def summary(self) -> str:
        """Summarize the plan as ``loadmaster show`` prints it: the answer, its proof and its cost."""
        plan = cast(Any, self)
        return cast(str, resolve(resolve(f"{_KINDS}:kind_named")(plan.kind).views).summary(plan))

    def __repr__(self) -> str:
        plan = cast(Any, self)
        parts = [plan.status]
        if plan.objective is not None:
            parts.append(f"objective {show_cost(plan.objective, plan.unit)}")
        if plan.bound is not None:
            parts.append(f"bound {show_cost(plan.bound, plan.unit)}")
        if plan.gap is not None:
            parts.append(f"gap {show_share(plan.gap)}")
        return one_line(self, plan.name, [*parts, *_limit_words(plan)])

    def _repr_html_(self) -> str:
        """Show the plan as a table in a notebook, with its picture if its problem was planned here and still exists."""
        problem = remembered(cast(Any, self).problem_sha256)
        return cast(str, resolve("loadmaster.api.report.notebook:plan_html")(self, problem))


def remember(problem: Any) -> None:
    """Remember a problem that is planned, so that its plans can find it as long as somebody holds it."""
    _planned[problem.sha256] = problem


def remembered(problem_sha256: str) -> Any:
    """Return the problem of that identity, if it was planned here and is still held; else None."""
    return _planned.get(problem_sha256)


def save_document(path: str | PathLike[str], document: dict[str, Any]) -> None:
    """Write a document to a file as one line of JSON, whole or not at all; raise InputError where that fails."""
    write_text(path, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n", "path")


def one_line(what: object, name: str, parts: Sequence[str]) -> str:
    """Write the ``repr`` of a problem or plan: ``<MemoryPlan net: optimal, gap 0.41 %>``."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
    return f"<{type(what).__name__} {short}: {', '.join(parts)}>"


def _limit_words(what: Any) -> list[str]:
    kind = resolve(f"{_KINDS}:find_kind")(what.kind)
    limit = None if kind is None else kind.limit
    value = None if limit is None else getattr(what, limit.field)
    return [] if limit is None or value is None else [f"{limit.name} {show_limit(value, limit.unit)}"]
