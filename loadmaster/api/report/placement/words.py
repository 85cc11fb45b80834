"""A placement plan in a few lines of text: the step, its proof, what it moves, and what is away."""

from __future__ import annotations

from loadmaster.api.columns import table
from loadmaster.api.report.placement.view import PlacementView
from loadmaster.api.report.words import (
    check_row,
    lifetime,
    moved,
    moves_verdict,
    none_fits,
    peak_row,
    proof,
    step_row,
    under_budget,
)
from loadmaster.models.placement.checker import PlacementCheck
from loadmaster.models.placement.plan import PlacementInfeasibility, PlacementPlan
from loadmaster.models.units import show_at_least, show_bytes, show_cost

_MOST_BLOCKS = 10
_MOST_WAITS = 5


def summary(plan: PlacementPlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    return under_budget(plan, _infeasible_rows, _rows)


def infeasible(plan: PlacementPlan) -> str:
    """Explain why there is no plan, and how much more budget it takes."""
    return none_fits(plan, _why)


def _why(found: PlacementInfeasibility) -> str:
    more = f"{show_bytes(found.short_bytes)} more are enough"
    return f"{more}, {found.minimum_budget_bytes} bytes ({found.where})."


def verdict(plan: PlacementPlan, check: PlacementCheck) -> str:
    """The checker's findings in one line: the peak, the step and the bytes moved."""
    return moves_verdict(plan, check)


def details(view: PlacementView) -> str:
    """Tables of what is away, by role; of the blocks that move most; of where the step waits."""
    problem = view.problem
    if not view.away:
        return "\nnothing leaves the device"
    roles = [[role, show_bytes(int(sizes.max()))] for role, sizes in sorted(view.away_bytes.items())]
    blocks = [
        [problem.blocks[a.block].name, problem.blocks[a.block].role, show_bytes(a.size_bytes), str(a.absences)]
        for a in view.away[:_MOST_BLOCKS]
    ]
    lines = ["", table(roles, ["away", "at most"]), "", table(blocks, ["moves most", "role", "size", "times"])]
    lines += ["", table(wear(view), WEAR)]
    if waits := longest_waits(view):
        lines += ["", table(waits, ["waits", "for"])]
    return "\n".join(lines)


WEAR = ["tier", "written each step", "lasts, written without a pause"]


def wear(view: PlacementView) -> list[list[str]]:
    """Rows of the table of tiers: what a step writes to each, and how long one that wears lasts, which is its endurance
    over the rate of writing ([Wu24], section 5.3.6)."""
    written = [0] * len(view.problem.tiers)
    for store in view.moves.stores:
        written[store.tier] += view.problem.blocks[store.block].size_bytes
    rows = []
    for tier, size_bytes in zip(view.problem.tiers, written, strict=True):
        life = "" if tier.endurance_bytes is None else "for ever"
        if tier.endurance_bytes is not None and size_bytes:
            life = lifetime(tier.endurance_bytes / size_bytes * view.check.objective)
        rows.append([tier.name, show_bytes(size_bytes), life])
    return rows


def longest_waits(view: PlacementView, most: int = _MOST_WAITS) -> list[list[str]]:
    """The operators that wait longest, and how long."""
    stalls = view.run.stall_us
    longest = [int(i) for i in stalls.argsort()[::-1][:most] if stalls[i] > 0]
    return [[f"operator {i} ({view.problem.operators[i].words})", show_cost(float(stalls[i]), "us")] for i in longest]


def _rows(plan: PlacementPlan) -> list[tuple[str, str]]:
    rows = [step_row(plan, plan.compute_us), ("proof", proof(plan)), *peak_row(plan, "an unnamed operator")]
    check = plan.check
    if "stored_bytes" in check and "loaded_bytes" in check:
        rows.append(("moves", moved(check["stored_bytes"], check["loaded_bytes"])))
    if check.get("stall_us"):
        rows.append(("price", f"{show_cost(check['stall_us'], 'us')} waiting for copies"))
    return [*rows, check_row(plan)]


def _infeasible_rows(found: PlacementInfeasibility) -> list[tuple[str, str]]:
    return [
        ("works", f"{show_at_least(found.minimum_budget_bytes)} ({found.minimum_budget_bytes} bytes)"),
        ("short", f"{show_bytes(found.short_bytes)} more are enough"),
        ("where", found.where),
    ]
