"""Views of plans by kind: what the room of a kind offers to command line, service and pages."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Export, Problem, resolve
from loadmaster.models.kinds import kind_named
from loadmaster.solvers.mps import write_mps
from loadmaster.solvers.program import Program


class Views(Protocol):
    """The module that the registration of a kind names. It may also have ``pictures(view)``, drawn in a notebook
    (:class:`loadmaster.api.report.picture.Picture`); ``sections(view)``, pieces of HTML for the service's page of a
    plan, made of what :mod:`loadmaster.api.report.page` offers; and ``both(first, second)``, pictures that compare two
    plans of one problem."""

    def summary(self, plan: Any) -> str:
        """The lines that ``plan``, ``watch`` and ``show`` print, from the plan alone: where it is infeasible, why."""

    def infeasible(self, plan: Any) -> str:
        """Explain in a sentence or two why no plan exists, and what to relax (where the summary is not printed)."""

    def verdict(self, plan: Any, verdict: Any) -> str:
        """The checker's findings in one line, whether or not the plan holds."""

    def view(self, problem: Any, plan: Any) -> Any:
        """A feasible plan joined with its problem, for details and exports; refuses (InputError) a plan that is of
        another problem or does not pass the checker."""

    def details(self, view: Any) -> str:
        """The lines that ``show`` adds where it has the problem."""


def html(seen: Any) -> bytes:
    """Export the page of a kind of this package, which opens offline."""
    page: str = resolve(f"{kind_named(seen.plan.kind).views}:plan_page")(seen)
    return page.encode()


def trace(seen: Any) -> bytes:
    """Export the Chrome trace of a kind of this package as JSON."""
    return json.dumps(resolve(f"{kind_named(seen.plan.kind).views}:chrome_trace")(seen)).encode()


def views_of(kind: str) -> Views:
    """The views of a kind. Raises InputError if it is not the name of a kind."""
    found: Views = resolve(kind_named(kind).views)
    return found


def view_of(problem: Problem, plan: Plan, measured: Any = None) -> Any:
    """A feasible plan joined with its problem, and with what it measured when it ran, as its kind has read it. Raises
    InputError if the plan is of another problem, or does not hold."""
    view = views_of(plan.kind).view(problem, plan)
    return view if measured is None else replace(view, measured=measured)


def export(
    problem: Problem, plan: Plan, what: Export, numbers: Mapping[str, int], measured: Any = None
) -> bytes | Mapping[str, bytes]:
    """A feasible plan as one export of its kind: the file, or file name -> file where it is several. Raises InputError
    if the plan does not hold, or cannot be written in this form."""
    return export_view(view_of(problem, plan, measured), what, numbers)


def export_view(view: Any, what: Export, numbers: Mapping[str, int]) -> bytes | Mapping[str, bytes]:
    """Export a plan from a view that was made before; see :func:`export`."""
    written: bytes | Mapping[str, bytes] = resolve(what.write)(view, **numbers)
    return written


@dataclass(frozen=True)
class Simulated:
    """Some policies, run on one problem under one limit: the lines that are printed, the same as figures, and a
    function that makes the page."""

    text: str
    document: Mapping[str, Any]
    html: Callable[[], str]


_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 100


def file_name(name: str, rest: str = "") -> str:
    """The name of a file, without a folder, made from the name of a document.

    >>> file_name("../../x y", ".html")
    'x-y.html'
    """
    return (_OTHER_CHARACTERS.sub("-", name).strip(".-")[:_LONGEST] or "document") + rest


def mps_file(program: Program, plan: Plan, words: str) -> bytes:
    """Write a program as an MPS file with its head, whose ``words`` say what the program's points are."""
    file = io.StringIO()
    # Names come from documents: one with a line break in it would end the comment.
    file.write(f"* {plan.name!a}: {words}\n")
    file.write(f"* The objective is in {plan.unit}. It has a constant: add {program.offset!r} to what a solver says.\n")
    write_mps(program, file)
    return file.getvalue().encode()
