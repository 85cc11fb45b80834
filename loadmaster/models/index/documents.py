"""JSON of the kind ``index``: problem and plan documents to typed data and back."""

from __future__ import annotations

from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments
from loadmaster.models.index.plan import IndexPlan
from loadmaster.models.index.problem import Cost, Figure, IndexProblem, Predicted, Shard
from loadmaster.models.index.serving import refusal, serving, words


def check_problem(problem: IndexProblem) -> None:
    """Refuse what the fields cannot say one by one: names that are there twice, numbers of no host, thread or
    candidate, quantiles out of order, a shard that no candidate can serve. The InputError names the field."""
    _expect_different([host.name for host in problem.hosts], "hosts")
    _expect_different([shard.name for shard in problem.shards], "shards")
    for s, shard in enumerate(problem.shards):
        _expect_shard(problem, shard, f"shards[{s}]")


def _expect_different(names: list[str], field: str) -> None:
    seen: set[str] = set()
    for at, name in enumerate(names):
        if name in seen:
            raise InputError(f"{field}[{at}].name", name, "is there twice", "Give every one a name of its own.")
        seen.add(name)


def _expect_shard(problem: IndexProblem, shard: Shard, field: str) -> None:
    candidates = len(problem.candidates)
    if len(shard.costs) != candidates:
        remedy = f"Give {candidates}, null for a candidate that is not to be taken."
        raise InputError(f"{field}.costs", len(shard.costs), "are not as many as candidates", remedy)
    if shard.host >= len(problem.hosts):
        remedy = f"Hosts are numbered 0 to {len(problem.hosts) - 1}."
        raise InputError(f"{field}.host", shard.host, "is no host", remedy)
    threads = problem.hosts[shard.host].threads
    if shard.thread is not None and shard.thread >= threads:
        remedy = f"Threads of {problem.hosts[shard.host].name} are numbered 0 to {threads - 1}."
        raise InputError(f"{field}.thread", shard.thread, "is no thread", remedy)
    if shard.current is not None and shard.current >= candidates:
        remedy = f"Candidates are numbered 0 to {candidates - 1}."
        raise InputError(f"{field}.current", shard.current, "is no candidate", remedy)
    for c, cost in enumerate(shard.costs):
        if cost is not None:
            _expect_cost(cost, f"{field}.costs[{c}]")
    if not serving(problem, shard):
        said = f"{words(problem.candidates[0])} {refusal(problem, shard, 0)}"
        remedy = "Give a candidate that can serve it, or allow longer pauses."
        raise InputError(f"{field}.costs", shard.name, f"can be served by no candidate: {said}", remedy)


def _expect_cost(cost: Cost, field: str) -> None:
    _expect_figures(cost, field)
    if cost.predicted is not None:
        if not cost.measured:
            remedy = "Leave it out, or say that it is measured."
            raise InputError(f"{field}.predicted", cost.measured, "is of a cost that was not measured", remedy)
        _expect_figures(cost.predicted, f"{field}.predicted")


def _expect_figures(cost: Cost | Predicted, field: str) -> None:
    for name in ("read_ns", "write_ns", "peak_bytes", "pause_us", "scan_ns"):
        figure: Figure | None = getattr(cost, name, None)
        if figure is None:
            continue
        lower = figure.expected if figure.lower is None else figure.lower
        if not lower <= figure.expected <= figure.most:
            found = f"{figure.lower}, {figure.expected}, {figure.upper}"
            raise InputError(f"{field}.{name}", found, "are no quantiles", "Give lower <= expected <= upper.")


def _check_plan(plan: IndexPlan) -> None:
    if (plan.objective is None) != (plan.status == "infeasible") or bool(plan.choices) != (plan.objective is not None):
        remedy = "An infeasible plan has neither objective nor choices, any other plan has both."
        raise InputError("choices", len(plan.choices), f"does not go with status {plan.status}", remedy)


DOCUMENTS = KindDocuments(IndexProblem, IndexPlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
