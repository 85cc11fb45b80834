"""``demo``: one of its models all the way, with the real planner, service and executor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.api.cli import app, demo
from loadmaster.models.kinds import check_plan, read_plan, read_problem

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_small_gpt_trains_in_half_of_its_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert app.main(["demo", "--output", str(tmp_path), "--model", "gpt", "--time-limit", "15"]) == 0
    problem, plan = read_problem(tmp_path / "gpt.problem.json"), read_plan(tmp_path / "gpt.plan.json")
    assert check_plan(problem, plan).ok
    report = json.loads((tmp_path / "gpt.report.json").read_text())
    assert report["planned"]["peak_bytes"] <= plan.budget_bytes < report["plain"]["peak_bytes"]
    assert report["planned"]["losses"] == pytest.approx(report["plain"]["losses"], rel=1e-5)
    assert report["planned"]["losses"][-1] < report["planned"]["losses"][0]
    out = capsys.readouterr().out
    for line in ("peak, planned", "peak, measured", "gradients", "proved gap", "gpt.html"):
        assert line in out
    assert (tmp_path / "gpt.png").read_bytes().startswith(b"\x89PNG")


def test_outside_a_checkout_it_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main(["demo"]) == 2
    assert "make demo" in capsys.readouterr().err
    assert not Path("demo").exists()


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    assert app.main(["demo"]) == 2
    assert "pip install '.[torch]'" in capsys.readouterr().err
