"""Parts that the summaries of several kinds share: rows of words, the proof, the method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.envelope import Plan, Price
from loadmaster.models.kind import Verdict
from loadmaster.models.step_measurement import StepMeasurement
from loadmaster.models.units import show_bytes, show_cost, show_share

PlanT = TypeVar("PlanT", bound=Plan)
Rows = list[tuple[str, str]]
Facts = list[tuple[str, str, str]]
_DAY_US = 86_400e6


def in_rows(head: str, rows: Sequence[tuple[str, str]]) -> str:
    """A line, and below it what is said of each name."""
    width = max(len(name) for name, _ in rows)
    return "\n".join([head, *(f"  {name.ljust(width)}  {text}" for name, text in rows)])


def under_budget(
    plan: PlanT, infeasible: Callable[[Any], Rows], feasible: Callable[[PlanT], Rows], each: str = ""
) -> str:
    """The lines that ``plan`` and ``show`` print of a plan under a budget; ``each``: of what, as in " a GPU".
    ``infeasible`` is given the plan's infeasibility."""
    if plan.status != "infeasible":
        rows = feasible(plan) + how(plan)
    elif plan.infeasibility is None:  # type: ignore[attr-defined]
        rows = [("why", "no plan exists within this budget")]
    else:
        rows = infeasible(plan.infeasibility)  # type: ignore[attr-defined]
    return in_rows(f"{plan.name} under {show_bytes(budget_of(plan))}{each}: {plan.standing}", rows)


def none_fits(plan: Plan, because: Callable[[Any], str], each: str = "") -> str:
    """Say that no plan fits the budget, and why: ``because`` is given the plan's infeasibility, if there is one."""
    said = f"no plan fits {show_bytes(budget_of(plan))}{each}"
    found = plan.infeasibility  # type: ignore[attr-defined]
    return said if found is None else f"{said}: {because(found)}"


PRICES = ["with", "the bound falls by", "the plan gains"]


def price_words(price: Price, unit: str) -> list[str]:
    """Words on one price: of what there is more, by how much the bound falls, and what the plan gains."""
    falls = "unknown" if price.bound_falls is None else _worth(price.bound_falls, unit)
    return [price.more, falls, _worth(price.plan_gains, unit)]


def _worth(gain: float, unit: str) -> str:
    shown = show_cost(gain, unit)
    return "nothing" if shown == show_cost(0.0, unit) else shown


def fits(plan: Plan, peak_bytes: int) -> str:
    """Bytes, and the budget that they fit into."""
    return f"{show_bytes(peak_bytes)} of {show_bytes(budget_of(plan))}"


def peak_row(plan: Plan, nowhere: str, name: str = "peak", link: str = "at", each: str = "") -> Rows:
    """The row of the peak that the checker found, if it is known; ``nowhere`` where its place is not."""
    if "peak_bytes" not in plan.check:
        return []
    peak_bytes, budget_bytes = plan.check["peak_bytes"], budget_of(plan)
    share = f" ({show_share(peak_bytes / budget_bytes)} of the budget)" if budget_bytes else ""
    return [(name, f"{show_bytes(peak_bytes)}{each}{share} {link} {plan.check.get('peak_at', nowhere)}")]


def moved(stored_bytes: int, loaded_bytes: int) -> str:
    """Bytes that a step sends away and brings back."""
    return f"{show_bytes(stored_bytes)} stored, {show_bytes(loaded_bytes)} loaded"


def moves_verdict(plan: Plan, check: Any) -> str:
    """The checker's findings, of a plan that moves bytes, in one line: the peak and, if it holds, step and moves."""
    said = f"peak {fits(plan, check.peak_bytes)} at {check.peak_at}"
    if check.timeline is None:
        return said
    return f"{said}, step {show_cost(check.objective, plan.unit)}, {moved(check.stored_bytes, check.loaded_bytes)}"


def check_row(plan: Plan) -> tuple[str, str]:
    """The row that says whether the plan passed the checker."""
    return ("check", "passed" if plan.check.get("ok") else "FAILED")


def over(plan: Plan, spare_us: float) -> str:
    """Share by which a step is longer than one with memory to spare, or shorter: ``2.50 % over``, ``1.51 % below``."""
    assert plan.objective is not None
    share = plan.objective / spare_us - 1 if spare_us else 0.0
    return f"{show_share(abs(share))} {'over' if share >= 0 else 'below'}"


def step_row(plan: Plan, spare_us: float) -> tuple[str, str]:
    """The row of a step compared with one that has memory to spare."""
    assert plan.objective is not None
    step = f"{show_cost(plan.objective, plan.unit)}, {over(plan, spare_us)} the step with memory to spare"
    return ("step", f"{step} ({show_cost(spare_us, plan.unit)})")


def plan_facts(view: Any, objective: tuple[str, str], more: Facts, peak: tuple[str, str] = ("peak", "at")) -> Facts:
    """The figures of a plan under a budget that a page shows at a glance. ``objective``: its name, and a note;
    ``peak``: its name, and the word before its place."""
    plan, check = view.plan, view.check
    bound = "no bound was computed" if plan.bound is None else f"no plan is below {show_cost(plan.bound, plan.unit)}"
    share = show_share(check.peak_bytes / budget_of(plan)) if budget_of(plan) else "all"
    return [
        (objective[0], show_cost(plan.objective, plan.unit), objective[1]),
        ("proved gap", show_share(plan.gap), bound),
        (peak[0], show_bytes(check.peak_bytes), f"{share} of the budget, {peak[1]} {check.peak_at}"),
        *more,
        checker_fact(plan),
    ]


def off(measured: float, planned: float) -> str:
    """Say how far a measured figure is from the planned one."""
    share = measured / planned - 1 if planned else 0.0
    shown = show_share(abs(share))
    return "as planned" if shown == show_share(0.0) else f"{shown} {'above' if share > 0 else 'below'} what was planned"


def measured_words(found: StepMeasurement, peak_bytes: int, step_us: float) -> str:
    """Say what was measured, and how far that is from what was planned."""
    peak = f"{show_bytes(found.peak_bytes)} at the peak, {off(found.peak_bytes, peak_bytes)}"
    return f"measured {peak}; {show_cost(found.step_us, 'us')} a step, {off(found.step_us, step_us)}"


def measured_facts(found: StepMeasurement | None, peak_bytes: int, step_us: float) -> Facts:
    """The measured figures beside the planned ones, for a page; none where nothing was measured."""
    if found is None:
        return []
    took = f"{off(found.step_us, step_us)}, on {found.device}"
    return [
        ("measured peak", show_bytes(found.peak_bytes), off(found.peak_bytes, peak_bytes)),
        ("measured step", show_cost(found.step_us, "us"), took),
    ]


def checker_fact(plan: Plan) -> tuple[str, str, str]:
    """The checker's verdict and the method of a feasible plan, as a page shows them."""
    return ("checker", "passed", f"{plan.method}, stopped by {plan.stopped_by}")


def budget_of(plan: Plan) -> int:
    """The budget in bytes of a plan whose kind has one."""
    found: int = plan.budget_bytes  # type: ignore[attr-defined]
    return found


def expect_held(plan: Plan, verdict: Verdict) -> None:
    """Refuse a plan that does not pass the checker. Raises InputError naming the first violation."""
    if not verdict.ok:
        raise InputError("plan", plan.name, verdict.violations[0], "Plan the problem again: this plan does not hold.")


def counted(count: int, what: str) -> str:
    """Format a count and its noun: ``1 host``, ``2 hosts``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def proof(plan: Plan) -> str:
    """The bound and the gap of a plan in words."""
    if plan.bound is None:
        return "none: no bound was computed"
    return f"at least {show_cost(plan.bound, plan.unit)}: gap {show_share(plan.gap)}"


def how(plan: Plan) -> Rows:
    """The method, what stopped it, the solver, and how long each part took."""
    name = plan.solver.get("name")
    solver = f", {name} {plan.solver.get('version', '')}".rstrip() if name else ""
    return [
        ("method", f"{plan.method}, stopped by {plan.stopped_by}{solver}"),
        ("seconds", ", ".join(f"{name} {value:.2f}" for name, value in plan.seconds.items())),
    ]


def lifetime(us: float) -> str:
    """Say in days or years how long something lasts that many microseconds."""
    days = us / _DAY_US
    return f"{days / 365.25:.1f} years" if days > 365.25 else f"{days:.1f} days"
