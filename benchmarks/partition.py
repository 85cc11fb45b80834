"""Partition planned for known models: exact plans compared with Tofu's recursion and earlier methods, and with budgets.

Usage: python -m benchmarks.partition

Times are those of ``loadmaster.plan`` on a problem at hand, on one thread, processor seconds of all its processes.
``tofu`` is the space of [Wang20]: every GPU stores an equal share of every tensor, on 2 x 2 x 2 GPUs, bytes that all
receive are minimized. Its GPUs are the thesis's: K80, 21 GB/s between two of them. ``llama`` minimizes the time of a
step of Llama-3-8B on 8 x 8 H100 (350 GB/s within a host, 45 GB/s between hosts), batch 16 of 8,192 tokens; ``by hand``
the same with batch 64: what people do, and a plan that may take as much memory; ``modules`` what modules can run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import loadmaster
from benchmarks import record
from loadmaster.models.hardware import Hardware, hardware
from loadmaster.models.kinds import kind_named
from loadmaster.models.partition.meshes import mesh
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.tables.names import model, names

GIB = 1 << 30
PLENTY = 1 << 50
K80 = Hardware("k80", "Tesla K80", 12 * GIB, 240.0, {"float32": 4.1}, 10.0, 10.0, launch_us=10.0)
# The thesis: seconds of its search on eight GPUs, where it gives them.
PUBLISHED_S = {"wresnet-152-10": 8.3, "rnn-10-8k": 66.6}
COMPARED = {"wresnet-152-10": 8, "rnn-4-8k": 512, "rnn-10-8k": 128}
BY_HAND = ("data-parallel", "fsdp", "megatron")
BUDGETS_GIB = (None, 80, 30, 15)


def tofu(name: str, batch: int | None = None) -> PartitionProblem:
    """Build a model's problem in the thesis's space."""
    made = model(name, mesh("2x2x2", gbps="21", latency_us="0"), K80, batch=batch)
    return replace(made, objective="bytes", replicas=False)


def planned(problem: PartitionProblem, budget_bytes: int, **options: Any) -> dict[str, Any]:
    """Plan one problem; return its figures."""
    plan = loadmaster.plan(problem, budget_bytes=budget_bytes, progress=False, **options)
    row: dict[str, Any] = {
        "model": problem.name,
        "operators": len(problem.operators),
        "method": plan.method,
        "status": plan.status,
        "objective": plan.objective,
        "unit": plan.unit,
        "gap": plan.gap,
        "seconds": round(sum(plan.seconds.values()), 3),
        "cpu_seconds": plan.solver["cpu_seconds"],
    }
    names_of = ("moved_bytes", "transfer_us", "compute_us", "peak_bytes")
    row |= {name: plan.check[name] for name in names_of if name in plan.check}
    print(row, flush=True)
    return row


def main() -> None:
    """Plan the problems of all tables."""
    methods = [method for method in kind_named("partition").methods if method != "module"]
    rows = []
    for name, batch in COMPARED.items():
        problem = tofu(name, batch)
        for method in methods:
            row = planned(problem, PLENTY, method=method, gap=0.0)
            rows.append({"table": "methods", "batch": batch, "published_s": PUBLISHED_S.get(name)} | row)
    for name in names():
        if name.startswith(("wresnet", "rnn")):
            rows.append({"table": "grid"} | planned(tofu(name), PLENTY, gap=0.0))
    llama = model("llama3-8b", mesh("8x8", gbps="45,350", latency_us="20"), hardware("h100"), batch=16)
    for gib in BUDGETS_GIB:
        budget_bytes = PLENTY if gib is None else gib * GIB
        for table, method in (("llama", "auto"), ("modules", "module")):
            row = planned(llama, budget_bytes, method=method, gap=0.005)
            rows.append({"table": table, "budget_gib": gib} | row)
    one_each = model("llama3-8b", mesh("8x8", gbps="45,350", latency_us="20"), hardware("h100"), batch=64)
    for method in BY_HAND:
        row = planned(one_each, PLENTY, method=method)
        rows.append({"table": "by hand"} | row)
        rows.append({"table": "by hand", "instead_of": method} | planned(one_each, row["peak_bytes"], gap=0.005))
    print(record.write("partition", {"rows": rows}))


if __name__ == "__main__":
    main()
