"""An index plan in a few lines of text: the time, its proof, what is chosen how often, and every shard."""

from __future__ import annotations

from loadmaster.api.columns import table
from loadmaster.api.report.index.runs import runs_words
from loadmaster.api.report.index.view import IndexView, ShardRow
from loadmaster.api.report.words import check_row, fits, none_fits, peak_row, proof, under_budget
from loadmaster.models.index.checker import IndexCheck
from loadmaster.models.index.plan import Change, IndexInfeasibility, IndexPlan
from loadmaster.models.index.problem import Figure, IndexProblem
from loadmaster.models.index.serving import operations_us, words
from loadmaster.models.units import show_at_least, show_bytes, show_cost


def summary(plan: IndexPlan) -> str:
    """The lines that ``plan`` and ``show`` print."""
    return under_budget(plan, _infeasible_rows, _rows, " a host")


def infeasible(plan: IndexPlan) -> str:
    """Explain why there is no plan, and how much more memory it takes."""
    return none_fits(plan, _why, " a host")


def _why(found: IndexInfeasibility) -> str:
    what = f"a budget of {found.minimum_budget_bytes} bytes" if found.budget_helps else "memory of its own"
    return (
        f"host {found.where} lacks {show_bytes(found.short_bytes)}, and needs {what} "
        f"(most of it for {', '.join(found.largest)})."
    )


def verdict(plan: IndexPlan, check: IndexCheck) -> str:
    """The checker's findings in one line: the time on all threads, and the peak of a host."""
    return (
        f"{show_cost(check.total_us, 'us')} on all threads together, {fits(plan, check.peak_bytes)} on {check.peak_at}"
    )


def details(view: IndexView) -> str:
    """The table of what every shard gets, and the changes that pay or would."""
    lines = ["", table(shard_rows(view), SHARD_HEADER)]
    if view.runs:
        lines += ["", runs_words(view.runs)]
    if view.plan.changes:
        lines += ["", *(change_words(view.problem, change) for change in view.plan.changes)]
    return "\n".join(lines)


SHARD_HEADER = ["shard", "host", "thread", "configuration", "figures", "read", "write", "time", "bytes"]


def shard_rows(view: IndexView) -> list[list[str]]:
    """Rows of the table of shards, in their order; what was predicted stands behind what was measured."""
    rows = []
    for row in view.rows:
        cost, was = row.cost, row.cost.predicted
        time, size = show_cost(row.choice.time_us, "us"), show_bytes(row.choice.peak_bytes)
        if was is not None:
            time += f" ({show_cost(operations_us(row.shard, was), 'us')} predicted)"
            size += f" ({show_bytes(was.peak_bytes.expected)} predicted)"
        rows.append(
            [
                row.shard.name,
                row.host,
                "" if row.choice.thread is None else str(row.choice.thread),
                row.configuration,
                "measured" if cost.measured else "predicted",
                nanoseconds(cost.read_ns, None if was is None else was.read_ns),
                "" if cost.write_ns is None else nanoseconds(cost.write_ns, None if was is None else was.write_ns),
                time,
                size,
            ]
        )
    return rows


def nanoseconds(figure: Figure, predicted: Figure | None = None) -> str:
    """Format a time: ``104 ns``; of what is predicted, ``104 ns (52 to 208)``; of both, ``104 ns (98 predicted)``."""
    if figure.lower is None or figure.upper is None:
        return f"{figure.expected:.0f} ns" + ("" if predicted is None else f" ({predicted.expected:.0f} predicted)")
    return f"{figure.expected:.0f} ns ({figure.lower:.0f} to {figure.upper:.0f})"


def change_words(problem: IndexProblem, change: Change) -> str:
    """Say in a sentence what becomes of a shard that is built already."""
    shard = problem.shards[change.shard]
    now, to = words(problem.candidates[change.current]), words(problem.candidates[change.to])
    took = show_cost(change.rebuild_us, "us")
    head = f"{shard.name}: {now} becomes {to}" if change.made else f"{shard.name}: {now} stays, though {to}"
    if change.pays_after_operations is None:
        return f"{head}, rebuilt in {took}: for its memory, or because it could not serve"
    after = f"pays for its rebuild of {took} after {change.pays_after_operations:.0f} operations"
    return f"{head}, which {after}" if change.made else f"{head} {after}"


def tally(rows: tuple[ShardRow, ...]) -> str:
    """Count how often each configuration is chosen, the most frequent first."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.configuration] = counts.get(row.configuration, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _rows(plan: IndexPlan) -> list[tuple[str, str]]:
    assert plan.objective is not None
    rows = [
        ("time", f"{show_cost(plan.objective, plan.unit)} for {len(plan.choices)} shards"),
        ("proof", proof(plan)),
    ]
    check = plan.check
    if check.get("longest_us"):
        longest, total = show_cost(check["longest_us"], "us"), show_cost(check["total_us"], "us")
        rows.append(("threads", f"{longest} on the longest, {total} on all together"))
    rows += peak_row(plan, "a host", "memory", "on")
    if plan.changes:
        made = sum(change.made for change in plan.changes)
        rows.append(("changes", f"{made} shards are rebuilt, {len(plan.changes) - made} would gain in the long run"))
    return [*rows, check_row(plan)]


def _infeasible_rows(found: IndexInfeasibility) -> list[tuple[str, str]]:
    least = f"{show_at_least(found.minimum_budget_bytes)} ({found.minimum_budget_bytes} bytes)"
    return [
        ("works", least if found.budget_helps else f"no budget: host {found.where} itself needs {least}"),
        ("short", f"{show_bytes(found.short_bytes)} more are enough"),
        ("where", f"host {found.where}"),
        ("largest", ", ".join(found.largest)),
    ]
