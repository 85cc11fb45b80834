"""What a training plan measured, beside what was planned: in words, in pictures, in the reports that find it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.api.report.training import views
from loadmaster.api.report.training.pictures import over_time
from loadmaster.api.report.training.view import TrainingView, view
from loadmaster.errors import InputError
from loadmaster.models.kinds import read_measurement, write_plan, write_problem
from loadmaster.models.training.limits import peak_bytes
from loadmaster.models.training.measurement import measured, write_measurement
from loadmaster.models.training.plan import GroupPlan, Schedule
from tests.models.training.steps import KB, group, plan_of, step_of

# Two layers of 10 us each way and two updates of 3 us: 46 us, if measured 10 % more.
PROBLEM = step_of(2, group("g0", 0), group("g1", 1))
PLAN = plan_of(PROBLEM, Schedule((0, 0), (GroupPlan(update_after=3), GroupPlan(update_after=2))), 40 * KB, 46.0)
PEAK = peak_bytes(PROBLEM)
# A profiler makes it twice as long.
LEVELS = [(0.0, PEAK // 2), (50.6, PEAK), (101.2, PEAK)]
MEASURED = measured(PLAN, "cuda", PEAK * 99 // 100, 50.6, LEVELS)


@pytest.fixture
def seen() -> TrainingView:
    return replace(view(PROBLEM, PLAN), measured=MEASURED)


def test_there_and_back() -> None:
    document = json.loads(json.dumps(write_measurement(MEASURED)))
    assert document["kind"] == "training" and read_measurement(document, PLAN) == MEASURED
    with pytest.raises(InputError, match="schedule_sha256"):
        read_measurement(document, replace(PLAN, schedule=Schedule((0, 0), ())))
    with pytest.raises(InputError, match="problem_sha256"):
        read_measurement(document, replace(PLAN, problem_sha256="0" * 64))
    with pytest.raises(InputError, match="kind"):
        read_measurement({**document, "kind": "memory"}, PLAN)


def test_in_words_and_at_a_glance(seen: TrainingView) -> None:
    said = views.details(seen)
    assert "50.60 us a step, 10.00 % above what was planned, on cuda" in said
    assert "1.00 % below what was planned" in said
    page = views.plan_page(seen)
    assert "measured peak" in page and "measured step" in page
    assert "measured" not in views.details(replace(seen, measured=None))
    assert "measured" not in views.plan_page(replace(seen, measured=None))


def test_the_line_is_as_long_as_a_step_takes_unprofiled(seen: TrainingView) -> None:
    drawn = over_time(seen)
    assert any(words.startswith("solid line: measured") for _, words in drawn.legend)
    (path,) = re.findall(r'<path d="([^"]+)"[^>]*stroke="var\(--ink\)" stroke-width="1.5"', drawn.drawing.markup)
    left, *xs = [float(x) for x in re.findall(r"[MH]([\d.]+)", path)]
    # From the axis to the right end, with a step up in the middle.
    assert (left, xs[-1]) == (64.0, 942.0) and xs[0] == pytest.approx((64 + 942) / 2, abs=0.1)
    # Beside another plan, only that one is a line.
    assert not any("measured" in words for _, words in over_time(seen, view(PROBLEM, PLAN)).legend)


def test_show_finds_it_next_to_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, plan = tmp_path / "step.json", tmp_path / "plan.json"
    step.write_text(json.dumps(write_problem(PROBLEM)))
    plan.write_text(json.dumps(write_plan(PLAN)))
    assert app.main(["show", str(plan)]) == 0
    assert "measured" not in capsys.readouterr().out
    MEASURED.save(tmp_path / "measured.json")
    html = tmp_path / "plan.html"
    assert app.main(["show", str(plan), "--html", str(html)]) == 0
    assert "10.00 % above what was planned" in capsys.readouterr().out
    assert "solid line: measured" in html.read_text()
