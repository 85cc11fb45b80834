"""Bandwidths of a collective, counted as NCCL's benchmarks count them, so that figures compare."""

from __future__ import annotations

from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.problem import CollectiveProblem


def algorithm_gbps(algorithm: Algorithm) -> float | None:
    """Algorithm bandwidth in GB/s: the largest buffer of a rank over the time; None where nothing takes time."""
    return algorithm.size_bytes / algorithm.time_ns if algorithm.time_ns else None


def bus_gbps(problem: CollectiveProblem, algorithm: Algorithm) -> float | None:
    """Bus bandwidth in GB/s: what every rank's link carries if the work is spread evenly, whatever the number of ranks.

    None where there is no such figure (alltoallv, custom).
    """
    plain, count = algorithm_gbps(algorithm), problem.topology.rank_count
    match problem.collective:
        case "allreduce":
            factor = 2 * (count - 1) / count
        case "allgather" | "reduce_scatter" | "alltoall" | "scatter" | "gather":
            factor = (count - 1) / count
        case "broadcast" | "reduce":
            factor = 1.0
        case _:
            return None
    return None if plain is None else factor * plain
