"""The budget of a placement problem: what is enough, what is needed at least, and budgets in between."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes, show_cost


def peak_bytes(problem: PlacementProblem) -> int:
    """Bytes that the step takes if nothing ever leaves the device."""
    return int(Accesses(problem).live_bytes.max())


def least_bytes(problem: PlacementProblem) -> tuple[int, int]:
    """The largest that one operator needs, with all else elsewhere: no plan takes less. And that operator."""
    needed = Accesses(problem).needed_bytes
    at = int(needed.argmax())
    return int(needed[at]), at


def least_us(problem: PlacementProblem, budget_bytes: int) -> float:
    """Lower bound on the time of a step: its operators, or the links for what does not fit and is brought back."""
    away_bytes = max(0, peak_bytes(problem) - budget_bytes)
    gbps = sum(tier.from_gbps for tier in problem.tiers)
    return max(problem.compute_us, away_bytes / (gbps * 1e3) if gbps else 0.0)


def spread(problem: PlacementProblem, count: int) -> list[int]:
    """Spread ``count`` budgets evenly from the least to the peak, ascending."""
    low, high = least_bytes(problem)[0], peak_bytes(problem)
    return sorted({int(b) for b in np.linspace(low, high, count)})


def summary(problem: PlacementProblem) -> Summary:
    """Summarize a step before anything is planned."""
    peak = peak_bytes(problem)
    at = int(Accesses(problem).live_bytes.argmax())
    least, least_at = least_bytes(problem)
    by_role: dict[str, int] = defaultdict(int)
    for block in problem.blocks:
        by_role[block.role] += block.size_bytes
    rows = [
        ("peak", f"{show_bytes(peak)} ({peak} bytes) if nothing leaves, at {_name(problem, at)}"),
        ("step", f"{show_cost(problem.compute_us, problem.unit)} with memory to spare"),
        ("least", f"{show_at_least(least)} ({least} bytes): no plan needs less, at {_name(problem, least_at)}"),
    ]
    for n, (role, size) in enumerate(sorted(by_role.items(), key=lambda item: -item[1])):
        rows.append(("" if n else "blocks", f"{show_bytes(size):>9}  {role}"))
    for n, tier in enumerate(problem.tiers):
        room = "" if tier.capacity_bytes is None else f", {show_bytes(tier.capacity_bytes)}"
        rows.append(("" if n else "tiers", f"{tier.name}: {tier.to_gbps:g} GB/s there, {tier.from_gbps:g} back{room}"))
    if problem.captured_with:
        rows.append(("captured", "with " + ", ".join(f"{name} {of}" for name, of in problem.captured_with.items())))
    figures = {
        "unconstrained_peak_bytes": peak,
        "unconstrained_us": problem.compute_us,
        "least_budget_bytes": least,
        "bytes_by_role": dict(by_role),
    }
    return Summary(problem.name, tuple(rows), figures)


def _name(problem: PlacementProblem, i: int) -> str:
    return f"operator {i} ({problem.operators[i].words})"
