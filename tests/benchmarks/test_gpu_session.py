"""A benchmark's rows: from its folder, from the recorded result of the same kind of GPU, or none."""

from __future__ import annotations

import json
import time
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


CAPTURE = {"case": "resnet50", "method": "capture"}
EAGER = {"case": "resnet50", "method": "eager"}
ABOVE = {"case": "resnet50", "method": "loadmaster", "budget": "above", "group": "compared"}
PEAK = {"peak_bytes": 1 << 30, "step_us": 1.0, "quartiles_us": [1.0, 1.0]}


def compiled(knob: float) -> dict:
    return {"case": "resnet50", "method": "compile", "knob": knob, "group": "compared"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose rows' processes have measured as soon as they are started; eager fails."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "none")

    def measured(wanted: list, *options: str) -> tuple[list, list]:
        orders: list = []

        def run_row(command: list, order: dict, *_more: object) -> dict:
            orders.append(order["row"])
            if order["row"]["method"] == "compile checkpoint":
                time.sleep(0.4)
                return {"error": "stopped"}
            found = {"capture": {"least_bytes": 1 << 30}, "eager": {"error": "broken"}}
            return found.get(order["row"]["method"], PEAK)

        monkeypatch.setattr(session, "run_row", run_row)
        found = begun(tmp_path, "--device", "cpu", "--jobs", "1", *options)
        found.measure(wanted)
        return found.rows, orders

    return measured


def test_a_run_goes_on_where_another_stopped_beside_the_plain_step(run):
    wanted = [compiled(1.0), compiled(0.7)]
    rows, _ = run(wanted)
    assert [row["step_us"] for row in rows] == [1.0] * 2
    rows, orders = run([*wanted, compiled(0.5)], "--jobs", "3")
    assert {row["knob"] for row in orders} == {1.0, 0.5}
    assert sorted((row["run"], row["knob"]) for row in rows) == [(1, 0.7), (1, 1.0), (2, 0.5), (2, 1.0)]
    assert run([CAPTURE, *wanted, compiled(0.5)])[1] == []


def test_plans_wait_for_the_peaks_that_their_budgets_refer_to(run):
    rows, orders = run([ABOVE, CAPTURE, compiled(1.0)])
    assert [row["method"] for row in orders] == ["capture", "compile", "loadmaster"]
    assert rows[-1]["budget_bytes"] == int(1.1 * (1 << 30))
    assert identity(rows[-1]) == identity(ABOVE)


def test_a_plan_of_another_run_waits_for_costs_in_its_own_folder(run):
    run([CAPTURE, compiled(1.0)])
    _, orders = run([ABOVE, CAPTURE, compiled(1.0)])
    assert [row["method"] for row in orders] == ["capture", "loadmaster", "compile"]


def test_a_row_that_fails_is_recorded_and_measured_again_by_the_next_run(run):
    assert run([EAGER])[0][0]["error"] == "broken"
    rows, _ = run([EAGER])
    assert len(rows) == 1 and rows[0]["run"] == 2


def test_nothing_is_started_when_time_is_nearly_up(run, capsys):
    assert run([compiled(1.0)], "--wall", "5", "--margin", "10") == ([], [])
    assert "left for another run" in capsys.readouterr().out


def test_what_ends_with_the_time_is_left_to_another_run(run, capsys, monkeypatch):
    monkeypatch.setattr(session, "LAST_S", 0.2)
    slow = {"case": "resnet50", "method": "compile checkpoint"}
    rows, orders = run([slow], "--wall", "0.5", "--margin", "0.1")
    assert rows == [] and len(orders) == 1
    assert "left for another run" in capsys.readouterr().out
