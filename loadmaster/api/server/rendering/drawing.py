"""Drawing of plans in processes that work for the server: exports, the pieces of a page, comparisons.

Documents come packed, as the store has them, so that the server itself never has them whole in memory.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from markupsafe import Markup

from loadmaster.api.packed import unpack
from loadmaster.api.report.page import shown
from loadmaster.api.report.views import export, view_of, views_of
from loadmaster.errors import InputError
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Export
from loadmaster.models.kinds import read_measurement, read_plan, read_problem

__all__ = ["ComparedPlans", "ShownPlan", "compare", "show", "write_export"]

# The server has a page whole in memory.
LARGEST_PAGE_BYTES = 16 << 20


@dataclass(frozen=True)
class ShownPlan:
    """The pieces of a page that shows one plan: HTML, none where there is no plan and the reason is in ``why``.
    ``measured``: it shows what was measured, too."""

    title: str
    sections: tuple[Markup, ...]
    why: str = ""
    measured: bool = False


@dataclass(frozen=True)
class ComparedPlans:
    """The pieces of a page that compares two plans: the checker's findings on each, pictures of both in one, and of
    each alone."""

    checks: tuple[Mapping[str, Any], Mapping[str, Any]]
    both: tuple[Markup, ...]
    pictures: tuple[tuple[Markup, ...], tuple[Markup, ...]]


def write_export(
    file: IO[bytes], what: Export, numbers: Mapping[str, int], problem: bytes, plan: bytes, measured: bytes = b""
) -> None:
    """A feasible plan as one export of its kind; several files come as one ZIP archive. Raises InputError if the plan
    does not hold, or cannot be written in this form."""
    typed, found = _read(problem, plan)
    written = export(typed, found, what, numbers, _measured(measured, found))
    if isinstance(written, bytes):
        file.write(written)
        return
    # Equal files make equal archives.
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in written.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    file.write(target.getbuffer())


def show(problem: bytes, plan: bytes, measured: bytes = b"") -> ShownPlan:
    """The pieces of the page of a plan. Raises InputError if the plan does not hold, or is too large for a page."""
    typed, found = _read(problem, plan)
    views, title = views_of(found.kind), typed.title or typed.name
    if found.status == "infeasible":
        return ShownPlan(title, (), views.infeasible(found))
    view = view_of(typed, found, _measured(measured, found))
    # A kind without pieces of a report may have pictures, and always has words.
    if hasattr(views, "sections"):
        pieces = views.sections(view)
    elif hasattr(views, "pictures"):
        pieces = map(shown, views.pictures(view))
    else:
        pieces = [Markup("<pre>{}\n{}</pre>").format(views.summary(found), views.details(view))]
    return ShownPlan(title, _pieces(pieces), measured=getattr(view, "measured", None) is not None)


def compare(*documents: bytes) -> ComparedPlans:
    """Compare two plans of one kind; given are the problem and the plan of each. Raises InputError if a plan does not
    hold, or the two are too large for a page."""
    pairs = [_read(*documents[:2]), _read(*documents[2:])]
    views = [None if plan.status == "infeasible" else view_of(problem, plan) for problem, plan in pairs]
    pictures = [_pictures(plan.kind, view) for (_, plan), view in zip(pairs, views, strict=True)]
    checks = [dict(plan.check) for _, plan in pairs]
    return ComparedPlans((checks[0], checks[1]), _both(pairs, views), (pictures[0], pictures[1]))


def _read(problem: bytes, plan: bytes) -> tuple[Any, Plan]:
    return read_problem(json.loads(unpack(problem))), read_plan(json.loads(unpack(plan)))


def _measured(measured: bytes, plan: Plan) -> Any:
    return read_measurement(json.loads(unpack(measured)), plan) if measured else None


def _pictures(kind: str, view: Any) -> tuple[Markup, ...]:
    """The pictures of one plan, if its kind draws any."""
    draw = None if view is None else getattr(views_of(kind), "pictures", None)
    return () if draw is None else _pieces(map(shown, draw(view)))


def _both(pairs: list[tuple[Any, Plan]], views: list[Any]) -> tuple[Markup, ...]:
    """The pictures that show two plans of one problem together, if their kind draws any."""
    plans = [plan for _, plan in pairs]
    if None in views or len({plan.problem_sha256 for plan in plans}) != 1:
        return ()
    draw = getattr(views_of(plans[0].kind), "both", None)
    return () if draw is None else _pieces(map(shown, draw(*views)))


def _pieces(made: Iterable[str]) -> tuple[Markup, ...]:
    pieces = tuple(map(Markup, made))
    size = sum(map(len, pieces))
    if size > LARGEST_PAGE_BYTES:
        remedy = "Take it as an export, or as a document for loadmaster show."
        raise InputError("plan", size, f"takes a page of more than {LARGEST_PAGE_BYTES} characters", remedy)
    return pieces
