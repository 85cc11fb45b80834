"""The page of two plans beside each other: what was asked of each, what each comes to, and both in pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from loadmaster.api.report.page import shown
from loadmaster.api.report.views import views_of
from loadmaster.api.server.context import ServiceDep, existing_job
from loadmaster.api.server.pages.frame import page_router, render
from loadmaster.api.server.pages.plan import read_pair
from loadmaster.api.server.pages.words import cost, job_words
from loadmaster.api.store.records import Job, State
from loadmaster.errors import InputError
from loadmaster.models.envelope import Plan

router = page_router()

# Plans to choose the second one from.
_CHOICES = 100
_UNITS = {"_bytes": "bytes", "_us": "us", "_uj": "uj"}


@dataclass(frozen=True)
class Row:
    """One figure of both plans, and what the second is against the first.

    Attributes:
        change: nothing where there is nothing to say.
        sort: ``better`` or ``worse`` where that can be told.
    """

    name: str
    first: str
    second: str
    change: str = ""
    sort: str = ""


@router.get("/compare")
def compare_page(service: ServiceDep, plan: Annotated[list[str] | None, Query(max_length=200)] = None) -> HTMLResponse:
    """Two plans; of one alone, those that it can be compared with."""
    jobs = [existing_job(one, service) for one in dict.fromkeys(plan or [])]
    if len(jobs) == 1:
        others = service.jobs.latest(state=State.SUCCEEDED, kind=jobs[0].kind, limit=_CHOICES)
        choices = [job_words(other) for other in others if other.id != jobs[0].id]
        return render("compare_with.html", job=job_words(jobs[0]), choices=choices)
    if len(jobs) != 2:
        remedy = "Tick two in the list of plans."
        raise InputError("query.plan", len(jobs), "is not how many plans can be compared", remedy)
    first, second = jobs
    if first.kind != second.kind:
        remedy = "Tick two of one kind."
        raise InputError("query.plan", f"{first.kind} and {second.kind}", "are plans of two kinds", remedy)
    pairs = [read_pair(service, job) for job in jobs]
    checks = [{} if pair is None else pair[1].check for pair in pairs]
    rows = [*_asked(first, second), *_figures(first, second), *_checked(*checks)]
    views = _views(pairs)
    return render(
        "compare.html",
        jobs=[job_words(job) for job in jobs],
        rows=rows,
        both=_both(pairs, views),
        pictures=list(zip_longest(*(_pictures(first.kind, view) for view in views))),
    )


def _asked(first: Job, second: Job) -> list[Row]:
    """The options in which they differ; limits are among the figures."""
    names = dict.fromkeys([*first.options, *second.options])
    given = [(name, first.options.get(name), second.options.get(name)) for name in names]
    return [Row(name, _text(a), _text(b)) for name, a, b in given if a != b and name not in ("limit", "budget_bytes")]


def _figures(first: Job, second: Job) -> list[Row]:
    a, b = job_words(first), job_words(second)
    rows = [Row(a.limit_name, a.limit, b.limit, *_change(first.limit, second.limit, judged=False))] if a.limit else []
    rows.append(Row("objective", a.objective, b.objective, *_change(first.objective, second.objective)))
    rows.append(Row("proved bound", a.bound, b.bound, *_change(first.bound, second.bound, judged=False)))
    rows.append(Row("gap", a.gap, b.gap))
    rows.append(Row("searched for", a.ran, b.ran))
    return rows


def _checked(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Row]:
    """What the checker found, where it is a number with a unit in its name: of each such figure, less is better."""
    rows = []
    for name in dict.fromkeys([*first, *second]):
        unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
        a, b = (value if isinstance(value := of.get(name), int | float) else None for of in (first, second))
        if unit is not None and (a or b):
            words = name.rpartition("_")[0].replace("_", " ")
            rows.append(Row(words, cost(a, unit), cost(b, unit), *_change(a, b)))
    return rows


def _change(first: float | None, second: float | None, *, judged: bool = True) -> tuple[str, str]:
    """By how much the second is more or less, and whether that is good."""
    if not first or second is None:
        return "", ""
    if first == second:
        return "the same", ""
    change = second / first - 1
    return f"{change:+.2%}".replace("%", " %"), ("better" if change < 0 else "worse") if judged else ""


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _views(pairs: Sequence[tuple[Any, Plan] | None]) -> list[Any]:
    """What pictures are made of, or None where a plan has none."""
    return [
        None if pair is None or pair[1].status == "infeasible" else views_of(pair[1].kind).view(*pair) for pair in pairs
    ]


def _pictures(kind: str, view: Any) -> list[Markup]:
    """Those of one plan, if its kind draws any."""
    draw = None if view is None else getattr(views_of(kind), "pictures", None)
    return [] if draw is None else [Markup(shown(picture)) for picture in draw(view)]


def _both(pairs: Sequence[tuple[Any, Plan] | None], views: Sequence[Any]) -> list[Markup]:
    """Those of two plans of one problem in one, if their kind draws any."""
    plans = [pair[1] for pair in pairs if pair is not None]
    if None in views or len({plan.problem_sha256 for plan in plans}) != 1:
        return []
    draw = getattr(views_of(plans[0].kind), "both", None)
    return [] if draw is None else [Markup(shown(picture)) for picture in draw(*views)]
