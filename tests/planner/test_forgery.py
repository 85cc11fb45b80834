"""Nothing false passes the check: real plans of every kind, with every field that they state changed in turn."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loadmaster
from loadmaster.api.cli import app
from loadmaster.errors import InputError
from loadmaster.models.checking import Checked, checked
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.proof import prove
from loadmaster.models.hardware import HostLink
from loadmaster.models.kind import resolve
from loadmaster.models.kinds import KINDS, read_plan, write_plan, write_problem
from loadmaster.models.statements import TRUSTED
from loadmaster.models.training.limits import least_bytes
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.planner import PlanOptions
from tests.models.collective.tiny import problem as collective
from tests.models.collective.tiny import ring
from tests.models.graph import problems as graph
from tests.models.index import index_instances as index
from tests.models.memory import instances as memory
from tests.models.partition import instances as partition
from tests.models.placement import instances as placement
from tests.models.training import steps as training
from tests.planner.forgeries import forgeries

MIB = 1 << 20
LINK = HostLink(MIB / 3e3, MIB / 3e3)  # a MiB takes three microseconds
# So many forgeries of each kind at least.
LEAST = 300

# What a plan decides: replayed.
DECISIONS: Mapping[str, set[str]] = {
    "memory": {"budget_bytes", "schedule"},
    "placement": {"budget_bytes", "moves"},
    "partition": {"budget_bytes", "splits"},
    "graph": {"budget_bytes", "choices", "program", "schedule", "hot_rows"},
    "index": {"budget_bytes", "choices"},
    "collective": {f"algorithms[].{name}" for name in ("size_bytes", "chunk_count", "form", "sends", "from_bytes")},
    "training": {"budget_bytes", "schedule"},
}
# What nobody can recompute, of plans of every kind.
ON_TRUST = {
    *("name", "bound", "method", "stopped_by", "options", "captured_with"),
    *("seconds.build", "seconds.solve", "seconds.check"),
    *("solver.name", "solver.version", "solver.cpu_seconds", "solver.solves", "solver.nodes"),
}
# And of one kind: what a solver proved.
OWN_TRUST: Mapping[str, set[str]] = {
    "memory": {
        "overhead_gap",  # of a bound that says nothing of it
        *("infeasibility.minimum_budget_bytes", "infeasibility.where", "infeasibility.planned_budget_bytes"),
    },
    "placement": {"infeasibility.minimum_budget_bytes"},  # where tiers are full
    "partition": {
        *("infeasibility.minimum_budget_bytes", "infeasibility.planned_budget_bytes"),
        *("infeasibility.where", "infeasibility.largest"),
    },
    "graph": {"infeasibility.minimum_budget_bytes", "infeasibility.where", "infeasibility.largest"},
    "index": set(),
    "collective": {
        f"algorithms[].{name}" for name in ("bound_ns", "bound_by", "throughput_bound_ns", "method", "seconds")
    },
    "training": {
        "prices",  # what other plans gain
        *("infeasibility.minimum_budget_bytes", "infeasibility.where"),  # where every phase fits by itself
    },
}


def cases(kind: str) -> Iterator[tuple[Any, PlanOptions]]:
    """Problems and options whose plans are optimal, within a wide gap, of every sort of decision, and infeasible."""
    if kind == "collective":
        yield replace(collective(ring(3), "allgather", 300), sizes_bytes=(300, 3_000)), PlanOptions(time_limit_s=2.0)
        yield collective(ring(4), "allreduce", 400), PlanOptions(gap=0.5, time_limit_s=2.0)
        yield _cut_off(), PlanOptions()
        return
    problems: dict[str, list[Any]] = {
        "memory": [
            memory.random_problem(1, operators=6, unit_bytes=MIB),
            memory.random_problem(3, operators=6, unit_bytes=MIB, host_link=LINK),
        ],
        "placement": [placement.random_problem(seed, operators=8, blocks=6) for seed in (0, 1)],
        "partition": [partition.random_problem(seed, mesh=(2, 2), operators=4, copies=seed == 1) for seed in (1, 3)],
        "graph": [graph.with_store(0), graph.rgcn(1)],
        "index": [
            index.random_problem(seed, shards=6, objective=objective)
            for seed, objective in ((0, "sum"), (1, "longest-thread"))
        ],
        "training": [training.random_problem(seed, layers=4) for seed in (0, 1)],
    }
    for problem in problems[kind]:
        limit = KINDS[kind].limit
        assert limit is not None
        least, between, *_ = limit.default_points(problem, 4)
        for budget_bytes, gap in ((between, 0.01), (least + (between - least) // 2, 0.4), (least // 2, 0.01)):
            yield problem, PlanOptions(budget_bytes=budget_bytes, gap=gap, time_limit_s=5.0)
    if kind == "training":
        yield _full_host()


def _cut_off() -> CollectiveProblem:
    """A ring of one direction that a wire is missing from."""
    whole = ring(4)
    links = tuple(link for link in whole.links if (link.source, link.target) not in {(3, 0), (0, 3), (1, 0)})
    return collective(replace(whole, links=links), "allgather", 400)


def _full_host() -> tuple[TrainingProblem, PlanOptions]:
    """A step each of whose phases fits by itself, and a host without room for all that must go."""
    problem = training.random_problem(2, layers=4)
    problem = replace(problem, host=replace(problem.host, capacity_bytes=30 * training.KB))
    return problem, PlanOptions(budget_bytes=least_bytes(problem)[0], time_limit_s=5.0)


@functools.cache
def plans(kind: str) -> list[tuple[Any, dict[str, Any]]]:
    """Problems with their plans as documents, as one reads them."""
    found = []
    for problem, options in cases(kind):
        plan = loadmaster.plan(problem, options)
        found.append((problem, json.loads(json.dumps(write_plan(plan)))))
    return found


def judged(problem: Any, document: Mapping[str, Any]) -> Checked | None:
    """What the check says of a document; None: it is no plan document, or another problem's."""
    try:
        return checked(KINDS[problem.kind], problem, read_plan(document))
    except InputError:
        return None


def is_same(document: Mapping[str, Any], forged: Mapping[str, Any]) -> bool:
    """Whether two documents are of one plan: what is left out may be at its default."""
    try:
        return bool(read_plan(document) == read_plan(forged))
    except InputError:
        return False


def under(pattern: str, declared: set[str]) -> bool:
    """Whether a place is one of these, or in one of them."""
    return any(pattern == one or pattern.startswith((f"{one}.", f"{one}[")) for one in declared)


@pytest.mark.parametrize("kind", DECISIONS)
def test_nobody_takes_more_on_trust_than_is_listed_here(kind: str) -> None:
    statements, limit = resolve(KINDS[kind].statements or ""), KINDS[kind].limit
    assert statements.decisions | ({limit.field} if limit else set()) == DECISIONS[kind]
    assert statements.trusted == OWN_TRUST[kind]
    assert TRUSTED == ON_TRUST


@pytest.mark.parametrize("kind", DECISIONS)
def test_honest_plans_pass_and_say_what_was_taken_on_trust(kind: str) -> None:
    statuses = set()
    for problem, document in plans(kind):
        found = judged(problem, document)
        assert found is not None and found.verdict.ok, found and found.verdict.violations
        trusted = {path.replace("[0]", "[]").replace("[1]", "[]") for path in found.trusted}
        assert trusted <= ON_TRUST | OWN_TRUST[kind]
        assert {"name", "seconds.solve", "solver.name"} <= trusted
        if found.least is not None:
            assert found.least <= document["objective"] * (1 + 1e-9)
        statuses.add(document["status"])
    assert "infeasible" in statuses and len(statuses) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", DECISIONS)
def test_no_false_field_passes(kind: str) -> None:
    count: Counter[str] = Counter()
    passed = []
    for problem, document in plans(kind):
        others = [other for _, other in plans(kind)]
        for pattern, path, what, forged in forgeries(document, others):
            if under(pattern, DECISIONS[kind]) or is_same(document, forged):
                continue
            found = judged(problem, forged)
            if found is None or not found.verdict.ok:
                count[pattern] += 1
            elif under(pattern, ON_TRUST | OWN_TRUST[kind]):
                # It was taken on trust by name; or it states less than is known.
                assert under(path, set(found.trusted)) or states_less(problem, pattern, what, forged), path
            elif not (pattern.startswith("check.") and what in ("gone", "null")):
                passed.append(f"{path}: {what}")
    assert not passed
    assert sum(count.values()) >= LEAST, count


def states_less(problem: Any, pattern: str, what: str, forged: Mapping[str, Any]) -> bool:
    """Whether a place states nothing any more, or a bound that is no better than what is proved."""
    if what in ("gone", "null"):
        return True
    return pattern == "algorithms[].throughput_bound_ns" and all(
        algorithm["throughput_bound_ns"] <= prove(problem, algorithm["size_bytes"]).throughput_ns
        for algorithm in forged["algorithms"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", DECISIONS)
def test_other_decisions_never_break_the_check(kind: str) -> None:
    """They are another plan: refused, or true in all that it states. Never an error of another sort."""
    judgements: Counter[bool] = Counter()
    for problem, document in plans(kind):
        decided = [one for one in forgeries(document) if under(one.pattern, DECISIONS[kind])]
        for forgery in decided[:: max(1, len(decided) // 100)]:
            found = judged(problem, forgery.document)
            judgements[found is not None and found.verdict.ok] += 1
    assert judgements[False] > judgements[True]


def field(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A document with another value of one field."""
    return lambda document: {**document, name: value}


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (field("gap", 0.25), "gap: the plan says 0.25, recomputed"),
        (field("unconstrained", 1.0), "unconstrained: the plan says 1.0, recomputed"),
        (field("unit", "ms"), "unit: the plan says 'ms', recomputed 'us'"),
        (field("stopped_by", "luck"), "stopped_by: the plan says 'luck', which is none of"),
        (field("bound", 1e9), "bound: the plan says 1000000000.0, above its own objective"),
        (field("bound", -1.0), "bound: the plan says -1.0, which is no bound of an objective"),
        (field("solver", {"name": "highs", "seeds": 3}), "solver.seeds: the plan says 3, and nothing tells whether"),
    ],
)
def test_what_is_false_is_named(
    forge: Callable[[dict[str, Any]], dict[str, Any]], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, document = plans("memory")[0]
    files = [tmp_path / "problem.json", tmp_path / "plan.json"]
    for path, content in zip(files, (write_problem(problem), forge(document)), strict=True):
        path.write_text(json.dumps(content))
    assert app.main(["check", *map(str, files)]) == 1
    assert says in capsys.readouterr().out


def test_an_answer_without_a_plan_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem, document = plans("memory")[2]
    files = [str(tmp_path / "problem.json"), str(tmp_path / "plan.json")]
    Path(files[0]).write_text(json.dumps(write_problem(problem)))
    Path(files[1]).write_text(json.dumps(document))
    assert app.main(["check", *files]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("passed: no plan fits") and "taken on trust: " in err
    document = {**document, "budget_bytes": 1 << 40}
    Path(files[1]).write_text(json.dumps(document))
    assert app.main(["check", *files, "--json"]) == 1
    assert any(said.startswith("status: ") for said in json.loads(capsys.readouterr().out)["violations"])


@pytest.mark.parametrize("kind", DECISIONS)
def test_a_document_that_states_less_is_true(kind: str) -> None:
    """As one of an older version, which knew less."""
    for problem, document in plans(kind):
        check = {"ok": True} if document["status"] != "infeasible" else {}
        older = {name: value for name, value in document.items() if name not in ("options", "captured_with")}
        asked = {"gap": document["options"]["gap"], "method": document["options"]["method"]}
        found = judged(problem, {**older, "check": check, "seconds": {}, "solver": {}, "options": asked})
        assert found is not None and found.verdict.ok


def test_plans_that_a_frontier_moves_state_nothing_false() -> None:
    """A plan for a small budget serves a larger one, and what follows from the budget follows from that one."""
    problem = index.random_problem(4, shards=8)
    for point in loadmaster.frontier(problem, PlanOptions(gap=0.5, time_limit_s=5.0), count=5).points:
        found = judged(problem, json.loads(json.dumps(write_plan(point.plan))))
        assert found is not None and found.verdict.ok, found and found.verdict.violations
