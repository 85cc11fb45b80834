"""Budgets between the least that may do and the most that is of use, and the summary of a captured step."""

from __future__ import annotations

from loadmaster.models.memory import peak, plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes, show_cost


def spread(problem: MemoryProblem, count: int) -> list[int]:
    """Spread ``count`` budgets evenly from a little above the provable minimum to the plain step's peak, or to the
    problem's budget where that is less."""
    low, high = 1.1 * minimum_budget(problem).budget_bytes, plain.peak_bytes(problem)
    if problem.budget_bytes is not None:
        high = min(high, problem.budget_bytes)
    low = min(low, high)
    return [round(low + (high - low) * n / (count - 1)) for n in range(count)]


def summary(problem: MemoryProblem) -> Summary:
    """The plain step by the checker, and the proved minimum."""
    schedule = plain.formulate(problem)
    verdict = check(problem, schedule, budget_bytes=0)
    parts = [] if verdict.peak is None else peak.at_moment(problem, schedule, verdict.peak)
    least = minimum_budget(problem)
    fixed = [*(f.fixed_bytes for f in problem.forward), *(b.fixed_bytes for b in problem.backward)]
    enough = show_at_least(least.budget_bytes)
    rows = [
        ("peak", f"{_size(verdict.peak_bytes)} with nothing planned, at {verdict.peak_at}"),
        ("step", f"{show_cost(verdict.objective, problem.unit)} with nothing planned"),
        ("least", f"{enough} ({least.budget_bytes} bytes): no plan needs less, at {least.where}"),
        ("resident", f"{_size(min(fixed))}: parameters, inputs and what else stays for the whole step"),
    ]
    whole = verdict.peak_bytes or 1
    for n, (name, size) in enumerate(peak.folded(parts)):
        rows.append(("" if n else "at the peak", f"{show_bytes(size):>9} {size / whole:4.0%}  {name}"))
    if problem.captured_with:
        rows.append(("captured", "with " + ", ".join(f"{name} {of}" for name, of in problem.captured_with.items())))
    figures = {
        "unconstrained_peak_bytes": verdict.peak_bytes,
        f"unconstrained_{problem.unit}": verdict.objective,
        "least_budget_bytes": least.budget_bytes,
        "resident_bytes": min(fixed),
        "peak_by_module_bytes": dict(parts),
    }
    return Summary(problem.name, tuple(rows), figures)


def _size(size_bytes: int) -> str:
    return f"{show_bytes(size_bytes)} ({size_bytes} bytes)"
