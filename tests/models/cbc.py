"""CBC, the solver of the formulations' twins: one that shares no code with HiGHS and CP-SAT."""

from __future__ import annotations

import pulp

_TOLERANCE = 1e-5


def optimum(model: pulp.LpProblem) -> float | None:
    """Solve a twin: the objective, or None if nothing satisfies it. Its point must satisfy every row."""
    # With its preprocessing, CBC 2.10.3 calls points optimal that are not, or that break rows.
    try:
        model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, options=["preprocess off"]))
    except pulp.PulpSolverError:
        # Without it, CBC 2.10.3 crashes on some programs that nothing satisfies.
        model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0))
        assert model.status == pulp.LpStatusInfeasible, "CBC crashes"
    status = pulp.LpStatus[model.status]
    assert status in ("Optimal", "Infeasible"), status
    if status == "Infeasible":
        return None
    broken = [name for name, row in model.constraints.items() if not row.valid(_TOLERANCE * _size(row))]
    assert not broken, f"CBC breaks {broken[:3]}"
    return float(pulp.value(model.objective))


def _size(row: pulp.LpConstraint) -> float:
    """The row's largest term at the point, at least 1."""
    return max([1.0, abs(row.constant), *(abs(factor * column.varValue) for column, factor in row.items())])
