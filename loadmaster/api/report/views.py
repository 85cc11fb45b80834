"""How a plan of each kind is shown: the one table that the command line looks in.

A new kind is one more entry here; whatever draws it lies in a package of its name beside this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from loadmaster.api.report.collective import pictures as collective_pictures
from loadmaster.api.report.collective import plan_page as collective_plan_page
from loadmaster.api.report.collective import trace as collective_trace
from loadmaster.api.report.collective import view as collective_view
from loadmaster.api.report.collective import words as collective_words
from loadmaster.api.report.memory import pictures as memory_pictures
from loadmaster.api.report.memory import plan_page as memory_plan_page
from loadmaster.api.report.memory import snapshot as memory_snapshot
from loadmaster.api.report.memory import trace as memory_trace
from loadmaster.api.report.memory import view as memory_view
from loadmaster.api.report.memory import words as memory_words
from loadmaster.models.collective.exports import msccl, mscclpp
from loadmaster.models.kinds import PlanT, ProblemT

VerdictT = TypeVar("VerdictT")
ViewT = TypeVar("ViewT")


@dataclass(frozen=True)
class Views(Generic[ProblemT, PlanT, VerdictT, ViewT]):
    """The functions of one kind.

    Attributes:
        summary: the lines that ``plan``, ``watch`` and ``show`` print, from the plan alone.
        infeasible: of a plan that says that there is none: why, and what to relax, in a sentence or two.
        verdict: what the checker found, in one line, whether or not the plan holds.
        view: a feasible plan joined with its problem, for all that follows; refuses (InputError) a plan that is of
            another problem or does not pass the checker.
        details: the lines that ``show`` adds where it has the problem.
        page: ``show --html``: a whole page that opens offline.
        picture: ``show --png``: writes the file of that path.
        trace: ``show --trace``: a Chrome trace.
        snapshot: ``show --snapshot``: a file for PyTorch's memory viewer.
        msccl: ``show --msccl``: file name -> text, for MSCCL's loaders, with so many instances.
        mscclpp: ``show --mscclpp``: as ``msccl``, for the executor of MSCCL++.

    Of those from ``page`` on, None: plans of the kind have none.
    """

    summary: Callable[[PlanT], str]
    infeasible: Callable[[PlanT], str]
    verdict: Callable[[PlanT, VerdictT], str]
    view: Callable[[ProblemT, PlanT], ViewT]
    details: Callable[[ViewT], str]
    page: Callable[[ViewT], str] | None = None
    picture: Callable[[str, ViewT], None] | None = None
    trace: Callable[[ViewT], dict[str, Any]] | None = None
    snapshot: Callable[[ViewT], bytes] | None = None
    msccl: Callable[[ViewT, int], Mapping[str, str]] | None = None
    mscclpp: Callable[[ViewT, int], Mapping[str, str]] | None = None


VIEWS: dict[str, Views[Any, Any, Any, Any]] = {
    "memory": Views(
        summary=memory_words.summary,
        infeasible=memory_words.infeasible,
        verdict=memory_words.verdict,
        view=memory_view.view,
        details=memory_words.fates,
        page=memory_plan_page.plan_page,
        picture=memory_pictures.plan_png,
        trace=memory_trace.chrome_trace,
        snapshot=memory_snapshot.snapshot_bytes,
    ),
    "collective": Views(
        summary=collective_words.summary,
        infeasible=collective_words.infeasible,
        verdict=collective_words.verdict,
        view=collective_view.view,
        details=collective_words.details,
        page=collective_plan_page.plan_page,
        picture=collective_pictures.plan_png,
        trace=collective_trace.chrome_trace,
        msccl=lambda seen, instances: msccl.msccl_files(seen.problem, seen.plan, instances),
        mscclpp=lambda seen, instances: mscclpp.mscclpp_files(seen.problem, seen.plan, instances),
    ),
}
