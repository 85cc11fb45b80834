"""Recomputes what an index plan comes to, from the problem alone, without a look at how it was found.

What a plan may do:
- Every shard gets one candidate that can serve it: with order where order is asked for, with writes where there are
  any, with no pause longer than allowed.
- The bytes kept for the shards of a host are no more than its budget, and than it has.
- Every shard is on a thread of its host where the longest thread is minimized; where its thread is given, on that one.
- Times and bytes that the plan states for a shard are those that the problem says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.index.changes import changes
from loadmaster.models.index.limits import lacking, least_us
from loadmaster.models.index.plan import Choice, IndexPlan
from loadmaster.models.index.problem import IndexProblem, Shard
from loadmaster.models.index.serving import refusal, words
from loadmaster.models.statements import Recomputed, Statements
from loadmaster.models.units import show_bytes

# Sums of the same times in another order are equal to so many digits.
_CLOSE = 1e-9
# More would say the same again.
_MOST_SAID = 20


@dataclass(frozen=True)
class IndexCheck:
    """The verdict: times of all shards and of the longest thread (0 where shards are on no threads), bytes that are
    kept for indexes on each of the hosts, and the most of these. Violations are in words, empty when the plan holds."""

    violations: tuple[str, ...]
    total_us: float
    longest_us: float
    held_bytes: tuple[int, ...] = field(repr=False)
    peak_bytes: int
    peak_at: str
    objective: float

    @property
    def ok(self) -> bool:
        """True if the plan holds."""
        return not self.violations

    def summary(self) -> dict[str, object]:
        """Summarize the check for the plan document."""
        return {
            "ok": self.ok,
            "total_us": self.total_us,
            "longest_us": self.longest_us,
            "peak_bytes": self.peak_bytes,
            "peak_at": self.peak_at,
        }


def check_plan(problem: IndexProblem, plan: IndexPlan) -> IndexCheck:
    """Recompute a plan; raise InputError for a plan of another problem, or an infeasible one."""
    expect_problem(plan.problem_sha256, problem.sha256)
    if plan.status == "infeasible":
        raise InputError("status", plan.status, "there are no choices to check", "Check a plan that was found.")
    return check(problem, plan.choices, plan.budget_bytes)


def check(problem: IndexProblem, choices: tuple[Choice, ...], budget_bytes: int) -> IndexCheck:
    """Hold choices against the rules above."""
    wrong: list[str] = []
    if len(choices) != len(problem.shards):
        wrong.append(f"{len(choices)} choices are given for {len(problem.shards)} shards")
    held = [0] * len(problem.hosts)
    total_us = 0.0
    by_thread: dict[tuple[int, int], float] = defaultdict(float)
    for shard, choice in zip(problem.shards, choices, strict=False):
        if choice.candidate >= len(problem.candidates):
            wrong.append(f"{shard.name} gets candidate {choice.candidate}: there is no such one")
            continue
        if (reason := refusal(problem, shard, choice.candidate)) is not None:
            wrong.append(f"{shard.name} gets {words(problem.candidates[choice.candidate])}, which {reason}")
            continue
        took_us, took_bytes = _recomputed(shard, choice.candidate)
        if not math.isclose(choice.time_us, took_us, rel_tol=_CLOSE) or choice.peak_bytes != took_bytes:
            said = f"{choice.time_us:.3f} us and {choice.peak_bytes} bytes"
            wrong.append(f"{shard.name} is said to take {said}: it takes {took_us:.3f} us and {took_bytes} bytes")
        wrong += _thread_rules(problem, shard, choice)
        held[shard.host] += took_bytes
        total_us += took_us
        if choice.thread is not None:
            by_thread[shard.host, choice.thread] += took_us
    for host, took in zip(problem.hosts, held, strict=True):
        room = budget_bytes if host.memory_bytes is None else min(budget_bytes, host.memory_bytes)
        if took > room:
            wrong.append(f"{host.name} holds {show_bytes(took)}: {show_bytes(took - room)} over its {show_bytes(room)}")
    fullest = max(range(len(held)), key=lambda h: held[h])
    longest_us = max(by_thread.values(), default=0.0)
    return IndexCheck(
        violations=tuple(wrong[:_MOST_SAID]),
        total_us=total_us,
        longest_us=longest_us,
        held_bytes=tuple(held),
        peak_bytes=held[fullest],
        peak_at=problem.hosts[fullest].name,
        objective=total_us if problem.objective == "sum" else longest_us,
    )


def _recomputed(shard: Shard, candidate: int) -> tuple[float, int]:
    cost = shard.costs[candidate]
    assert cost is not None, "refused before"
    done = shard.operations
    took_ns = done.lookups * cost.read_ns.expected
    if cost.write_ns is not None:
        took_ns += (done.inserts + done.erases) * cost.write_ns.expected
    took_ns += done.scans * (cost.read_ns if cost.scan_ns is None else cost.scan_ns).expected
    rebuild_us = 0.0 if shard.current in (None, candidate) else cost.rebuild_us
    size = cost.peak_bytes
    return took_ns / 1e3 + rebuild_us, math.ceil(size.expected if size.upper is None else size.upper)


def _thread_rules(problem: IndexProblem, shard: Shard, choice: Choice) -> list[str]:
    threads = problem.hosts[shard.host].threads
    if choice.thread is None:
        return [f"{shard.name} is on no thread"] if problem.objective == "longest-thread" else []
    if choice.thread >= threads:
        return [f"{shard.name} is on thread {choice.thread} of {threads}"]
    if shard.thread is not None and choice.thread != shard.thread:
        return [f"{shard.name} is on thread {choice.thread}, and its thread is {shard.thread}"]
    return []


def _recompute(problem: IndexProblem, plan: IndexPlan, verdict: IndexCheck | None) -> Recomputed:
    fields = {"method": plan.options.get("method", plan.method)}
    if verdict is not None:
        chosen = [choice.candidate for choice in plan.choices]
        made = tuple(changes(problem, chosen, plan.budget_bytes))
        return Recomputed({**fields, "changes": made}, least_us(problem))
    missing = lacking(problem, plan.budget_bytes)
    status = "feasible" if missing is None else "infeasible"
    return Recomputed({**fields, "changes": (), "status": status, "infeasibility": missing})


STATEMENTS = Statements(decisions=frozenset({"choices"}), recompute=_recompute)
