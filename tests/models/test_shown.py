"""Problems and plans of every kind save, sum up and show themselves: round trips, short lines, whole markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import loadmaster
from loadmaster.api.cli import new_collective
from loadmaster.errors import InputError
from loadmaster.models.kinds import write_plan, write_problem
from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.units import show_cost

EMPTY = {"br", "hr", "img", "input", "meta", "link", "path", "rect", "circle", "line", "use"}


class Whole(HTMLParser):
    """Refuses markup whose elements do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(markup: str) -> Whole:
    found = Whole()
    found.feed(markup)
    found.close()
    assert found.open == []
    return found


def memory_problem(**changes: Any) -> MemoryProblem:
    problem = loadmaster.read_problem(chain(6, 1000))
    assert isinstance(problem, MemoryProblem)
    return replace(problem, **changes)


def collective_problem() -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    new_collective.add_arguments(parser)
    flags = ["--topology", "hgx-h200", "--collective", "allgather", "--bytes", "64KiB,1MiB"]
    return loadmaster.read_problem(new_collective.build(parser.parse_args(flags)))


def chen(problem: MemoryProblem) -> MemoryPlan:
    plan = loadmaster.plan(problem, budget_bytes="80%", method="chen")
    assert isinstance(plan, MemoryPlan)
    return plan


def test_a_memory_problem_and_its_plan_there_and_back(tmp_path: Path) -> None:
    problem = memory_problem(budget_bytes=6000, captured_with={"torch": "2.12.0"})
    problem.save(tmp_path / "problem.json")
    assert loadmaster.load_problem(tmp_path / "problem.json") == problem
    plan = chen(problem)
    plan.save(str(tmp_path / "plan.json"))
    again = loadmaster.load_plan(str(tmp_path / "plan.json"))
    assert again == plan
    assert again.captured_with == {"torch": "2.12.0"}
    assert write_plan(again) == write_plan(plan)


def test_what_it_was_captured_with_is_no_part_of_what_it_is() -> None:
    assert memory_problem(captured_with={"torch": "2.12.0"}).sha256 == memory_problem().sha256
    assert "captured_with" not in write_problem(memory_problem())


def test_a_collective_problem_and_its_plan_there_and_back(tmp_path: Path) -> None:
    problem = collective_problem()
    problem.save(tmp_path / "problem.json")
    assert loadmaster.load_problem(tmp_path / "problem.json") == problem
    plan = loadmaster.plan(problem, method="greedy")
    plan.save(tmp_path / "plan.json")
    assert loadmaster.load_plan(tmp_path / "plan.json") == plan
    text = str(problem.summary())
    assert "8 ranks on 1 nodes" in text and "64.0 KiB, 1.00 MiB" in text
    assert problem.summary().figures["sizes_bytes"] == (65536, 1 << 20)
    for shown in (problem, plan):
        assert len(repr(shown)) < 200
        assert problem.name[:20] in repr(shown)
    drawn = parsed(plan._repr_html_())
    assert plan.objective is not None
    assert "svg" in drawn.seen and show_cost(plan.objective, plan.unit) in drawn.text


@pytest.mark.parametrize("path", ["no/such/folder/plan.json", ".", "a\0b"])
def test_where_nothing_can_be_written_is_named(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        memory_problem().save(path)
    assert caught.value.field == "path" and caught.value.value == path
    assert caught.value.remedy


@pytest.mark.parametrize("load", [loadmaster.load_problem, loadmaster.load_plan])
def test_what_is_no_such_document_is_named(load: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"schema": "loadmaster/other/1", "kind": "memory"}')
    with pytest.raises(InputError, match="is not the expected schema"):
        load(tmp_path / "other.json")


def test_the_summary_has_the_figures_of_the_checker_and_of_the_proof() -> None:
    problem = memory_problem(budget_bytes=5000)
    verdict = check(problem, plain.formulate(problem), 0)
    figures = problem.summary().figures
    # By hand: six results of 1000 bytes, a loss of 4, and a gradient of 1000 when the loss goes backward.
    assert figures["unconstrained_peak_bytes"] == verdict.peak_bytes == problem_peak_by_hand()
    assert figures["unconstrained_us"] == verdict.time_us
    assert figures["least_budget_bytes"] == minimum_budget(problem).budget_bytes
    assert figures["budget_bytes"] == 5000
    assert sum(figures["peak_by_module_bytes"].values()) == verdict.peak_bytes
    assert figures["forward"] == len(problem.forward)
    text = str(problem.summary())
    for words in (f"({verdict.peak_bytes} bytes)", show_cost(verdict.time_us, "us"), verdict.peak_at):
        assert words in text
    assert parsed(problem._repr_html_()).text.count(problem.name) == 1


def problem_peak_by_hand() -> int:
    return 6 * 1000 + 1000


def test_short_lines() -> None:
    problem = memory_problem(name="n" * 200, budget_bytes=6000)
    plan = chen(problem)
    for shown in (problem, plan, loadmaster.frontier(problem, loadmaster.PlanOptions(method="chen"), limits=["80%"])):
        assert len(repr(shown)) < 200 and "\n" not in repr(shown)
        assert "n" * 40 in repr(shown)
    assert plan.objective is not None and plan.bound is not None and plan.gap is not None
    for words in (plan.status, show_cost(plan.objective, "us"), show_cost(plan.bound, "us"), f"{100 * plan.gap:.2f} %"):
        assert words in repr(plan)
    nothing = loadmaster.plan(problem, budget_bytes=1)
    assert "infeasible" in repr(nothing) and len(repr(nothing)) < 200


def test_a_plan_in_a_notebook_has_its_picture_where_its_problem_is_known() -> None:
    problem = memory_problem(name="<b>a & b")
    plan = chen(problem)
    assert plan.objective is not None
    drawn = parsed(plan._repr_html_())
    assert "svg" in drawn.seen and show_cost(plan.objective, "us") in drawn.text
    assert "b" not in drawn.seen and "<b>a & b" in drawn.text
    elsewhere = parsed(replace(plan, problem_sha256="0" * 64)._repr_html_())
    assert "svg" not in elsewhere.seen and show_cost(plan.objective, "us") in elsewhere.text
    assert "no plan fits" in parsed(loadmaster.plan(problem, budget_bytes=1)._repr_html_()).text


def test_show_takes_what_was_saved(tmp_path: Path) -> None:
    problem = memory_problem()
    plan = chen(problem)
    problem.save(tmp_path / "problem.json")
    plan.save(tmp_path / "plan.json")
    shown = loadmaster.show(tmp_path / "problem.json", tmp_path / "plan.json")
    assert "svg" in parsed(shown._repr_html_()).seen
    assert repr(shown).startswith(plan.summary())
    with pytest.raises(InputError, match="problem_sha256"):
        loadmaster.show(loadmaster.read_problem(chain(5, 1000)), plan)
    with pytest.raises(InputError, match="another kind"):
        loadmaster.show(collective_problem(), plan)


def test_a_frontier_in_a_notebook() -> None:
    found = loadmaster.frontier(memory_problem(), loadmaster.PlanOptions(method="chen"), limits=[1, "80%", "100%"])
    drawn = parsed(found._repr_html_())
    assert "svg" in drawn.seen and "infeasible" in drawn.text
    nothing = loadmaster.frontier(memory_problem(), limits=[1])
    assert "svg" not in parsed(nothing._repr_html_()).seen
