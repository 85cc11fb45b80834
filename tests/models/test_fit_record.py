"""The record of a fitted step: there and back, and refused where its parts do not belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import loadmaster
from loadmaster.errors import InputError
from loadmaster.models.fit_record import (
    FitRecord,
    KnobTryRecord,
    PlainTryRecord,
    TryRecord,
    load_fit,
    read_fit,
    write_fit,
)
from loadmaster.models.memory.presets import chain


def record() -> FitRecord:
    problem = loadmaster.read_problem(chain(6, 1000))
    plan = loadmaster.plan(problem, budget_bytes="80%", method="chen")
    over = TryRecord(5600, 5000, 30.0, 5700, 5700, 31.0, kept=False)
    kept = TryRecord(5600, 4900, 32.0, 5500, 5400, 33.0, kept=True, corrected_bytes=700)
    return FitRecord(plan, problem, (over, kept), 1)


def test_there_and_back(tmp_path: Path) -> None:
    fitted = record()
    fitted.save(tmp_path / "fit.json")
    again = load_fit(tmp_path / "fit.json")
    assert (again.plan, again.problem, again.tries, again.chosen) == (
        fitted.plan,
        fitted.problem,
        fitted.tries,
        fitted.chosen,
    )
    assert again.measured.peak_bytes == 5400
    assert loadmaster.check_plan(again.problem, again.plan).ok
    assert len(repr(again)) < 200 and "measured 5.27 KiB" in repr(again) and "2 tries" in repr(again)


def test_a_step_without_a_plan_is_written_down(tmp_path: Path) -> None:
    over = KnobTryRecord(5600, 1.0, 5700, 5700, 20.0, kept=False)
    kept = KnobTryRecord(5600, 0.5, 5500, 5500, 25.0, kept=True)
    fitted = FitRecord(None, None, record().tries, None, (over, kept), 1)
    fitted.save(tmp_path / "fit.json")
    again = load_fit(tmp_path / "fit.json")
    assert again == fitted and again.knob == 0.5 and again.measured == kept
    assert record().knob is None
    assert "activation_memory_budget 0.5" in repr(again) and "4 tries" in repr(again)


def test_plain_pytorchs_step_is_written_down(tmp_path: Path) -> None:
    plain = PlainTryRecord(5600, 5700, 5650, 30.0, kept=False)
    fitted = FitRecord(None, None, record().tries, None, plain=plain)
    fitted.save(tmp_path / "fit.json")
    again = load_fit(tmp_path / "fit.json")
    assert again == fitted and again.measured == plain and again.knob is None
    assert "PyTorch: plain PyTorch, budget 5.47 KiB" in repr(again)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"plain": {"budget_bytes": 1, "used_bytes": 1, "peak_bytes": 1, "step_us": 1, "kept": True}}, "chosen"),
        ({"chosen": None, "chosen_knob": 0}, "plan"),
        ({"chosen_knob": 0}, "chosen"),
        ({"chosen": None, "plan": None, "problem": None}, "chosen"),
        ({"plan": None}, "plan"),
        ({"problem": None}, "problem"),
        ({"chosen": None, "plan": None, "problem": None, "chosen_knob": 0}, "knob_tries"),
        ({"knob_tries": [{"budget_bytes": 1, "knob": 2}]}, "knob_tries[0].knob"),
        ({"chosen": 2}, "chosen"),
        ({"tries": []}, "tries"),
        ({"kind": "collective"}, "kind"),
        ({"schema": "loadmaster/fit/2"}, "schema"),
        ({"more": 1}, "more"),
        ({"problem": {"schema": "loadmaster/problem/1", "kind": "memory"}}, "problem.name"),
    ],
)
def test_what_does_not_go_together_is_named(change: dict[str, Any], field: str) -> None:
    document = json.loads(json.dumps(write_fit(record()))) | change
    with pytest.raises(InputError) as caught:
        read_fit(document)
    assert caught.value.field == field and caught.value.remedy


def test_a_plan_of_another_problem_is_refused() -> None:
    document = write_fit(record()) | {"problem": chain(5, 1000)}
    with pytest.raises(InputError) as caught:
        read_fit(document)
    assert caught.value.field == "problem_sha256"
