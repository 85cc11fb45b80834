"""Rows wanted for the figures, and their budgets in bytes once the rows that they refer to have been measured.

A row is a dictionary; ``case``, ``method`` and what belongs to the method identify it, whatever was measured, so that a
run can be continued elsewhere. Budgets are words:

- ``8.3 GiB``: itself;
- ``knob 0.1``: the peak of torch.compile under that activation_memory_budget;
- ``best knob``: the lowest peak that torch.compile reached under any of them;
- ``below knobs``: half-way from there down to the least budget that could have a plan;
- ``share 0.53``: of the eager peak;
- ``above``: more than plain torch.compile takes;
- ``sweep 3/20``: the fourth of twenty, from a little above the least budget to what plain torch.compile takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.cases import ABLATED, CASES, COMPARED, PUBLISHED_SHARES, ROOMY

GIB = 1 << 30
KNOBS = (1.0, 0.7, 0.5, 0.3, 0.1)
LOW_KNOBS = (0.5, 0.3, 0.1)
SWEEP = 20
RELATIVE = ("best knob", "below knobs")
# Added to the published share of memory, to find the one that costs 10 %.
AROUND = (0.0, 0.02, 0.04, -0.04)
# The least budget is a bound; this much above it is where plans begin to exist.
ABOVE_LEAST = 1.05
ABOVE_PLAIN = 1.1
# Ratio of memory in the published ablation.
ABLATION_BUDGET = "share 0.53"
OFFLOADING = "all and offload"
ABLATIONS = ("none", "output", "intermediate", "input", "all", OFFLOADING)
IDENTITY = ("case", "method", "knob", "budget", "implementations")

Row = dict[str, Any]


def identity(row: Row) -> tuple[Any, ...]:
    """Key that is equal for rows that measure the same."""
    return tuple(row.get(name) for name in IDENTITY)


def wanted(figures: Sequence[int], cases: Sequence[str], *, small: bool = False) -> list[Row]:
    """List the rows of figures, most important first, each once. Small models have no budgets of their own."""
    rows: dict[tuple[Any, ...], Row] = {}
    for row in _rows(figures, cases, small):
        rows.setdefault(identity(row), row)
    return list(rows.values())


def _rows(figures: Sequence[int], cases: Sequence[str], small: bool) -> Iterator[Row]:
    for case in cases:
        yield {"case": case, "method": "capture"}
        yield plain(case)
        if 1 in figures and case in COMPARED:
            yield from peers(case)
            for budget in RELATIVE if small else CASES[case].budgets:
                yield planned(case, budget)
            if (tight := CASES[case].tight) is not None:
                yield planned(case, tight)
                yield {**planned(case, tight), "implementations": OFFLOADING}
        if 3 in figures and case in PUBLISHED_SHARES:
            yield {"case": case, "method": "eager", "group": "compared"}
            for offset in AROUND:
                yield planned(case, f"share {PUBLISHED_SHARES[case] + offset:.2f}")
        if 4 in figures and case in ABLATED:
            yield {"case": case, "method": "eager", "group": "compared"}
        if 5 in figures and case in ROOMY:
            yield planned(case, "above")
    swept = [c for c in cases if 2 in figures or (3 in figures and c in PUBLISHED_SHARES)]
    # Every fourth budget first: a run that is cut short has seen the whole range.
    yield from (_swept(case, n) for n in range(0, SWEEP, 4) for case in swept)
    for case in (c for c in cases if 4 in figures and c in ABLATED):
        for implementations in ABLATIONS:
            yield {**planned(case, ABLATION_BUDGET), "implementations": implementations, "group": "ablation"}
    yield from (_swept(case, n) for n in sorted(range(SWEEP), key=lambda n: (n % 4, n)) for case in swept)


def _swept(case: str, number: int) -> Row:
    return {"case": case, "method": "loadmaster", "budget": f"sweep {number}/{SWEEP}"}


def planned(case: str, budget: str) -> Row:
    """Row of a plan that is compared with PyTorch."""
    return {"case": case, "method": "loadmaster", "budget": budget, "group": "compared"}


def plain(case: str) -> Row:
    """Row of plain torch.compile: every other row is compared with it, so each run measures it again."""
    return {"case": case, "method": "compile", "knob": 1.0, "group": "compared"}


def peers(case: str) -> Iterator[Row]:
    """Rows of what a PyTorch user would pick instead."""
    for knob in reversed(KNOBS):
        yield {"case": case, "method": "compile", "knob": knob, "group": "compared"}
    for method in ("eager", "compile checkpoint"):
        yield {"case": case, "method": method, "group": "compared"}


def budget_bytes(words: str, case: str, rows: Sequence[Row]) -> int | None:
    """Compute a budget in bytes from what has been measured; None while what it refers to has not been."""
    kind, _, value = words.partition(" ")
    if value == "GiB":
        return int(float(kind) * GIB)
    if kind == "knob":
        return _peak(rows, case=case, method="compile", knob=float(value))
    if kind == "share":
        eager = _peak(rows, case=case, method="eager")
        return None if eager is None else int(float(value) * eager)
    plain_peak = _peak(rows, case=case, method="compile", knob=1.0)
    least = next((r["least_bytes"] for r in rows if r["case"] == case and r.get("least_bytes")), None)
    if words == "above":
        return None if plain_peak is None else int(ABOVE_PLAIN * plain_peak)
    if words in ("best knob", "below knobs"):
        if least is None or not all(_settled(rows, case, knob) for knob in LOW_KNOBS):
            return None
        peaks = [_peak(rows, case=case, method="compile", knob=knob) for knob in KNOBS]
        best = min((p for p in peaks if p is not None), default=None)
        if best is None or words == "best knob":
            return best
        return int((best + min(best, ABOVE_LEAST * least)) / 2)
    if kind == "sweep":
        if plain_peak is None or least is None:
            return None
        number, count = map(int, value.split("/"))
        low = min(ABOVE_LEAST * least, plain_peak)
        return int(low + (plain_peak - low) * number / (count - 1))
    raise ValueError(f"no budget: {words}")


def _peak(rows: Sequence[Row], **wanted: Any) -> int | None:
    """Peak of the matching row that was measured last."""
    for row in reversed(rows):
        if row.get("peak_bytes") and all(row.get(name) == value for name, value in wanted.items()):
            return int(row["peak_bytes"])
    return None


def _settled(rows: Sequence[Row], case: str, knob: float) -> bool:
    """Return whether torch.compile under a knob has been measured, or has failed."""
    wanted = identity({"case": case, "method": "compile", "knob": knob})
    return any(identity(row) == wanted for row in rows)
