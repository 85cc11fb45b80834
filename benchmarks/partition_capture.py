"""Capture of a PyTorch module and its plan: a Llama of 32 layers (8 B parameters) without values, on a mesh of 2 x 4.

Usage: python -m benchmarks.partition_capture

Eight sequences of 4,096 tokens, bfloat16, AdamW, times of an H200, 45 GB/s between hosts and 350 GB/s within. Seconds
are wall time on this machine: tracing, trials and ties, then planning under each budget with a gap of at most 0.5 %.
"""

from __future__ import annotations

import time

import torch

import loadmaster
from benchmarks import record
from examples.llama import llama
from loadmaster.executor import capture_partition
from loadmaster.models.partition.meshes import mesh

GIB = 1 << 30
BUDGETS_GIB = (None, 60, 45)


def main() -> None:
    """Capture once, plan under each budget."""
    with torch.device("meta"):
        model, batch, loss = llama(
            batch=8, length=4096, vocabulary=128_256, layers=32, width=4096, heads=32, groups=8, hidden=14_336
        )
        model = model.to(torch.bfloat16)
    began = time.monotonic()
    problem = capture_partition(
        model, batch, loss, axes=mesh("2x4", gbps="45,350"), optimizer=torch.optim.AdamW(model.parameters())
    )
    capture_s = round(time.monotonic() - began, 1)
    rows = []
    for gib in BUDGETS_GIB:
        began = time.monotonic()
        plan = loadmaster.plan(problem, budget_bytes=(gib or 1 << 20) * GIB, gap=0.005, time_limit_s=120)
        row = {"budget_gib": gib, "status": plan.status, "objective": plan.objective, "gap": plan.gap}
        rows.append(row | {"plan_s": round(time.monotonic() - began, 1), "peak_bytes": plan.check.get("peak_bytes")})
        print(rows[-1], flush=True)
    sizes = {"operators": len(problem.operators), "tensors": len(problem.tensors)}
    print(record.write("partition_capture", {"capture_s": capture_s, **sizes, "rows": rows}))


if __name__ == "__main__":
    main()
