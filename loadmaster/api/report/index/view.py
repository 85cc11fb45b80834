"""An index plan joined with its problem: what each shard gets and what that comes to, what each host holds."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.api.report.index.runs import Run, runs
from loadmaster.api.report.words import expect_held
from loadmaster.models.index.checker import IndexCheck, check_plan
from loadmaster.models.index.plan import Change, Choice, IndexPlan
from loadmaster.models.index.problem import Cost, IndexProblem, Shard
from loadmaster.models.index.serving import words


@dataclass(frozen=True)
class ShardRow:
    """One shard and its choice, the configuration in words. ``cost`` is of the choice, measured or predicted;
    ``change`` is of a shard that is built already and changes, or would gain."""

    shard: Shard
    host: str
    choice: Choice
    configuration: str
    cost: Cost
    change: Change | None


@dataclass(frozen=True)
class IndexView:
    """A plan and its check, ready to draw; and what ran of its problem."""

    problem: IndexProblem
    plan: IndexPlan
    check: IndexCheck
    rows: tuple[ShardRow, ...]
    runs: tuple[Run, ...]


def view(problem: IndexProblem, plan: IndexPlan) -> IndexView:
    """Check a plan and join it with its problem. Raises InputError if the plan is of another problem, has no choices,
    or does not pass the checker."""
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    changes = {change.shard: change for change in plan.changes}
    rows = []
    for s, (shard, choice) in enumerate(zip(problem.shards, plan.choices, strict=True)):
        cost = shard.costs[choice.candidate]
        assert cost is not None, "the checker has seen to that"
        host = problem.hosts[shard.host].name
        rows.append(ShardRow(shard, host, choice, words(problem.candidates[choice.candidate]), cost, changes.get(s)))
    return IndexView(problem, plan, verdict, tuple(rows), tuple(runs(problem, plan)))
