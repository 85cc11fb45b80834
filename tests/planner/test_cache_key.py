"""The cache key: equal exactly for requests that have the same answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import loadmaster
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner import PlanOptions, cache_key

GIB = 1 << 30


def problem(**changes: Any) -> MemoryProblem:
    return replace(read_problem(chain(3, 1024)), budget_bytes=GIB, **changes)


def test_names_do_not_matter() -> None:
    renamed = problem(name="other", title="Another title")
    assert cache_key(renamed, PlanOptions()) == cache_key(problem(), PlanOptions())


def test_a_budget_is_the_same_wherever_it_is_given() -> None:
    elsewhere = replace(problem(), budget_bytes=None)
    assert cache_key(elsewhere, PlanOptions(budget_bytes=GIB)) == cache_key(problem(), PlanOptions())
    assert cache_key(problem(), PlanOptions(budget_bytes=GIB // 2)) != cache_key(problem(), PlanOptions())
    assert cache_key(problem(), PlanOptions(budget_bytes=1)) != cache_key(problem(), PlanOptions())


@pytest.mark.parametrize(
    "changes",
    [
        {"time_limit_s": 61.0},
        {"gap": 0.05},
        {"seed": 1},
        {"solver": "highs"},
        {"method": "chen"},
        {"memory_limit_bytes": GIB},
    ],
)
def test_every_option_matters(changes: dict[str, Any]) -> None:
    assert cache_key(problem(), PlanOptions(**changes)) != cache_key(problem(), PlanOptions())


def test_the_graph_matters() -> None:
    first = problem().forward[0]
    others = [
        problem(host_link=HostLink(10.0, 10.0)),
        problem(forward=(replace(first, output_bytes=first.output_bytes + 1), *problem().forward[1:])),
        read_problem(chain(4, 1024)).with_budget(GIB),
    ]
    keys = {cache_key(p, PlanOptions()) for p in (problem(), *others)}
    assert len(keys) == 1 + len(others)


def test_another_version_answers_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(problem(), PlanOptions())
    monkeypatch.setattr(loadmaster, "__version__", "0.0.0-test")
    assert cache_key(problem(), PlanOptions()) != before


def test_whole_numbers_are_the_numbers_they_are() -> None:
    """JSON has one kind of number: 60 seconds are 60.0 seconds."""
    assert cache_key(problem(), PlanOptions(time_limit_s=60)) == cache_key(problem(), PlanOptions(time_limit_s=60.0))
