"""A collective plan in a few lines of text: its algorithms by size, with times and proofs, and what is busiest."""

from __future__ import annotations

from loadmaster.api.columns import table
from loadmaster.api.report.collective.view import CollectiveView, algorithm_gbps, bus_gbps
from loadmaster.api.report.words import check_row
from loadmaster.models.collective.checker import PlanCheck
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.units import show_bytes, show_cost, show_share


def summary(plan: CollectivePlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    lines = [f"{plan.name}: {plan.standing}"]
    if plan.status == "infeasible":
        return "\n".join([*lines, f"  {infeasible(plan)}"])
    header = ["size", "from", "time", "bound", "gap", "by", "chunks", "form", "sends", "method"]
    lines += [f"  {line}" for line in table([_row(a) for a in plan.algorithms], header).splitlines()]
    rows = [
        check_row(plan),
        ("stopped by", plan.stopped_by),
        ("seconds", ", ".join(f"{name} {value:.2f}" for name, value in plan.seconds.items())),
    ]
    return "\n".join([*lines, *(f"  {name:<10}  {text}" for name, text in rows)])


def _row(algorithm: Algorithm) -> list[str]:
    return [
        show_bytes(algorithm.size_bytes),
        show_bytes(algorithm.from_bytes),
        show_ns(algorithm.time_ns),
        show_ns(algorithm.bound_ns),
        show_share(algorithm.gap),
        algorithm.bound_by,
        str(algorithm.chunk_count),
        algorithm.form,
        str(len(algorithm.sends)),
        algorithm.method,
    ]


def infeasible(plan: CollectivePlan) -> str:
    """Explain why there is no plan: the chunk, the rank and the cut between them."""
    found = plan.infeasibility
    return "no schedule exists" if found is None else found.why


def verdict(plan: CollectivePlan, check: PlanCheck) -> str:
    """The checker's findings in one line: algorithms, sends and the sum of their times."""
    sends = sum(len(algorithm.journeys) for algorithm in check.algorithms)
    return f"{len(check.algorithms)} algorithms, {sends} sends, {show_cost(check.objective, 'us')} together"


def details(view: CollectiveView) -> str:
    """A table of how busy each algorithm keeps its links, and of its bandwidth."""
    rows = []
    for algorithm, check in zip(view.plan.algorithms, view.check.algorithms, strict=True):
        held_ns = {
            resource: sum(j.busy_until_ns - j.send.start_ns for j in journeys)
            for resource, journeys in check.by_resource.items()
        }
        busiest = max(held_ns, key=held_ns.__getitem__, default=None)
        rows.append(
            [
                show_bytes(algorithm.size_bytes),
                f"{len(check.by_link)} of {len(check.topology.links)}",
                "" if busiest is None else check.topology.resources[busiest],
                "" if busiest is None or not check.time_ns else show_share(held_ns[busiest] / check.time_ns),
                show_gbps(algorithm_gbps(algorithm)),
                show_gbps(bus_gbps(view.problem, algorithm)),
                show_ns(algorithm.throughput_bound_ns),
            ]
        )
    header = ["size", "links used", "busiest resource", "held", "GB/s", "bus GB/s", "bound, any chunks"]
    return "\n" + table(rows, header)


def show_gbps(gbps: float | None) -> str:
    """A bandwidth in GB/s, or nothing where there is none."""
    return "" if gbps is None else f"{gbps:.3g}" if gbps < 10 else f"{gbps:.1f}"


def show_ns(time_ns: int) -> str:
    """Format a time in the unit that fits."""
    return show_cost(time_ns / 1e3, "us")
