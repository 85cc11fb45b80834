"""Figures that rows add up to. Comparisons are between rows of one run where possible."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu.budgets import ABLATION_BUDGET, ABLATIONS, LOW_KNOBS, OFFLOADING, SWEEP, Row
from benchmarks.gpu.cases import PUBLISHED_SHARES

GIB = 1 << 30
OVERHEAD = 1.10
# A larger budget may look slower by this much and by the spread of both.
NOISE = 0.01
NOTES = {
    "step": "forward and backward pass, gradients dropped before it, no optimizer; peaks are the CUDA allocator's",
    "spread": "quartiles of 15 steps queued one after another, measured while no other row runs",
    "gradient norm": "of the first step; models with dropout draw other masks under Inductor and under a plan",
    "figure 1": "asked: at each budget a shorter step than the fastest of PyTorch's rows that stay within it",
    "figure 2": "asked: every measured peak within its budget, and no rise of the step time beyond noise (1 %); errors "
    "are medians of planned against measured, of the plans that were chosen and of those tried first",
    "figure 3": "asked: at a step 10 % longer than torch.compile's, at most the published share of eager's peak",
    "figure 4": "overhead is over torch.compile's step; the budget is 0.53 of eager's peak; besides PyTorch's own "
    "operators: none, backward from outputs, from 1-bit masks and 8-bit offsets, from inputs (fused ones compute "
    "results again inside themselves), all of these, all and offload; no convolution algorithms: PyTorch offers none",
    "figure 5": "asked: at most 1 % longer than torch.compile's step; GPT-2-medium captured and planned in 60 s",
}


def all_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Build all tables, those without rows left out."""
    tables = {
        "figure_1_against_pytorch": against_pytorch(rows),
        "figure_2_sweep": sweep(rows),
        "figure_2_points": sweep_points(rows),
        "figure_3_memory_at_10_percent_overhead": memory_at_overhead(rows),
        "figure_4_ablation": ablation(rows),
        "figure_5_large_budget": large_budget(rows),
        "steps": [shown(row) for row in rows if row["method"] != "capture"],
    }
    return {name: table for name, table in tables.items() if table}


def as_text(tables: dict[str, Any]) -> str:
    """Format tables for the terminal; the single rows have been printed already."""
    lines = []
    for name, table in tables.items():
        if name not in ("steps", "figure_2_points"):
            lines += [name.replace("_", " "), *("  " + ", ".join(f"{k} {v}" for k, v in row.items()) for row in table)]
    return "\n".join(lines)


def named(row: Row) -> str:
    """Name a row's method in words."""
    words = {"compile": "torch.compile", "eager checkpoint": "eager, checkpoint on blocks"}
    if row["method"] == "compile" and row["knob"] != 1.0:
        return f"activation_memory_budget {row['knob']}"
    if row["method"] == "loadmaster":
        return " ".join(["loadmaster", row["budget"], row.get("implementations", "")]).strip()
    return words.get(row["method"], row["method"].replace("compile", "torch.compile,"))


def shown(row: Row) -> dict[str, Any]:
    """Format one row, rounded, in units a person reads."""
    found = {"case": row["case"], "method": named(row), "step_ms": None, "spread_ms": None, "peak_gib": None}
    if "step_us" in row:
        low, high = row["quartiles_us"]
        found |= {"step_ms": milliseconds(row["step_us"]), "spread_ms": f"{milliseconds(low)}..{milliseconds(high)}"}
        found |= {"peak_gib": gib(row["peak_bytes"])}
    found["budget_gib"] = gib(row.get("budget_bytes"))
    found["planned_peak_gib"] = gib(row.get("planned_peak_bytes"))
    found["planned_step_ms"] = milliseconds(row.get("planned_step_us"))
    found["gap_percent"] = None if row.get("gap") is None else round(100 * row["gap"], 2)
    found["gradient_norm"] = row.get("gradient_norm")
    found["reserved_gib"] = gib(row.get("reserved_bytes"))
    found["run"] = row.get("run")
    found["note"] = row.get("error") or row.get("refused")
    return found


def against_pytorch(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Compare each budget with the fastest step that PyTorch reaches within it."""
    table = []
    for row in _measured(rows, method="loadmaster", group="compared"):
        if row["budget"] == "above":
            continue
        theirs = _peers(rows, row)
        within = [p for p in theirs if p["peak_bytes"] <= row["budget_bytes"]]
        best = min(within, key=lambda p: p["step_us"], default=None)
        known = all(any(p.get("knob") == knob for p in theirs) for knob in LOW_KNOBS)
        unconstrained = _plain(rows, row)
        table.append(
            {
                "case": row["case"],
                "budget": row["budget"],
                "may_offload": row.get("implementations") == OFFLOADING,
                "budget_gib": gib(row["budget_bytes"]),
                "peak_gib": gib(row["peak_bytes"]),
                "budget_kept": row["peak_bytes"] <= row["budget_bytes"],
                "step_ms": milliseconds(row["step_us"]),
                "best_of_pytorch_within_it": ("none" if known else "not measured") if best is None else named(best),
                "its_peak_gib": None if best is None else gib(best["peak_bytes"]),
                "its_step_ms": None if best is None else milliseconds(best["step_us"]),
                "ours_to_theirs": None if best is None else _ratio(row, best),
                "ours_to_unconstrained": None if unconstrained is None else _ratio(row, unconstrained),
                "won": (True if known else None) if best is None else row["step_us"] < best["step_us"],
            }
        )
    return table + [_refused(r) for r in rows if r.get("refused") and r.get("group") == "compared"]


def sweep_points(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table of planned and measured figures, budget by budget."""
    table = []
    for row in _sweep(rows):
        found = {"case": row["case"], "budget": row["budget"], "budget_gib": gib(row["budget_bytes"])}
        if "step_us" in row:
            found |= {
                "peak_gib": gib(row["peak_bytes"]),
                "planned_peak_gib": gib(row["planned_peak_bytes"]),
                "kept": row["peak_bytes"] <= row["budget_bytes"],
                "step_ms": milliseconds(row["step_us"]),
                "planned_step_ms": milliseconds(row["planned_step_us"]),
                "time_error_percent": round(100 * (row["planned_step_us"] / row["step_us"] - 1), 1),
                "peak_error_percent": round(100 * (row["planned_peak_bytes"] / row["peak_bytes"] - 1), 2),
            }
        table.append({**found, "refused": row.get("refused")})
    return table


def sweep(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table of sweeps: whether budgets are kept and time falls as they grow, and errors of the cost model."""
    table = []
    for case in _cases(_sweep(rows)):
        points = [r for r in _sweep(rows) if r["case"] == case and "step_us" in r]
        if not points:
            continue
        rises = [_rise(rows, points, n) for n in range(1, len(points))]
        kept = all(r["peak_bytes"] <= r["budget_bytes"] for r in points) and max([0.0, *rises]) == 0
        table.append(
            {
                "case": case,
                "budgets": SWEEP,
                "measured": len(points),
                "kept": sum(r["peak_bytes"] <= r["budget_bytes"] for r in points),
                "refused": sum("refused" in r for r in _sweep(rows) if r["case"] == case),
                "largest_rise_beyond_noise_percent": round(100 * max([0.0, *rises]), 2),
                "median_time_error_percent": _median(abs(r["planned_step_us"] / r["step_us"] - 1) for r in points),
                "median_peak_error_percent": _median(
                    abs(r["planned_peak_bytes"] / r["peak_bytes"] - 1) for r in points
                ),
                "first_try_time_error_percent": _median(abs(r["first_time_error"]) for r in points),
                "first_try_peak_error_percent": _median(abs(r["first_peak_error"]) for r in points),
                "won": None if kept and len(points) < SWEEP else kept,
            }
        )
    return table


def _rise(rows: Sequence[Row], points: Sequence[Row], n: int) -> float:
    """Share by which point n is slower than the fastest with a smaller budget, beyond the spread of both."""
    fastest = min(points[:n], key=lambda r: _slowdown(rows, r, r["step_us"]))
    spread = sum(_slowdown(rows, r, r["quartiles_us"][1] - r["quartiles_us"][0]) for r in (fastest, points[n])) / 2
    now = _slowdown(rows, points[n], points[n]["step_us"])
    return (now - spread) / _slowdown(rows, fastest, fastest["step_us"]) - 1 - NOISE


def _slowdown(rows: Sequence[Row], row: Row, time_us: float) -> float:
    """Divide a time by the plain step of the row's own run: GPUs and hosts differ by a few percent."""
    plain = _plain(rows, row)
    return time_us if plain is None else time_us / float(plain["step_us"])


def memory_at_overhead(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Find the least memory at which the step takes 10 % longer than torch.compile's, between measured points."""
    table = []
    for case, published in PUBLISHED_SHARES.items():
        points = sorted(
            (r["peak_bytes"], _slowdown(rows, r, r["step_us"]))
            for r in _measured(rows, method="loadmaster", case=case)
            if "implementations" not in r
        )
        unconstrained = next(iter(reversed(_measured(rows, method="compile", knob=1.0, case=case))), None)
        eager = next(iter(reversed(_measured(rows, method="eager", case=case))), None)
        if not points or unconstrained is None or eager is None:
            continue
        found = _crossing(points, OVERHEAD)
        table.append(
            {
                "case": case,
                "unconstrained_step_ms": milliseconds(unconstrained["step_us"]),
                "eager_peak_gib": gib(eager["peak_bytes"]),
                "compiled_peak_gib": gib(unconstrained["peak_bytes"]),
                "peak_at_10_percent_gib": gib(found),
                "share_of_eager": None if found is None else round(found / eager["peak_bytes"], 3),
                "published_share": published,
                "won": found is not None and found / eager["peak_bytes"] <= published,
            }
        )
    return table


def _crossing(points: Sequence[tuple[int, float]], limit: float) -> int | None:
    """Interpolate the least bytes within a time between points by ascending bytes; None if no point is within it."""
    before: tuple[int, float] | None = None
    for peak, time in points:
        if time <= limit:
            if before is None:
                return peak
            share = (before[1] - limit) / (before[1] - time)
            return int(before[0] + share * (peak - before[0]))
        before = (peak, time)
    return None


def ablation(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table of what each sort of implementation is worth at one budget; the overhead is over torch.compile's step."""
    table = []
    found = [r for r in rows if r.get("budget") == ABLATION_BUDGET]
    for case in _cases(found):
        for implementations in ABLATIONS:
            row = next(
                (r for r in reversed(found) if (r["case"], r["implementations"]) == (case, implementations)), None
            )
            if row is None:
                continue
            plain = _plain(rows, row)
            overhead = None
            if plain is not None and "step_us" in row:
                overhead = round(100 * (row["step_us"] / plain["step_us"] - 1), 2)
            table.append(
                {
                    "case": case,
                    "implementations": implementations,
                    "budget_gib": gib(row.get("budget_bytes")),
                    "peak_gib": gib(row.get("peak_bytes")),
                    "step_ms": milliseconds(row.get("step_us")),
                    "overhead_percent": overhead,
                    "planned_step_ms": milliseconds(row.get("planned_step_us")),
                    "note": row.get("error") or row.get("refused"),
                }
            )
    return table


def large_budget(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Table of plans under budgets that bind nothing: their steps, and the time that a user waits."""
    table = []
    for row in _measured(rows, method="loadmaster", budget="above"):
        plain = _plain(rows, row)
        captured = next((r for r in rows if r["case"] == row["case"] and r["method"] == "capture"), {})
        tight = [r for r in _measured(rows, method="loadmaster", case=row["case"]) if r.get("plan_s")]
        longest = max((r["plan_s"] for r in tight), default=None)
        ratio = None if plain is None else _ratio(row, plain)
        table.append(
            {
                "case": row["case"],
                "step_ms": milliseconds(row["step_us"]),
                "torch_compile_ms": None if plain is None else milliseconds(plain["step_us"]),
                "ratio": ratio,
                "peak_gib": gib(row["peak_bytes"]),
                "torch_compile_peak_gib": None if plain is None else gib(plain["peak_bytes"]),
                "capture_s": _round(captured.get("capture_s"), 1),
                "longest_plan_s": _round(longest, 1),
                "won": ratio is not None and ratio <= 1.01,
            }
        )
    return table


def _measured(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [r for r in rows if "step_us" in r and all(r.get(k) == v for k, v in wanted.items())]


def _peers(rows: Sequence[Row], row: Row) -> list[Row]:
    """Find PyTorch's rows of the case: those of the same run if it has any, else of the nearest."""
    theirs = [r for r in _measured(rows, case=row["case"]) if r["method"] != "loadmaster"]
    nearest: dict[str, Row] = {}
    for r in sorted(theirs, key=lambda r: -abs(r.get("run", 0) - row.get("run", 0))):
        nearest[named(r)] = r
    return list(nearest.values())


def _plain(rows: Sequence[Row], row: Row) -> Row | None:
    return next((r for r in _peers(rows, row) if r["method"] == "compile" and r["knob"] == 1.0), None)


def _sweep(rows: Sequence[Row]) -> list[Row]:
    found = [r for r in rows if r["method"] == "loadmaster" and r["budget"].startswith("sweep") and "error" not in r]
    return sorted(found, key=lambda r: (r["case"], r["budget_bytes"]))


def _refused(row: Row) -> dict[str, Any]:
    names = ("case", "budget")
    return {**{n: row[n] for n in names}, "budget_gib": gib(row.get("budget_bytes")), "refused": row["refused"]}


def _cases(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["case"] for row in rows))


def _ratio(ours: Row, theirs: Row) -> float:
    return round(ours["step_us"] / theirs["step_us"], 4)


def _median(values: Iterable[float]) -> float:
    return round(100 * statistics.median(values), 2)


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def milliseconds(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us / 1e3, 2)


def gib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else round(size_bytes / GIB, 3)
