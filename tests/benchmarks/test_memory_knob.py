"""``fit`` beside torch.compile's knob: what rows add up to, and that a folder goes on from its rows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.gpu import knob_rows
from benchmarks.gpu.knob_rows import Rows, Wanted, summary
from benchmarks.memory_knob import KNOBS


def compiled(knob: float, peak_bytes: int, step_us: float) -> dict:
    return {"method": "compile", "case": "m", "knob": knob, "peak_bytes": peak_bytes, "step_us": step_us} | {
        "first_step_s": 10.0
    }


def fitted(budget_bytes: int, peak_bytes: int, step_us: float, first_step_s: float, *, again: bool = False) -> dict:
    return {"method": "fit", "case": "m", "again": again, "budget_bytes": budget_bytes, "peak_bytes": peak_bytes} | {
        "asked": "half-way",
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
    assert found["slowest_share_of_fastest"] is None
    turns = [{**row, "turns_us": [90.0, 120.0]} if row.get("budget_bytes") == 80 else row for row in rows]
    assert summary(turns)["slowest_of_peer"] == pytest.approx(0.75)  # in the same minute, not 30 of 60
    elsewhere = [*rows, {**compiled(0.5, 75, 10.0), "gpu": "another"}]
    assert summary(elsewhere)["slowest_of_peer"] == 0.5
    shares = [*rows, {**fitted(10, 10, 60.0, 25.0), "asked": "60%"}]
    assert summary(shares)["slowest_share_of_fastest"] == pytest.approx(1.2)
    shares[-1]["turns_us"] = [66.0, 60.0]
    assert summary(shares)["slowest_share_of_fastest"] == pytest.approx(1.1)
    assert summary([])["median_wait_of_peer"] is None


started: list[tuple[dict, str]] = []


def run_row(_command: list, row: dict, _log: Path, _limit_s: float, environment: dict) -> dict:
    """Measure at once, in place of a row's process."""
    started.append((row, environment["LOADMASTER_MEASUREMENT_CACHE"]))
    peak = 100 if row["method"] == "fit" else round(100 * row["knob"]) + 50
    facts = {"peak_bytes": peak, "step_us": 1.0, "first_step_s": 1.0}
    return {"error": "broken"} if row["case"] == "broken" else facts


def run(folder: Path, cases: list[str], *, seconds: float = 1e6, jobs: int = 1, asked: tuple[str, ...] = ()) -> Rows:
    rows = Rows(folder, time.monotonic() + seconds, jobs)
    rows.measure(cases, Wanted("cpu", KNOBS, asked=asked, small=True))
    return rows


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knob_rows, "run_row", run_row)
    started.clear()


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path) -> None:
    for _ in range(2):
        run(tmp_path, ["m"])
        asked = [row for row, _ in started]
        assert [r["method"] for r in asked] == ["compile"] * 3 + ["fit"] * 6
    unit = knob_rows.UNIT_BYTES
    assert [r["budget_bytes"] for r in asked[3:]] == [unit] * 4 + [None, None]
    assert [r["asked"] for r in asked[3::2]] == ["knob 0.5", "knob 0.2", "half-way"]
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 9
    run(tmp_path / "late", ["m"], seconds=0.0)
    assert len(started) == 9


def test_a_fit_at_some_budgets_only_is_held_against_all_knobs(tmp_path: Path) -> None:
    run(tmp_path, ["m"], asked=("half-way", "knob 1.0"))
    asked = [row for row, _ in started]
    assert [r["knob"] for r in asked[:3]] == [*KNOBS]
    assert [r["asked"] for r in asked[3:]] == ["half-way"] * 2 + ["knob 1.0"] * 2
    assert {r["lowest_bytes"] for r in asked[3:]} == {70}


def test_a_fit_again_finds_the_caches_of_the_first(tmp_path: Path) -> None:
    run(tmp_path, ["m"])
    caches = [folder for _, folder in started]
    assert len(set(caches)) == 6 and all(caches[n] == caches[n + 1] for n in (3, 5, 7))
    rows = json.loads((tmp_path / "rows.json").read_text())
    (tmp_path / "rows.json").write_text(json.dumps([r for r in rows if not r.get("again")]))
    run(tmp_path, ["m"])
    assert [row["again"] for row, _ in started[9:]] == [False, True] * 3


def test_models_are_measured_side_by_side_and_one_that_breaks_leaves_the_others(tmp_path: Path) -> None:
    found = run(tmp_path, ["broken", "m", "n"], jobs=2).rows
    assert {r["case"] for r in found if "failed" in r} == {"broken"}
    assert [sum(r["case"] == case for r in found) for case in ("m", "n")] == [9, 9]
    assert all(row["lock"] for row, _ in started)
    other = Rows(tmp_path / "other", time.monotonic(), 1)
    other.join(found)
    assert other.rows == found
