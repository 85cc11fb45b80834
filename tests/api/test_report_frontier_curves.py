"""A frontier beside its restrictions, the plain step and measured points: picture, table and notebook."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

import loadmaster
from loadmaster.api.report.extras import Extras
from loadmaster.api.report.frontier import curve_picture, frontier_page, frontier_png, frontier_rows
from loadmaster.api.report.frontier_curves import beside_picture
from loadmaster.api.report.measured import Measured
from loadmaster.api.report.memory.views import frontier_extras
from loadmaster.errors import InputError
from loadmaster.models.kinds import limit_of, read_problem
from loadmaster.models.memory.plan import MemoryInfeasibility, MemoryPlan
from loadmaster.models.memory.presets import chain
from loadmaster.planner import Frontier, FrontierPoint
from tests.api.cli.plans_by_hand import MEGABYTE, no_plan, plan_by_hand

DOCUMENT = chain(6, MEGABYTE) | {"host_link": {"to_host_gbps": 1.0, "from_host_gbps": 1.0}}
PROBLEM, LIMIT = read_problem(DOCUMENT), limit_of("memory")
BUDGETS = (4 * MEGABYTE, 6 * MEGABYTE)
MEASURED = (Measured("eager", 9 * MEGABYTE, 21_000.0), Measured("any mixture", 6 * MEGABYTE, 26_000.0))


def planned(budget: int, objective: float | None) -> MemoryPlan:
    if objective is None:
        return no_plan(DOCUMENT, budget, MemoryInfeasibility(budget + 1, 1, "backward 2", ()))
    return plan_by_hand(DOCUMENT, budget, objective=objective, bound=0.9 * objective)


def curve(*objectives: float | None) -> list[MemoryPlan]:
    return [planned(budget, objective) for budget, objective in zip(BUDGETS, objectives, strict=False)]


CURVE = curve(30_000.0, 25_000.0)
RESTRICTED = {"recompute only": curve(36_000.0, 25_000.0), "offload only": curve(None, 40_000.0)}


def extras(restrictions: Mapping[str, list[MemoryPlan]], measured: tuple[Measured, ...] = ()) -> Extras:
    return replace(frontier_extras(PROBLEM, CURVE), restrictions=restrictions, measured=measured)


def drawn(found: Extras) -> tuple[str, list[str]]:
    """The drawing, and the words of its legend."""
    picture = beside_picture(LIMIT, CURVE, found)
    return picture.drawing.svg(), [words for _, words in picture.legend]


def test_a_curve_for_each_restriction_and_a_mark_for_each_other_point() -> None:
    svg, legend = drawn(extras(RESTRICTED, MEASURED))
    assert legend == [
        "any mixture",
        "recompute only",
        "offload only",
        "down to the proved bound",
        "keep everything (diamond)",
        "eager (square)",
        "any mixture (square)",
    ]
    dots = re.findall(r"<circle .*?<title>(.*?)</title>", svg)
    assert dots == [
        "any mixture: 30.00 ms at 3.81 MiB, gap 10.00 %",
        "any mixture: 25.00 ms at 5.72 MiB, gap 10.00 %",
        "recompute only: 36.00 ms at 3.81 MiB, gap 10.00 %",
        "recompute only: 25.00 ms at 5.72 MiB, gap 10.00 %",
        "offload only: 40.00 ms at 5.72 MiB, gap 10.00 %",
    ]
    assert re.findall(r"<rect .*?<title>(.*?)</title>", svg) == [
        "eager, 21.00 ms at 8.58 MiB",
        "any mixture, 26.00 ms at 5.72 MiB",
    ]
    assert "budget or measured peak, MiB" in svg and svg.count("fill-opacity") == 2


def test_everything_drawn_is_inside_the_axes() -> None:
    svg, _ = drawn(extras(RESTRICTED, MEASURED))
    at = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.-]+)" cy="([\d.-]+)"', svg)]
    at += [(float(x), float(y)) for x, y in re.findall(r'<rect x="([\d.-]+)" y="([\d.-]+)"', svg)]
    assert len(at) == 7 and all(64 <= x <= 942 and 16 <= y <= 396 for x, y in at)
    # More time is further up, more memory further right.
    (x0, y0), (x1, y1), (x2, y2) = at[0], at[1], at[2]
    assert x0 == x2 < x1 and y2 < y0 < y1


@pytest.mark.parametrize(("dear", "labels"), [(60_000.0, ("20", "30", "60")), (900_000.0, ("20", "50", "100", "500"))])
def test_steps_far_apart_are_on_a_logarithmic_axis(dear: float, labels: tuple[str, ...]) -> None:
    """Twice as long is as far up anywhere."""
    svg, _ = drawn(extras({"recompute only": curve(dear, 60_000.0)}))
    assert all(f'text-anchor="end">{label}</text>' in svg for label in labels)
    at = [float(y) for y in re.findall(r'cx="[\d.-]+" cy="([\d.-]+)"', svg)]
    if dear == 60_000.0:
        assert at[2] == at[3]
        assert at[0] - at[2] == pytest.approx((at[1] - at[2]) * 0.7918, rel=1e-2)  # log 2 / log 2.4


def test_a_restriction_without_any_plan() -> None:
    """It has no curve; the legend and the table say so."""
    found = extras({"offload only": curve(None, None), "recompute only": []})
    svg, legend = drawn(found)
    assert legend[1:3] == ["offload only: no plan", "recompute only: no plan"]
    assert svg.count("<circle") == 2
    _, rows = frontier_rows(LIMIT, CURVE, found)
    assert [row[-2:] for row in rows] == [["no plan", "unknown"]] * 2
    assert frontier_png("title", LIMIT, CURVE, found).startswith(b"\x89PNG")


def test_the_table_has_a_column_for_each_restriction() -> None:
    header, rows = frontier_rows(LIMIT, CURVE, extras(RESTRICTED))
    assert header[:5] == ["budget", "status", "step", "bound", "gap"]
    assert header[-2:] == ["recompute only", "offload only"]
    assert [row[-2:] for row in rows] == [
        ["36.00 ms, gap 10.00 %", "no plan"],
        ["25.00 ms, gap 10.00 %", "40.00 ms, gap 10.00 %"],
    ]
    assert all(len(row) == len(header) for row in rows)


def test_the_page_lists_what_was_measured() -> None:
    page = frontier_page("title", LIMIT, CURVE, extras({}, (Measured("<b>", 9 * MEGABYTE, 21_000.0),)))
    assert "<h2>Measured</h2>" in page and "&lt;b&gt;" in page and "<b>" not in page
    assert "Measured" not in frontier_page("title", LIMIT, CURVE, extras(RESTRICTED))


def test_a_curve_alone_is_drawn_as_ever() -> None:
    """With its line of memory to spare and the gap at each point; beside others a kind without a plain step has it."""
    alone = Extras(objective="step", baseline=("memory to spare", 20_000.0))
    picture = curve_picture(LIMIT, CURVE, alone)
    assert [words for _, words in picture.legend] == ["best plan found", "between the plan and the proved bound"]
    assert ">10.0 %</text>" in picture.drawing.svg()
    for found in (alone, replace(alone, measured=MEASURED)):
        assert ">memory to spare</text>" in curve_picture(LIMIT, CURVE, found).drawing.svg()
    assert "memory to spare" not in drawn(extras(RESTRICTED))[0]


def frontier_of(plans: list[MemoryPlan], **more: Frontier) -> Frontier:
    points = tuple(FrontierPoint(plan.budget_bytes, plan) for plan in plans)
    return Frontier(PROBLEM.name, points, restrictions={name.replace("_", " "): of for name, of in more.items()})


def test_a_frontier_shown_with_its_problem() -> None:
    found = frontier_of(CURVE, recompute_only=frontier_of(RESTRICTED["recompute only"]))
    rows = [{"method": "eager", "step_us": 21_000.0, "peak_bytes": 9 * MEGABYTE}]
    shown = loadmaster.show(PROBLEM, found, measured=rows)
    words = repr(shown)
    assert "recompute only" in words and "36.00 ms" in words and re.search(r"eager +8.58 MiB +21.00 ms", words)
    markup = shown._repr_html_()
    assert markup.count("<circle") == 4 and "<title>eager, 21.00 ms at 8.58 MiB</title>" in markup
    assert "eager" not in repr(loadmaster.show(PROBLEM, found))
    assert "1 limits, none decided" in repr(loadmaster.show(PROBLEM, Frontier("x", (), (5,))))


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(InputError, match="problem_sha256"):
        loadmaster.show(read_problem(chain(5, MEGABYTE)), frontier_of(CURVE))
    with pytest.raises(InputError, match="with one plan") as caught:
        loadmaster.show(PROBLEM, CURVE[0], measured=[])
    assert caught.value.field == "measured"
    with pytest.raises(InputError, match=r"measured\[0\]\.step_us"):
        loadmaster.show(PROBLEM, frontier_of(CURVE), measured=[{"method": "eager"}])
