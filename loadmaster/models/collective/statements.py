"""Statements of collective plans apart from their sends: times, what is proved of each size, why no plan exists."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.collective.bounds import Bound
from loadmaster.models.collective.collectives import forms_of, instance_of, named_chunk_counts
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Unreachable
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.proof import NOTHING_YET, ROUTING, prove
from loadmaster.models.collective.reach import unreachable
from loadmaster.models.collective.verdict import CollectiveCheck, PlanCheck
from loadmaster.models.statements import Recomputed, Statements, status

# Up to so many ways of a chunk over a link, what is proved without a solver takes a second to prove again.
MOST_WAYS = 20_000
# What the planner tries, where the problem names no numbers of chunks.
_MOST_CHUNK_COUNT = 65


def _recompute(problem: CollectiveProblem, plan: CollectivePlan, verdict: PlanCheck | None) -> Recomputed:
    if verdict is None:
        missing = _unreachable(problem, plan.infeasibility)
        said = "feasible" if missing is None else "infeasible"
        return Recomputed({"method": "none", "algorithms": (), "status": said, "infeasibility": missing})
    pairs = list(zip(plan.algorithms, verdict.algorithms, strict=True))
    fields = {
        "algorithms": tuple(_algorithm(problem, algorithm, check) for algorithm, check in pairs),
        "bound": sum(algorithm.bound_ns for algorithm in plan.algorithms) / 1e3,
        "status": status(plan, max(algorithm.gap for algorithm in plan.algorithms)),
        "method": "+".join(sorted({algorithm.method for algorithm in plan.algorithms})),
    }
    wrong = [text for n, (algorithm, check) in enumerate(pairs) for text in _wrong(n, algorithm, check)]
    return Recomputed(fields, wrong=tuple(wrong))


def _algorithm(problem: CollectiveProblem, algorithm: Algorithm, check: CollectiveCheck) -> dict[str, Any]:
    """Recompute what follows for one algorithm: its time, and its bounds where they are soon proved again. It leaves
    out what a solver proved of a form, and the least of the forms once that is better."""
    found: dict[str, Any] = {"time_ns": check.time_ns}
    if algorithm.bound_by == NOTHING_YET:
        return {**found, "bound_ns": 0, "throughput_bound_ns": 0, "bound_by": NOTHING_YET}
    if not _is_soon_proved(problem, algorithm.size_bytes):
        return found
    proof = _proof(problem, algorithm.size_bytes)
    found["throughput_bound_ns"] = min(algorithm.throughput_bound_ns, proof.throughput_ns)
    if algorithm.bound_ns < proof.bound.ns:  # there was no time for more
        return {**found, "bound_ns": algorithm.bound_ns}
    stated = Bound(algorithm.bound_ns, algorithm.bound_by)
    if algorithm.bound_by == ROUTING or stated in [
        form.bound for form in proof.forms if form.bound.ns > proof.bound.ns
    ]:
        return found
    return {**found, "bound_ns": proof.bound.ns, "bound_by": proof.bound.by}


def _is_soon_proved(problem: CollectiveProblem, size_bytes: int) -> bool:
    chunk_counts = named_chunk_counts(problem) or (1,)
    if len(problem.topology.links) * problem.topology.rank_count > MOST_WAYS:  # instances are large themselves
        return False
    instances = [instance_of(problem, size_bytes, chunk_counts[0], form) for form in forms_of(problem)]
    return max(sum(map(len, instance.usable_links)) for instance in instances) * len(chunk_counts) <= MOST_WAYS


# Plans of one problem are checked one after another.
_proof = lru_cache(maxsize=32)(prove)


def _wrong(n: int, algorithm: Algorithm, check: CollectiveCheck) -> list[str]:
    wrong = []
    if algorithm.sends != check.sends:
        wrong.append(f"algorithms[{n}].sends: they are not by start, then source, then target")
    if algorithm.throughput_bound_ns > algorithm.bound_ns:
        said = f"the plan says {algorithm.bound_ns}, below its throughput_bound_ns of {algorithm.throughput_bound_ns}"
        wrong.append(f"algorithms[{n}].bound_ns: {said}")
    return wrong


def _unreachable(problem: CollectiveProblem, stated: Unreachable | None) -> Unreachable | None:
    """The cut of the first number of chunks that has the one that is stated; where none has, of the first of all."""
    form, first = forms_of(problem)[0], None
    for chunk_count in named_chunk_counts(problem) or range(1, _MOST_CHUNK_COUNT):
        try:
            found = unreachable(instance_of(problem, problem.sizes_bytes[0], chunk_count, form))
        except InputError:
            continue
        if found is None or found == stated:
            return found
        first = first or found
    return first


STATEMENTS = Statements(
    decisions=frozenset(
        f"algorithms[].{name}" for name in ("size_bytes", "chunk_count", "form", "sends", "from_bytes")
    ),
    trusted=frozenset(
        f"algorithms[].{name}" for name in ("bound_ns", "bound_by", "throughput_bound_ns", "method", "seconds")
    ),
    recompute=_recompute,
)
