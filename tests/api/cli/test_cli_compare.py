"""``compare``: two plans in files, beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.api.cli import app
from loadmaster.models.kinds import write_plan
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE, plan_by_hand

Output = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    """Exit status of a command."""
    return app.main([str(a) for a in arguments])


def written(path: Path, blocks: int = 6, budget_bytes: int = 8 * MEGABYTE, **changes: Any) -> Path:
    """A plan of a chain, in a file."""
    path.write_text(json.dumps(write_plan(plan_by_hand(chain(blocks, MEGABYTE), budget_bytes, **changes))))
    return path


def test_figures_of_both_and_the_difference(tmp_path: Path, capsys: Output) -> None:
    first = written(tmp_path / "a.json", objective=20_000.0, bound=10_000.0, options={"seed": 0, "gap": 0.1})
    changed: dict[str, Any] = {"objective": 15_000.0, "bound": 10_000.0, "options": {"seed": 3, "gap": 0.1}}
    second = written(tmp_path / "b.json", budget_bytes=12 * MEGABYTE, check={"peak_bytes": 6 * MEGABYTE}, **changed)
    assert run("compare", first, second) == 0
    out, err = capsys.readouterr()
    rows = {line[:14].strip(): line for line in out.splitlines()}
    assert rows["objective"].endswith("-25.00 % better")
    assert rows["proved bound"].endswith("the same")
    assert rows["budget"].endswith("+50.00 %")
    assert rows["seed"].split() == ["seed", "0", "3"]
    assert "gap 0.1" not in out
    assert rows["peak"].endswith("+50.00 % worse")
    # Nothing but text: this is no terminal.
    assert "\x1b" not in out + err
    assert err == ""


def test_plans_of_two_problems_are_compared_with_a_word(tmp_path: Path, capsys: Output) -> None:
    assert run("compare", written(tmp_path / "a.json"), written(tmp_path / "b.json", blocks=8)) == 0
    assert "two problems" in capsys.readouterr().err


def test_as_json(tmp_path: Path, capsys: Output) -> None:
    first, second = written(tmp_path / "a.json"), written(tmp_path / "b.json", blocks=8)
    assert run("compare", first, second, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first"]["problem_sha256"] != found["second"]["problem_sha256"]
    assert "schedule" not in found["first"]


def test_what_cannot_be_compared(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = written(Path("a.json"))
    assert run("compare", plan, plan) == 2
    assert run("compare", plan, "missing.json") == 2
    problem = Path("problem.json")
    problem.write_text(json.dumps(chain(6, MEGABYTE)))
    assert run("compare", plan, problem) == 2
    assert "missing.json" in capsys.readouterr().err
