"""One door for every kind: who plans what, and which options mean something to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.errors import InputError
from loadmaster.models.kind import resolve
from loadmaster.models.kinds import KINDS, read_problem
from loadmaster.models.memory import documents as memory_documents
from loadmaster.models.memory.presets import chain
from loadmaster.planner import PlanOptions, cache_key, settled
from tests.models.collective.tiny import problem, ring

RING = problem(ring(3), "allgather", 300)
CHAIN = memory_documents.read_problem(chain(3, 1024))


def answer(asked: Any, options: PlanOptions, **more: Any) -> Any:
    return asked, options, more


def test_every_kind_has_a_planner_and_methods() -> None:
    for kind in KINDS.values():
        assert callable(resolve(kind.plan))
        assert kind.methods[0] == "auto"


def test_a_problem_goes_to_the_planner_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "collective", replace(KINDS["collective"], plan=f"{__name__}:answer"))
    found: Any = planner.plan(RING, gap=0.5, method="pipeline")
    assert found[0] is RING
    assert (found[1].gap, found[1].method, found[1].budget_bytes) == (0.5, "pipeline", None)
    assert set(found[2]) == {"on_progress", "cancelled"}


def test_methods_are_of_their_kind() -> None:
    for kind, asked in (("memory", CHAIN.with_budget(7)), ("collective", RING)):
        for method in KINDS[kind].methods:
            assert settled(asked, PlanOptions(method=method)).method == method
    for asked, method in ((CHAIN.with_budget(7), "cpsat"), (RING, "checkmate")):
        with pytest.raises(InputError, match=r"options\.method") as caught:
            planner.plan(asked, method=method)
        assert asked.kind in caught.value.problem


def test_budgets_are_of_kinds_that_have_one() -> None:
    assert settled(CHAIN, PlanOptions(budget_bytes=5)).budget_bytes == 5
    assert settled(CHAIN.with_budget(7), PlanOptions()).budget_bytes == 7
    assert settled(CHAIN.with_budget(7), PlanOptions(budget_bytes=7)).budget_bytes == 7
    for given in (PlanOptions(budget_bytes=8), PlanOptions(limit=8)):
        with pytest.raises(InputError, match=r"options\..*8 B is more than the 7 B that the problem states"):
            settled(CHAIN.with_budget(7), given)
    with pytest.raises(InputError, match=r"options\.budget_bytes.*means nothing to collective"):
        planner.plan(RING, budget_bytes=5)
    with pytest.raises(InputError, match="has no limit to sweep"):
        planner.frontier(RING, budgets_bytes=[1, 2])


def test_a_limit_may_be_given_by_either_name() -> None:
    for options in (PlanOptions(limit=5), PlanOptions(budget_bytes=5), PlanOptions(limit=5, budget_bytes=5)):
        found = settled(CHAIN, options)
        assert (found.limit, found.budget_bytes, found.given_limit) == (None, 5, 5)
    assert cache_key(CHAIN, PlanOptions(limit=5)) == cache_key(CHAIN, PlanOptions(budget_bytes=5))
    assert planner.plan(CHAIN, limit=1 << 20, method="plain").options["budget_bytes"] == 1 << 20
    with pytest.raises(InputError, match="is not budget_bytes"):
        settled(CHAIN, PlanOptions(limit=5, budget_bytes=6))
    with pytest.raises(InputError, match=r"options\.limit.*means nothing to collective"):
        settled(RING, PlanOptions(limit=5))
    with pytest.raises(InputError, match=r"problem\.budget_bytes: is missing here and in the options"):
        planner.plan(CHAIN)


def test_what_is_no_kind_is_refused_by_name() -> None:
    for name in ("cargo", None, 3, ["memory"]):
        with pytest.raises(InputError, match="is no kind of problem") as caught:
            read_problem({"schema": "loadmaster/problem/1", "kind": name})
        assert "memory, collective" in caught.value.remedy


def test_what_a_kind_says_of_itself_is_there() -> None:
    """Every reference of every registration leads somewhere."""
    for kind in KINDS.values():
        references = [kind.validate, kind.check, kind.plan, *(export.write for export in kind.exports)]
        if kind.limit is not None:
            references += [kind.limit.whole, kind.limit.points, kind.limit.with_bound, kind.limit.extras]
        references.append(kind.simulate)
        assert all(callable(resolve(reference)) for reference in references if reference is not None)
        assert (kind.simulate is None) == (kind.policies == ())
        offered = {
            kind.documents: ("read_problem", "write_problem", "read_plan", "write_plan"),
            kind.views: ("summary", "infeasible", "verdict", "view", "details"),
            kind.new: ("add_arguments", "build"),
        }
        for module, names in offered.items():
            assert all(callable(getattr(resolve(module), name)) for name in names), module
        assert len({export.name for export in kind.exports}) == len(kind.exports)


def test_keys_of_collectives() -> None:
    assert cache_key(RING, PlanOptions()) == cache_key(problem(ring(3), "allgather", 300, title="x"), PlanOptions())
    others = [
        cache_key(problem(ring(3), "allgather", 600), PlanOptions()),
        cache_key(problem(ring(4), "allgather", 300), PlanOptions()),
        cache_key(RING, PlanOptions(gap=0.5)),
    ]
    assert len({cache_key(RING, PlanOptions()), *others}) == 4


def test_typed_problems_are_held_to_the_rules_of_documents() -> None:
    with pytest.raises(InputError, match="root: is missing"):
        planner.plan(problem(ring(3), "broadcast", 300))
    with pytest.raises(InputError, match="does not divide 301 bytes"):
        planner.plan(problem(ring(3), "allgather", 301))
    backwards = replace(CHAIN, forward=CHAIN.forward[::-1])
    with pytest.raises(InputError, match="is not its position 0"):
        planner.plan(backwards, budget_bytes=1 << 30)
