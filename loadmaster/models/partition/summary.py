"""Summary of a step before it is split: what one GPU would need, by role, and the mesh."""

from __future__ import annotations

from collections import defaultdict

from loadmaster.models.partition.limits import least_bytes, whole_bytes
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes, show_cost


def summary(problem: PartitionProblem) -> Summary:
    """Summarize a step before anything is planned."""
    whole, least = whole_bytes(problem), least_bytes(problem)
    compute_us = sum(operator.time_us for operator in problem.operators)
    by_role: dict[str, int] = defaultdict(int)
    for tensor in problem.tensors:
        by_role[tensor.role] += tensor.size_bytes
    rows = [
        ("whole", f"{show_bytes(whole)} ({whole} bytes) on one GPU, {show_cost(compute_us, 'us')} of compute"),
        ("least", f"{show_at_least(least)} ({least} bytes) on each GPU: no plan needs less"),
    ]
    for n, (role, size) in enumerate(sorted(by_role.items(), key=lambda item: -item[1])):
        rows.append(("" if n else "tensors", f"{show_bytes(size):>9}  {role}"))
    for n, axis in enumerate(problem.axes):
        words = f"{axis.name}: {axis.size} GPUs, {axis.gbps:g} GB/s each"
        words += f", {axis.latency_us:g} us" if axis.latency_us else ""
        for what, numbers in (
            ("speeds", axis.speeds),
            ("shares", () if axis.is_even else axis.shares),
            ("memory", axis.memory_factors),
        ):
            words += f", {what} {':'.join(f'{number:g}' for number in numbers)}" if numbers else ""
        rows.append(("" if n else "mesh", words))
    figures = {
        "whole_bytes": whole,
        "least_budget_bytes": least,
        "compute_us": compute_us,
        "bytes_by_role": dict(by_role),
    }
    return Summary(problem.name, tuple(rows), figures)
