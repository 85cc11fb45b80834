"""Reports beside the step without a plan, and without tiles that say nothing."""

from __future__ import annotations

import re

import pytest

from loadmaster import planner
from loadmaster.api.report.memory.view import view
from loadmaster.api.report.views import views_of
from loadmaster.models.hardware import hardware
from loadmaster.models.kind import Problem
from loadmaster.models.kinds import read_problem
from loadmaster.models.memory import plain
from loadmaster.models.memory.presets import chain
from loadmaster.models.placement import limits
from loadmaster.models.placement.presets import chain as placement_chain
from loadmaster.models.units import show_bytes
from loadmaster.planner import PlanOptions
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand


def report(problem: Problem, limit: str) -> str:
    plan = planner.plan(problem, PlanOptions(limit=limit, time_limit_s=10.0))
    views = views_of(problem.kind)
    return "".join(views.sections(views.view(problem, plan)))  # type: ignore[attr-defined]


def tiles(html: str) -> set[str]:
    return set(re.findall(r"<dt>([^<]*)</dt>", html))


def test_a_memory_plan_is_beside_the_plain_step() -> None:
    document = chain(6, MEGABYTE)
    problem = read_problem(document)
    html = "".join(views_of("memory").sections(view(problem, plan_by_hand(document, 8 * MEGABYTE))))  # type: ignore[attr-defined]
    assert f"line: the step without a plan, {show_bytes(plain.peak_bytes(problem))} at its peak" in html
    assert html.count('stroke-dasharray="3 2"') == 1
    assert "recomputing" in tiles(html) and "waiting for copies" not in tiles(html)


def test_a_plan_that_gives_nothing_up_has_no_tiles_of_a_price() -> None:
    html = report(read_problem(chain(6, MEGABYTE)), "100%")
    assert tiles(html) >= {"step", "peak", "checker"}
    assert not tiles(html) & {"recomputing", "waiting for copies", "cutting the graph"}
    assert "<i" in html and ">recompute</span>" not in html, "nor a colour that is nowhere"


@pytest.mark.parametrize(("limit", "moves"), [("100%", False), ("70%", True)])
def test_a_placement_plan_says_what_it_moves_if_it_does(limit: str, moves: bool) -> None:
    problem = read_problem(placement_chain(8, MEGABYTE, MEGABYTE, 1000.0, hardware("h200")))
    html = report(problem, limit)
    assert ({"waiting for copies", "stored", "loaded"} <= tiles(html)) == moves
    assert ("loaded" in tiles(html)) == moves
    assert f"{show_bytes(limits.peak_bytes(problem))} at its peak" in html
