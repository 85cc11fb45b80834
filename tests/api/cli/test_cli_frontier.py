"""``frontier`` around a planner that answers by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.api.cli import app
from loadmaster.api.report.frontier import frontier_page
from loadmaster.api.report.memory.views import frontier_extras
from loadmaster.models.kinds import limit_of
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.plan import Infeasibility, MemoryPlan
from loadmaster.models.memory.presets import chain, reference
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.options import PlanOptions
from tests.api.cli.plans_by_hand import MEGABYTE, no_plan, plan_by_hand

UNDECIDED = 4 * MEGABYTE


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@dataclass(frozen=True)
class Point:
    budget_bytes: int
    plan: MemoryPlan


@dataclass(frozen=True)
class Points:
    points: tuple[Point, ...]
    undecided: tuple[int, ...]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A planner in whose sweeps budgets below 3 MB are too small, and larger ones are better; what it was asked."""
    calls: list[dict[str, Any]] = []

    def frontier(
        problem: MemoryProblem,
        options: PlanOptions,
        limits: Sequence[int] | None = None,
        count: int = 6,
        workers: int = 2,
        on_progress: Callable[..., None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Points:
        calls.append({"options": options, "limits": limits, "count": count, "workers": workers})
        budgets = limits or [n * MEGABYTE for n in range(5, 5 + count)]
        undecided = tuple(b for b in budgets if b == UNDECIDED)
        return Points(tuple(Point(b, answer(b)) for b in budgets if b != UNDECIDED), undecided)

    def answer(budget_bytes: int) -> MemoryPlan:
        if budget_bytes < 3 * MEGABYTE:
            short = 3 * MEGABYTE - budget_bytes
            return no_plan(chain(6, MEGABYTE), budget_bytes, Infeasibility(3 * MEGABYTE, short, "backward 2", ()))
        return plan_by_hand(
            chain(6, MEGABYTE), budget_bytes, objective=4e10 / budget_bytes, bound=3.6e10 / budget_bytes
        )

    monkeypatch.setattr(planner, "frontier", frontier, raising=False)
    return calls


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(chain(6, MEGABYTE)))
    return path


def test_a_sweep_is_a_table_and_two_pictures(
    asked: list[dict[str, Any]], problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("frontier", problem, "--count", "4", "--workers", "1", "--gap", "0.1") == 0
    assert asked == [{"options": PlanOptions(gap=0.1), "limits": None, "count": 4, "workers": 1}]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert Path("chain-6-frontier.png").read_bytes().startswith(b"\x89PNG")
    page = Path("chain-6-frontier.html").read_text()
    assert page.count("<circle") == 4
    assert "The best step under 4 budgets" in page and ">step, ms</text>" in page
    assert "http-equiv" not in page and "src=" not in page


def test_budgets_that_are_too_small_are_points_too(
    asked: list[dict[str, Any]], problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--budgets", "2MB,100%,5MB", "-o", "f.json", "--html", "f.html", "--png", "f.png", "--json"]
    assert run("frontier", problem, *flags) == 0
    points = json.loads(capsys.readouterr().out)
    assert [p["status"] for p in points] == ["infeasible", "feasible", "feasible"]
    assert [p["budget_bytes"] for p in points] == asked[0]["limits"]
    document = json.loads(Path("f.json").read_text())
    assert [p["plan"]["budget_bytes"] for p in document["points"]] == asked[0]["limits"]
    assert '<td class="n">2.86 MiB</td>' in Path("f.html").read_text()


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "a/b", "..", "naïve\n"])
def test_a_documents_name_leads_nowhere_else(name: str, asked: list[dict[str, Any]], problem: Path) -> None:
    """Pictures are named after the problem, and written into the folder that the command runs in."""
    problem.write_text(json.dumps({**chain(6, MEGABYTE), "name": name}))
    before = {path for path in problem.parent.parent.rglob("*") if path.is_file()}
    assert run("frontier", problem, "--budgets", "5MB,6MB") == 0
    made = {path for path in problem.parent.parent.rglob("*") if path.is_file()} - before
    assert {path.parent for path in made} == {problem.parent}
    assert sorted(path.suffix for path in made) == [".html", ".png"]


def test_no_feasible_budget_is_three(asked: list[dict[str, Any]], problem: Path) -> None:
    assert run("frontier", problem, "--budgets", "1MB,2MB") == 3
    assert list(Path().glob("*.png")) == []


def test_budgets_without_an_answer_are_said(
    asked: list[dict[str, Any]], problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("frontier", problem, "--budgets", "4MB,5MB", "--no-picture") == 0
    assert "3.81 MiB: the limit came" in capsys.readouterr().err
    assert run("frontier", problem, "--budgets", "1MB,4MB") == 4


@pytest.mark.parametrize(
    "flags",
    [["--count", "0"], ["--workers", "1000"], ["--budgets", "5mb"], ["--png", "no/such/f.png"], ["--budgets", ""]],
)
def test_bad_input_is_two(flags: list[str], asked: list[dict[str, Any]], problem: Path) -> None:
    assert run("frontier", problem, *flags) == 2
    assert asked == []


def test_published_results_are_marked() -> None:
    published = reference("resnet50-b184-p100-full")
    assert sorted(published) == [gib << 30 for gib in range(5, 11)]
    plans = [plan_by_hand(chain(6, MEGABYTE), budget, objective=1e6, bound=9e5) for budget in published]
    extras = frontier_extras(replace(read_problem(chain(6, MEGABYTE)), name="resnet50-b184-p100-full"), plans)
    limit = limit_of("memory")
    page = frontier_page("title <b>", limit, plans, extras)
    assert page.count('stroke="var(--reference)"') == 6
    assert "981.6 ms" in page
    assert "title &lt;b&gt;" in page and "<b>" not in page
    assert 'stroke="var(--reference)"' not in frontier_page("title", limit, plans, replace(extras, published={}))
