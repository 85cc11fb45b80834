"""What a plan measured, drawn over what was planned: in pictures, in words, in reports that find it beside the plan."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import loadmaster
from loadmaster.api.cli import app
from loadmaster.api.report.memory.pictures import over_time
from loadmaster.api.report.memory.plan_page import plan_page
from loadmaster.api.report.memory.view import MemoryView, view
from loadmaster.api.report.memory.words import details
from loadmaster.errors import InputError
from loadmaster.models.kinds import read_problem, write_plan
from loadmaster.models.memory.measurement import measured, write_measurement
from loadmaster.models.memory.presets import chain
from loadmaster.planner import Frontier, FrontierPoint, PlanOptions
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand
from tests.api.collective_by_hand import plan_by_hand as ring_by_hand
from tests.api.collective_by_hand import ring_document

DOCUMENT = chain(6, MEGABYTE)
PLAN = plan_by_hand(DOCUMENT, 8 * MEGABYTE)
PLANNED = view(read_problem(DOCUMENT), PLAN)  # type: ignore[arg-type]
# Profiled, a step takes twice as long.
STEP_US = 1.25 * PLANNED.check.time_us
PEAK_BYTES = PLANNED.check.peak_bytes * 9 // 10
SHARES = [(0.0, 0.3), (0.25, 0.9), (0.5, 0.6), (1.0, 0.6)]
LEVELS = [(2 * STEP_US * at, int(PLANNED.check.peak_bytes * size)) for at, size in SHARES]
MEASURED = measured(PLAN, "cpu", PEAK_BYTES, STEP_US, LEVELS)


@pytest.fixture
def seen() -> MemoryView:
    return replace(PLANNED, measured=MEASURED)


def curve(svg: str) -> list[tuple[float, float]]:
    """Corners of the line of what was measured: where it turns upwards or downwards, and to which height."""
    (path,) = re.findall(r'<path d="([^"]+)"[^>]*stroke="var\(--ink\)" stroke-width="1.5"', svg)
    x, *turns = re.findall(r"[MVH]([\d.]+)", path)
    corners = []
    for n in range(0, len(turns) - 1, 2):
        corners.append((float(x), float(turns[n])))
        x = turns[n + 1]
    return corners


def test_the_line_is_where_the_bytes_are(seen: MemoryView) -> None:
    """Held against the axes themselves: the budget line and the time ticks."""
    svg = over_time(seen).drawing.markup
    floor = float(re.findall(r'd="M64 ([\d.]+)H942" stroke="var\(--quiet\)"', svg)[0])
    budget = float(re.findall(r'd="M64 ([\d.]+)H942" stroke="var\(--budget\)"', svg)[0])
    corners = curve(svg)
    assert len(corners) == 3
    for (_, y), (_, share) in zip(corners, SHARES, strict=False):
        sized = (floor - y) / (floor - budget) * PLAN.budget_bytes
        assert sized == pytest.approx(PLANNED.check.peak_bytes * share, rel=0.01)
    # A step of 1.25 times the planned one is the longest there is: its curve ends where the axis does.
    xs = [x for x, _ in corners]
    assert xs == pytest.approx([64, 64 + 0.25 * 878, 64 + 0.5 * 878], abs=0.05)


def test_the_report_names_both_peaks_and_the_difference(seen: MemoryView) -> None:
    page = plan_page(seen)
    tiles = dict(re.findall(r"<dt>([^<]*)</dt><dd>(.*?)</dd>", page))
    assert "10.00 % below what was planned" in tiles["measured peak"]
    assert "25.00 % above what was planned, on cpu" in tiles["measured step"]
    assert "at its peak" in page and "line: measured" in page and "the step without a plan" in page
    assert "10.00 % below what was planned" in details(seen)
    for silent in (plan_page(PLANNED), details(PLANNED)):
        assert "measured" not in silent


def test_beside_another_plan_it_is_left_out(seen: MemoryView) -> None:
    assert "measured" not in str(over_time(seen, seen).legend)


def write(folder: Path) -> None:
    (folder / "p.problem.json").write_text(json.dumps(DOCUMENT))
    (folder / "p.json").write_text(json.dumps(write_plan(PLAN)))


def test_show_finds_it_beside_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    other = {**write_measurement(MEASURED), "schedule_sha256": "0" * 64}
    (tmp_path / "a.json").write_text(json.dumps(other))
    shown = ["show", str(tmp_path / "p.json"), "--html", str(tmp_path / "p.html")]
    assert app.main(shown) == 0
    assert "measured" not in capsys.readouterr().out
    MEASURED.save(tmp_path / "p.measured.json")
    assert app.main(shown) == 0
    assert "measured" in capsys.readouterr().out and "line: measured" in (tmp_path / "p.html").read_text()


def test_show_takes_it_from_elsewhere_and_refuses_another_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    (tmp_path / "far").mkdir()
    far, plan, problem = (str(tmp_path / name) for name in ("far/m.json", "p.json", "p.problem.json"))
    MEASURED.save(far)
    assert app.main(["show", plan, "--measured", far, "--png", str(tmp_path / "p.png")]) == 0
    assert "measured" in capsys.readouterr().out
    assert app.main(["show", plan, "--measured", far, "--html", far]) == 2
    assert "is the measurement, and would be written over" in capsys.readouterr().err
    assert app.main(["show", problem, "--measured", far]) == 2
    assert "--measured: " in capsys.readouterr().err
    Path(far).write_text(json.dumps({**write_measurement(MEASURED), "problem_sha256": "0" * 64}))
    assert app.main(["show", plan, "--measured", far]) == 2
    assert "is not the problem that this plan is for" in capsys.readouterr().err


def test_a_notebook_shows_it() -> None:
    shown = loadmaster.show(DOCUMENT, PLAN, measured=MEASURED)
    assert "line: measured" in shown._repr_html_() and "measured" in repr(shown)
    with pytest.raises(InputError, match="schedule_sha256"):
        loadmaster.show(DOCUMENT, PLAN, measured=replace(MEASURED, schedule_sha256="0" * 64))
    found = Frontier("chain", (FrontierPoint(PLAN.budget_bytes, PLAN),), ())
    with pytest.raises(InputError, match="is no list of points"):
        loadmaster.show(DOCUMENT, found, measured=MEASURED)
    ring = read_problem(ring_document(name="ring"))
    with pytest.raises(InputError, match="no measurement"):
        loadmaster.show(ring, ring_by_hand(ring, PlanOptions()), measured=MEASURED)  # type: ignore[arg-type]
