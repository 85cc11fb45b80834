"""The scheduler: one row alone at a time, and a run that goes on where another stopped."""

from __future__ import annotations

from typing import ClassVar

import pytest

from benchmarks.gpu import scheduler, turns
from benchmarks.gpu.budgets import identity

LIMITS = scheduler.Limits(wall_s=1000.0, start_margin_s=10.0, jobs=2, memory_gib=1e9)
PEAK = {"peak_bytes": 1 << 30, "step_us": 1.0, "quartiles_us": [1.0, 1.0]}


class FakeProcess:
    """A row that measures as soon as it is alone; a knob of 0.5 has a trial first; eager fails."""

    events: ClassVar[list[tuple[str, object]]] = []

    def __init__(self, row, command, log, heard, environment):
        self.row, self.heard = row, heard
        self.frozen_s, self.running_s = 0.0, 1.0
        self.frozen = False
        self.name = row.get("knob", row["method"])
        self.turns = 2 if row.get("knob") == 0.5 else 1
        self.events.append(("start", self.name))
        first = {"say": "row", "least_bytes": 1 << 30} if row["method"] == "capture" else {"say": "alone"}
        first = {"say": "row", "error": "broken"} if row["method"] == "eager" else first
        heard.put((self, first))

    def tell(self, word):
        self.events.append((word, self.name))
        assert not self.frozen
        self.turns -= 1
        self.heard.put((self, {"say": "done"}))
        self.heard.put((self, {"say": "row", **PEAK} if not self.turns else {"say": "alone"}))

    def freeze(self):
        self.frozen = True

    def thaw(self):
        self.frozen = False

    def end(self, *, patience_s):
        self.events.append(("end", self.name))

    def stop(self):
        self.events.append(("stop", self.name))

    def last_words(self):
        return "nothing"


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setattr(scheduler, "Process", FakeProcess)
    monkeypatch.setattr(turns, "SETTLE_S", 0.0)
    FakeProcess.events.clear()


def compiled(knob: float):
    return {"case": "resnet50", "method": "compile", "knob": knob, "group": "compared"}


CAPTURE = {"case": "resnet50", "method": "capture"}
ABOVE = {"case": "resnet50", "method": "loadmaster", "budget": "above", "group": "compared"}


def run(wanted, rows, tmp_path, limits=LIMITS):
    number = 1 + max((row["run"] for row in rows), default=0)
    scheduler.Scheduler(wanted, rows, limits, {"folder": str(tmp_path), "device": "cpu"}, lambda: None, number).run()
    return FakeProcess.events


def started(events):
    return [name for word, name in events if word == "start"]


def test_every_row_is_measured_alone(tmp_path):
    rows: list = []
    events = run([compiled(1.0), compiled(0.7), compiled(0.5)], rows, tmp_path)
    assert sorted(name for word, name in events if word == "go") == [0.5, 0.5, 0.7, 1.0]
    assert [row["step_us"] for row in rows] == [1.0] * 3


def test_a_run_goes_on_where_another_stopped_beside_the_plain_step(tmp_path):
    rows: list = []
    run([compiled(1.0), compiled(0.7)], rows, tmp_path)
    FakeProcess.events.clear()
    events = run([compiled(1.0), compiled(0.7), compiled(0.5)], rows, tmp_path)
    assert started(events) == [1.0, 0.5]
    assert [(row["knob"], row["run"]) for row in rows] == [(1.0, 1), (0.7, 1), (1.0, 2), (0.5, 2)]
    FakeProcess.events.clear()
    assert run([CAPTURE, compiled(1.0), compiled(0.7), compiled(0.5)], rows, tmp_path) == []


def test_plans_wait_for_the_peaks_that_their_budgets_refer_to(tmp_path):
    rows: list = []
    run([ABOVE, CAPTURE, compiled(1.0)], rows, tmp_path)
    row = next(r for r in rows if r["method"] == "loadmaster")
    assert row["budget_bytes"] == int(1.1 * (1 << 30))
    assert identity(row) == identity(ABOVE)


def test_a_plan_of_another_run_waits_for_costs_in_its_own_folder(tmp_path):
    rows: list = [{**CAPTURE, "least_bytes": 1 << 30, "run": 1}, {**compiled(1.0), **PEAK, "run": 1}]
    assert started(run([ABOVE, CAPTURE, compiled(1.0)], rows, tmp_path)) == ["capture", 1.0, "loadmaster"]


def test_a_row_that_fails_is_recorded_and_measured_again_by_the_next_run(tmp_path):
    rows: list = []
    eager = {"case": "resnet50", "method": "eager"}
    run([eager], rows, tmp_path)
    assert rows[0]["error"] == "broken"
    run([eager], rows, tmp_path)
    assert len(rows) == 1 and rows[0]["run"] == 2


def test_what_does_not_fit_beside_the_others_waits(tmp_path):
    room_gib = scheduler.needs_gib(compiled(1.0))
    for more_gib, expected in (
        (0.5 * scheduler.rests_gib(compiled(0.7)), ["start", "go", "end"]),
        (1.5 * scheduler.rests_gib(compiled(0.7)), ["start", "start", "go"]),
    ):
        FakeProcess.events.clear()
        limits = scheduler.Limits(1000.0, 10.0, jobs=8, memory_gib=room_gib + more_gib)
        events = run([compiled(1.0), compiled(0.7)], [], tmp_path, limits)
        assert [word for word, _ in events][:3] == expected and len(events) == 6


def test_nothing_is_started_when_time_is_nearly_up(tmp_path, capsys):
    rows: list = []
    run([compiled(1.0)], rows, tmp_path, scheduler.Limits(5.0, 10.0, jobs=2, memory_gib=1e9))
    assert rows == []
    assert "left for another run" in capsys.readouterr().out


def test_what_has_not_come_to_measure_when_time_is_nearly_up_is_left_to_another_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scheduler, "LAST_S", 4.0)
    monkeypatch.setattr(FakeProcess, "tell", lambda self, word: None)
    rows: list = []
    events = run([compiled(1.0)], rows, tmp_path, scheduler.Limits(5.0, 0.1, jobs=2, memory_gib=1e9))
    assert rows == [] and ("stop", 1.0) in events
    assert "left for another run" in capsys.readouterr().out
