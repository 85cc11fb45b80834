"""``frontier`` around a planner that answers by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.api.cli import app
from loadmaster.api.report.frontier import frontier_page
from loadmaster.api.report.memory.views import frontier_extras
from loadmaster.models.kinds import limit_of
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.plan import MemoryInfeasibility, MemoryPlan
from loadmaster.models.memory.presets import chain, reference
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.options import PlanOptions
from loadmaster.planner.sweep import Price
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
    restrictions: Mapping[str, Points] = field(default_factory=dict)
    prices: Mapping[int, tuple[Price, ...]] = field(default_factory=dict)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A planner in whose sweeps budgets below 3 MB are too small, and larger ones are better; what it was asked.

    To recompute only takes twice as long, and of offloading only nothing is known below 6 MB.
    """
    calls: list[dict[str, Any]] = []

    def frontier(
        problem: MemoryProblem,
        options: PlanOptions,
        limits: Sequence[int] | None = None,
        count: int = 6,
        workers: int = 2,
        restrictions: bool = False,
        prices: bool = False,
        on_progress: Callable[..., None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Points:
        assert not prices
        calls.append(
            {"options": options, "limits": limits, "count": count, "workers": workers, "restrictions": restrictions}
        )
        budgets = limits or [n * MEGABYTE for n in range(5, 5 + count)]
        undecided = tuple(b for b in budgets if b == UNDECIDED)
        points = tuple(Point(b, answer(b)) for b in budgets if b != UNDECIDED)
        if not restrictions:
            return Points(points, undecided)
        again = Points(tuple(Point(b, answer(b, 2.0)) for b in budgets if b != UNDECIDED), undecided)
        late = tuple(b for b in budgets if b < 6 * MEGABYTE)
        once = Points(tuple(Point(b, answer(b, 3.0)) for b in budgets if b not in late), late)
        return Points(points, undecided, {"recompute only": again, "offload only": once})

    def answer(budget_bytes: int, times: float = 1.0) -> MemoryPlan:
        if budget_bytes < 3 * MEGABYTE:
            short = 3 * MEGABYTE - budget_bytes
            return no_plan(chain(6, MEGABYTE), budget_bytes, MemoryInfeasibility(3 * MEGABYTE, short, "backward 2", ()))
        return plan_by_hand(
            chain(6, MEGABYTE), budget_bytes, objective=times * 4e10 / budget_bytes, bound=3.6e10 / budget_bytes
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
    options = PlanOptions(gap=0.1)
    assert asked == [{"options": options, "limits": None, "count": 4, "workers": 1, "restrictions": False}]
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


def test_restrictions_are_columns_and_further_curves(
    asked: list[dict[str, Any]], problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--budgets", "2MB,5MB,8MB", "--restrictions", "-o", "f.json", "--png", "f.png", "--html", "f.html"]
    assert run("frontier", problem, *flags) == 0
    assert asked[0]["restrictions"]
    said = capsys.readouterr()
    header, small, middle, large = said.out.splitlines()
    assert header.split()[-4:] == ["recompute", "only", "offload", "only"]
    assert "no plan" in small and small.endswith("unknown")
    assert "16.00 ms, gap" in middle and middle.endswith("unknown")
    assert "10.00 ms, gap" in large and "15.00 ms, gap" in large
    assert "4.77 MiB, offload only: the limit came" in said.err
    page = Path("f.html").read_text()
    assert page.count("<circle") == 2 + 2 + 1 and "<title>offload only: 15.00 ms" in page
    assert Path("f.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(Path("f.json").read_text())
    assert document["schema"] == "loadmaster/frontier/1" and len(document["points"]) == 3
    written = document["restrictions"]
    assert [p["plan"].get("objective") for p in written["recompute only"]] == [None, 16000.0, 10000.0]
    assert [p["budget_bytes"] for p in written["offload only"]] == [8 * MEGABYTE]
    assert run("frontier", problem, *flags[:3], "--json", "--no-picture") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[1]["restrictions"]["recompute only"]["objective"] == 16000.0
    assert [row["restrictions"]["offload only"] is None for row in rows] == [True, True, False]


def test_without_restrictions_documents_are_as_they_were(
    asked: list[dict[str, Any]], problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("frontier", problem, "--budgets", "5MB", "--no-picture", "--json", "-o", "f.json") == 0
    assert json.loads(Path("f.json").read_text()).keys() == {"schema", "kind", "points"}
    assert "restrictions" not in json.loads(capsys.readouterr().out)[0]


def test_a_problem_without_a_link_has_no_restrictions(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("frontier", problem, "--restrictions") == 2
    said = capsys.readouterr().err
    assert "problem.host_link" in said and "--offload" in said
    assert list(Path().glob("*.png")) == []


def test_measured_points_are_drawn(asked: list[dict[str, Any]], problem: Path) -> None:
    Path("points.csv").write_text("method,step_us,peak_bytes\neager,9000,7000000\ncheckpointing,12000,5000000\n")
    assert run("frontier", problem, "--budgets", "5MB,8MB", "--measured", "points.csv", "--html", "f.html") == 0
    page = Path("f.html").read_text()
    assert "<title>eager, 9.000 ms at 6.68 MiB</title>" in page and "<title>checkpointing, 12.00 ms" in page
    assert "<h2>Measured</h2>" in page and page.count("<circle") == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "--measured: cannot be read"),
        ("method,peak_bytes\neager,5\n", "--measured[0].step_us: is missing"),
        ("method,step_us,peak_bytes\neager,soon,5\n", "--measured[0].step_us: is no number above 0 (found 'soon')"),
    ],
)
def test_measured_points_that_cannot_be_used_stop_it_at_once(
    content: str | None, words: str, asked: list[dict[str, Any]], problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("points.csv").write_text(content)
    assert run("frontier", problem, "--measured", "points.csv") == 2
    assert words in capsys.readouterr().err
    assert asked == []


def test_measured_points_are_not_written_over(asked: list[dict[str, Any]], problem: Path) -> None:
    Path("points.csv").write_text("method,step_us,peak_bytes\neager,9000,7000000\n")
    assert run("frontier", problem, "--measured", "points.csv", "--html", "points.csv") == 2
    assert asked == [] and Path("points.csv").read_text().startswith("method")


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
