"""``fit`` beside torch.compile's knob: what rows add up to, and that a folder goes on from its rows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks import memory_knob
from benchmarks.memory_knob import Rows, summary


def compiled(knob: float, peak_bytes: int, step_us: float) -> dict:
    return {"method": "compile", "case": "m", "knob": knob, "peak_bytes": peak_bytes, "step_us": step_us} | {
        "first_step_s": 10.0
    }


def fitted(budget_bytes: int, peak_bytes: int, step_us: float, first_step_s: float, *, again: bool = False) -> dict:
    return {"method": "fit", "case": "m", "again": again, "budget_bytes": budget_bytes, "peak_bytes": peak_bytes} | {
        "step_us": step_us,
        "first_step_s": first_step_s,
    }


def test_figures_by_hand() -> None:
    rows = [compiled(1.0, 100, 50.0), compiled(0.5, 80, 60.0), compiled(0.2, 70, 80.0)]
    rows += [fitted(80, 79, 30.0, 15.0), fitted(70, 71, 40.0, 25.0), fitted(60, 60, 90.0, 35.0)]
    rows += [fitted(80, 79, 1.0, 1.0, again=True), {"method": "fit", "case": "m", "again": False, "failed": "no"}]
    found = summary(rows)
    assert found["geometric_mean_of_peer"] == pytest.approx(0.5)  # 30 of 60, 40 of 80; the third has no peer
    assert found["slowest_of_peer"] == 0.5
    assert found["median_wait_of_peer"] == 2.5
    assert (found["fits"], found["budgets_broken"], found["failed"]) == (3, 1, 1)
    assert summary([])["median_wait_of_peer"] is None


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(row: dict, _caches: Path) -> dict:
        asked.append(row)
        peak = 100 if row["method"] == "fit" else round(100 * row["knob"]) + 50
        return row | {"peak_bytes": peak, "step_us": 1.0, "first_step_s": 1.0}

    monkeypatch.setattr(memory_knob, "in_a_process", measured)
    for _ in range(2):
        Rows(tmp_path, time.monotonic() + 1e6).of("gpt2_medium", "cpu", memory_knob.KNOBS, small=True, once=False)
        assert [r["method"] for r in asked] == ["compile"] * 3 + ["fit"] * 6
    assert [r["budget_bytes"] for r in asked[3:]] == [100, 100, 70, 70, None, None]
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 9
    Rows(tmp_path / "late", time.monotonic()).of("gpt2_medium", "cpu", memory_knob.KNOBS, small=True, once=False)
    assert len(asked) == 9
