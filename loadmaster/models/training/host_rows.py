"""Rows of updates on the host, in the program of a training step (:mod:`loadmaster.models.training.formulation`, which
says what they mean)."""

from __future__ import annotations

from loadmaster.models.training.columns import Columns, Terms
from loadmaster.models.training.rows import add_row, each_of, phases_us
from loadmaster.solvers.program import ProgramBuilder


def host_update_order(b: ProgramBuilder, c: Columns) -> None:
    """Add (T8): the gradient, the update on the host, and the new copy."""
    rows = b.row_list("host_update_order")
    for g in c.groups:
        if g.gradients is not None and g.host_updates is not None:
            for t in g.host_updates.slots:
                add_row(rows, g.host_updates(t) + g.gradients(t, -1.0), upper=0.0)
        coming = [flow for flow in (g.copies, g.gaps[-1]) if flow is not None]
        done = [u.stores for u in g.updates if u.way.weights == "streamed" and u.stores is not None]
        if g.host_updates is not None:
            done.append(g.host_updates)
        if done:
            for t in range(min(flow.first for flow in coming), max(flow.last for flow in coming) + 1):
                terms = [term for flow in coming for term in flow(t)]
                add_row(rows, terms + [term for flow in done for term in flow(t, -1.0)], upper=0.0)
    rows.done()


def host_turns(b: ProgramBuilder, c: Columns, unit_us: float) -> None:
    """Add (T12): the host has updated all that it updates before the first layer of these runs forward again."""
    runs, count = c.runs, len(c.runs.layers)
    rows = b.row_list("host_turns")
    work: Terms = []
    for r, g in enumerate(c.groups):
        if g.host_updates is not None:
            on_host, of = g.on_host(g.x), runs.groups[r]
            add_row(
                rows, [*each_of(on_host, 1.0 / of.each), (int(c.turns[runs.run_of(of.layers[0])]), -1.0)], upper=0.0
            )
            work += each_of(on_host, (runs.alike(r).host_update_us or 0.0) / unit_us)
    if work:
        for run, turns in zip(runs.layers, c.turns.tolist(), strict=True):
            work.append((turns, min(p.forward_us for p in runs.problem.points(run.layers[0])) / unit_us))
        work += each_of(c.tau[:count], -1.0)
        if runs.problem.clip_grad_norm:
            work += [(int(c.tau[-1]), -1.0), *phases_us(c, runs.slots - 1, 1.0 / unit_us)]
        else:
            work += each_of(c.tau[-count:], -1.0)
        add_row(rows, work, upper=0.0)
    rows.done()
