"""Models of real repositories: which can be captured, planned and run under a budget, and why one cannot.

    python -m benchmarks.memory_models --out DIR    on a GPU host that has torchvision, transformers and the solvers
    python -m benchmarks.memory_models --out DIR --device cpu --small     a trial

Every model is built from its configuration with random weights. The budget is a share of what the plain eager step of
the same model takes. Plain torch.compile is measured as well: where the launches of many short kernels take longer than
the kernels do, neither its step nor a plan's is shorter than eager's.

A row is a process of its own; rows are in DIR/rows.json after each, and a run goes on from them or from those in
benchmarks/results (not with --fresh).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.budgets import Row, plain
from benchmarks.gpu.figures import gib, milliseconds
from benchmarks.gpu.session import Session, parser
from benchmarks.gpu.zoo import ZOO

SHARE = 0.6
# Kernels that add in another order differ in the last digits of float32, and of bfloat16 in its third.
NORM_TOLERANCE = {False: 1e-3, True: 2e-2}


def wanted(models: Sequence[str]) -> list[Row]:
    """List four rows for each model."""
    rows: list[Row] = []
    for name in models:
        rows += [{"case": name, "method": "capture"}, {"case": name, "method": "eager"}, plain(name)]
        rows.append({"case": name, "method": "loadmaster", "budget": f"share {SHARE}"})
    return rows


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Build a table, one line for each model with any rows."""
    found = []
    for name in dict.fromkeys(row["case"] for row in rows):
        captured, eager, compiled, planned = (
            next((r for r in reversed(rows) if (r["case"], r["method"]) == (name, method)), {})
            for method in ("capture", "eager", "compile", "loadmaster")
        )
        runs = "step_us" in planned
        norms, same = compared(planned, eager, autocast=ZOO[name].autocast)
        reasons = [r.get("error") or r.get("refused") for r in (captured, eager, planned)]
        found.append(
            {
                "model": name,
                "captures": "least_bytes" in captured,
                "operators": captured.get("forward_operators", 0) + captured.get("backward_operators", 0) or None,
                "capture_s": rounded(captured.get("capture_s"), 1),
                "plans": "gap" in planned and planned.get("status") != "infeasible",
                "gap_percent": rounded(planned.get("gap"), 4, 100),
                "plan_s": rounded(planned.get("plan_s"), 1),
                "runs": runs,
                "step_ms": milliseconds(planned.get("step_us")),
                "eager_step_ms": milliseconds(eager.get("step_us")),
                "compiled_step_ms": milliseconds(compiled.get("step_us")),
                "budget_gib": gib(planned.get("budget_bytes")),
                "peak_gib": gib(planned.get("peak_bytes")),
                "eager_peak_gib": gib(eager.get("peak_bytes")),
                "kept": planned["peak_bytes"] <= planned["budget_bytes"] if runs else None,
                "gradient_norm": norms[0],
                "eager_gradient_norm": norms[1],
                "same_gradients": same,
                "reason": next((reason for reason in reasons if reason), None),
            }
        )
    return found


def compared(planned: Row, eager: Row, *, autocast: bool) -> tuple[tuple[float | None, float | None], bool | None]:
    """Compare gradient norms: both, and whether they are the same; None where tf32's own rounding leaves it open.

    Convolutions of float32 are compared without tf32 where both rows have such a step.
    """
    exact = all("exact_gradient_norm" in row for row in (planned, eager))
    key = "exact_gradient_norm" if exact else "gradient_norm"
    ours, plain = planned.get(key), eager.get(key)
    if ours is None or plain is None:
        return (ours, plain), None
    within = abs(ours - plain) <= NORM_TOLERANCE[autocast] * plain
    return (ours, plain), within if within or exact or autocast else None


def rounded(value: float | None, digits: int, factor: float = 1.0) -> float | None:
    """Round a figure as the table shows it."""
    return None if value is None else round(factor * value, digits)


def main() -> None:
    """Measure what is missing, and report."""
    p = parser(__doc__)
    p.add_argument("--models", nargs="+", default=list(ZOO), choices=list(ZOO))
    a = p.parse_args()
    session = Session("memory_models", a)
    session.measure(wanted(a.models))
    for line in table(session.rows):
        print(", ".join(f"{name} {value}" for name, value in line.items() if value is not None))
    session.write({"budget": f"{SHARE:.0%} of the eager step's peak", "models": table(session.rows)})


if __name__ == "__main__":
    main()
