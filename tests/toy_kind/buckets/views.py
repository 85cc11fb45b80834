"""How plans of the kind ``buckets`` are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buckets.checker import Check, check_plan
from buckets.problem import BucketsPlan, BucketsProblem
from loadmaster.api.columns import table
from loadmaster.api.report.page import html_table, page
from loadmaster.errors import InputError
from loadmaster.models.units import show_bytes, show_cost


@dataclass(frozen=True)
class View:
    """A plan with its problem and its replay."""

    problem: BucketsProblem
    plan: BucketsPlan
    check: Check

    def rows(self) -> list[list[str]]:
        """A row for every message: its gradients, bytes, start and end."""
        found, first = [], 0
        for end, (start_us, end_us) in zip(self.plan.ends, self.check.sent_us, strict=True):
            size_bytes = sum(g.size_bytes for g in self.problem.gradients[first:end])
            found.append([f"{first}..{end - 1}", str(size_bytes), f"{start_us:g}", f"{end_us:g}"])
            first = end
        return found


HEADER = ["gradients", "bytes", "start_us", "end_us"]


def summary(plan: BucketsPlan) -> str:
    """What ``plan`` and ``show`` print."""
    if plan.objective is None:
        return f"{plan.name}: {plan.status}: {infeasible(plan)}"
    return f"{plan.name}: {plan.status}, {len(plan.ends)} messages, all there at {show_cost(plan.objective, plan.unit)}"


def infeasible(plan: BucketsPlan) -> str:
    """Why there is no plan."""
    return f"{plan.messages} messages send nothing: allow one"


def verdict(plan: BucketsPlan, check: Check) -> str:
    """The checker's line."""
    return f"{len(check.sent_us)} of {plan.messages} messages, {show_cost(check.objective, plan.unit)}"


def view(problem: BucketsProblem, plan: BucketsPlan) -> View:
    """The plan, replayed.

    Raises:
        InputError: it is another problem's, or does not hold.
    """
    found = check_plan(problem, plan)
    if not found.ok:
        raise InputError("plan", plan.name, found.violations[0], "Plan the problem again.")
    return View(problem, plan, found)


def details(seen: View) -> str:
    """What ``show`` adds."""
    return table(seen.rows(), HEADER)


def html(seen: View) -> bytes:
    """The report."""
    total = show_bytes(sum(g.size_bytes for g in seen.problem.gradients))
    return page(
        seen.plan.name, f"{total} in {len(seen.plan.ends)} messages", [html_table(HEADER, seen.rows())]
    ).encode()


def csv(seen: View) -> bytes:
    """A row for every message."""
    return "".join(",".join(row) + "\n" for row in [HEADER, *seen.rows()]).encode()


def ranks(seen: View, world: int) -> Mapping[str, bytes]:
    """A file for each rank: the ends, of all the same."""
    return {f"rank-{rank}.txt": (" ".join(map(str, seen.plan.ends)) + "\n").encode() for rank in range(world)}
