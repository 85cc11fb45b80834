"""A benchmark's rows: from its folder, from the recorded result of the same kind of GPU, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.gpu import session
from benchmarks.gpu.budgets import identity, wanted
from benchmarks.gpu.cases import CASES

ROWS = [{"case": "resnet50", "method": "eager", "step_us": 1.0}]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A recorded result of one GPU, on a machine with the same."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(record, "machine", lambda: {"gpu": "one"})
    record.write("bench", {"rows": ROWS, "runs": [{"run": 1}]})
    return tmp_path


def begun(folder: Path, *options: str) -> session.Session:
    arguments = session.parser("").parse_args(["--out", str(folder / "out"), *options])
    return session.Session("bench", arguments)


def test_an_empty_folder_goes_on_from_what_was_recorded(results):
    found = begun(results)
    assert (found.rows, found.runs) == (ROWS, [{"run": 1}])


def test_its_own_rows_come_first(results):
    first = begun(results)
    first.rows.append({"case": "unet", "method": "eager"})
    first.note()
    assert len(begun(results).rows) == 2


@pytest.mark.parametrize("options", [["--fresh"], ["--small"], ["--device", "cpu"]])
def test_trials_and_fresh_runs_begin_with_nothing(results, options):
    assert begun(results, *options).rows == []


def test_another_gpu_begins_with_nothing(results, monkeypatch):
    monkeypatch.setattr(record, "machine", lambda: {"gpu": "two"})
    assert begun(results).rows == []


def test_what_is_written_can_be_gone_on_from(results):
    first = begun(results)
    first.rows.append({"case": "unet", "method": "eager"})
    first.write({"figure": [{"a": 1}]})
    (results / "out" / "rows.json").unlink(missing_ok=True)
    assert begun(results).rows == first.rows
    assert json.loads((record.RESULTS / "bench.json").read_text())["figure"] == [{"a": 1}]


def test_a_trial_is_not_recorded(results):
    begun(results, "--small").write({"figure": 1})
    assert "figure" not in json.loads((record.RESULTS / "bench.json").read_text())


def test_a_full_run_skips_what_was_recorded():
    kept = json.loads((Path(record.__file__).parent / "results" / "memory_gpu.json").read_text())
    done = {identity(row) for row in kept["rows"]}
    assert len([row for row in wanted([1, 2, 3, 4, 5], list(CASES)) if identity(row) in done]) >= 11


def test_runs_on_other_gpus_are_joined(results):
    planned = {"case": "unet", "method": "loadmaster", "budget": "share 0.36"}
    parts = {"a": [{**ROWS[0], "step_us": 2.0}, {**planned, "step_us": 3.0}], "b": [{**planned, "step_us": 4.0}]}
    for name, rows in parts.items():
        (results / name).mkdir()
        found = {"runs": [{"run": 1}], "rows": [{**row, "run": 1} for row in rows]}
        (results / name / "rows.json").write_text(json.dumps(found))
    joined = begun(results, "--join", str(results / "a"), str(results / "b"))
    assert [(r["case"], r["step_us"], r.get("run")) for r in joined.rows] == [
        ("resnet50", 1.0, None),  # the plans of the recorded run were measured beside it
        ("resnet50", 2.0, 2),
        ("unet", 4.0, 3),
    ]
    assert [run["run"] for run in joined.runs] == [1, 2, 3]


def test_a_run_has_a_number_of_its_own_also_after_one_whose_rows_are_gone(results):
    first = begun(results)
    first.runs.append({"run": 2})
    first.note()
    again = begun(results, "--device", "cpu")
    again.measure([])
    assert [run["run"] for run in again.runs] == [1, 2, 3]
