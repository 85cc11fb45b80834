r"""Program of a periodic step over runs of like layers, whose value bounds every plan from below.

Sources: [Ren21] (updates on the host), [Wu24] chapter 5 (keep, recompute or offload); the program is our own.

Sets: runs a of n_a layers, group runs r of n_r groups, points p of a run, ways w of a group run
(:mod:`loadmaster.models.training.ways`), slots s around the step (:mod:`loadmaster.models.training.runs`), S of them. A
slot lasts from the end of the phase before it (with the device updates after that) to the end of its last phase, called
q(s), with those after q(s). Moves and updates of a group may end in a later step: slots count on, and slot s + S is
slot s of the next step.

Variables:
    y[a,p]       integer: layers of a run that run by the point
    x[r,w]       integer: groups of a group run that are treated in the way
    tau[s]       length of a slot
    a flow f(s)  groups whose move or update is over by the end of slot s, in parts; it only goes on, from 0 before its
                 window to its total at the window's end. Of each r: updates on the device of each way w, U_w; loads and
                 stores of what these need, L_w and E_w; gradients stored G and updates on the host H of all ways that
                 update there; copies loaded in their place C; loads of streamed copies after the i-th use D_i, whose
                 total is free, away[r,i]: the copies that left after that use; all, where weights change after it
    first[a,p], last[a,p], first[r,w], last[r,w]   point and ways of the first and the last layer of a run
    turns[a]     layers of a run with groups that the host updates; of those that several layers use, the first counts
    made[r,k], used[r,i]   gradients at q(s) of the slot that completes them, k where the weights are; streamed copies
                           at q(s) of the slot of the i-th use; both only where a run has several layers

Minimize sum of tau[s] subject to
(T1)  a layer runs by one point: sum over p of y[a,p] = n_a; and so do the first and the last one, which are among them:
      sum of first[a,p] = sum of last[a,p] = 1, first[a,p] + last[a,p] <= y[a,p] - `one_point`
(T2)  a group is treated in one way, and so are those of the first and of the last layer - `one_way`
(T3)  a slot lasts at least as long as its phases and the device updates in it: tau[s] >= sum of us_p y[a,p] + sum of
      update_us (U_w(s) - U_w(s-1)) - `slot_time`
(T4)  each direction of the link moves in a slot what its time allows, and the host updates: sum of us (f(s) - f(s-1))
      <= tau[s], f the flows of loads, of stores, or H; where updates wait for the norm of all gradients, the host works
      in the last slot of a step for its time less its phases - `worker_time`
(T5)  what the last phase of a slot finds on the device fits: all layers that keep something there, the one that runs,
      resident weights and state, gradients, L_w(s) - E_w(s) of what updates need, and copies that have come -
      `fits_the_budget`
(T6)  what the host holds fits it - `host_capacity`
(T7)  an update follows its load, and its stores follow it: U_w(s) <= L_w(s), E_w(s) <= U_w(s), U_w(s-1) where the slot
      is one phase; the next load follows the store: L_w(s-S) <= E_w(s) - `device_update_order`
(T8)  a host update follows its gradient, and the new copy comes after the update: H(s) <= G(s), and copies loaded after
      the last use of a step are no more than weights updated and stored: C(s) + D_last(s) <= H(s) + E_w(s), w the
      streamed way that updates on the device - `host_update_order`
(T9)  the gradients and copies of the layer of q(s), which uses them in that phase, are still there: made[r,k] >= those
      of its layer, and >= sum of x - U(s); used[r,i] likewise; G(s) <= sum of x - those of the layer - `in_use`
(T10) a copy leaves only where it is streamed: away[r,i] <= sum of streamed x[r,w] - `away_copies`
(T11) a flow only goes on: f(s-1) <= f(s) - `only_onward`
(T12) gradients that are complete later are updated later, so the host has done all its updates before the first of
      their layers runs forward again, and does none while they run: sum over r of us H + sum over a of turns[a] times
      the least us_p <= sum of tau[s] over the last backward and the first forward passes (where updates wait for the
      norm, of the former only the last slot, less its phases); turns[a] >= the groups in each layer of its r that the
      host updates - `host_turns`

Every plan that the checker passes gives a point: averages over the steps of its steady state, since each row holds for
every step, or is the sum of rows that do. (T3): phases follow each other, and updates are between them. (T4): a worker
does one thing at a time; a move that spans slots is over in parts, by its time. (T5): bytes count from the position at
which their load is queued to that at which their memory is free. No load runs before the former and no store after the
start of the phase of the latter, so at q(s) each group counts at least L_w(s) - E_w(s) of its stay. Windows are those
of all members: gradients complete, b* <= .. < N next use for device updates; a stay's load is after its last store, so
in the P phases before; a stay is at most P phases long. Where a slot has one phase, what follows the phase is in the
next slot. (T9): that layer is the last of the run on the way forward, the first on the way back. (T12): gradients are
stored in the order of the phases that complete them, those of the first layer of all that the host updates last, and
the host takes them in that order. That layer runs forward once its copy is new, then come all others that the host
updates, and no gradient is there before the last backward pass, no norm before its end.

The program leaves out the order of queues but for (T12), waits inside a slot, phases of a slot but its last one, and
that bytes move whole. Bytes are divided by the budget or the host's capacity, and times by the plain step, so that a
solver's tolerances mean the same everywhere. Rows of states in files are those of
:mod:`loadmaster.models.training.disk_rows`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from loadmaster.models.training.columns import Columns, Flow, GroupColumns, Terms, flows
from loadmaster.models.training.disk_rows import disk_rows
from loadmaster.models.training.host_rows import host_turns, host_update_order
from loadmaster.models.training.limits import plain_us
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.residency import host_bytes
from loadmaster.models.training.rows import add_row, each_of, less, phases_us
from loadmaster.models.training.runs import Runs
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder, RowList

__all__ = ["Formulated", "formulate"]


@dataclass(frozen=True)
class Formulated:
    """The program and its columns: y [runs][points], x [group runs][ways]. Its objective counts in ``unit_us``."""

    program: Program
    unit_us: float
    y: tuple[IntArray, ...]
    x: tuple[IntArray, ...]

    def relaxed(self) -> Program:
        """Return the program without integrality."""
        return dataclasses.replace(self.program, integer=np.zeros_like(self.program.integer))

    def points(self, values: FloatArray) -> list[FloatArray]:
        """Count the layers that run by each point, [runs][points]."""
        return [values[columns] for columns in self.y]

    def ways(self, values: FloatArray) -> list[FloatArray]:
        """Count the groups that are treated in each way, [group runs][ways]."""
        return [values[columns] for columns in self.x]


def formulate(problem: TrainingProblem, budget_bytes: int, runs: Runs) -> Formulated:
    """The program of a step over ``runs`` under a budget of device memory."""
    b = ProgramBuilder()
    unit_us = max(plain_us(problem), 1e-3)
    c = Columns(b, runs)
    one_point(b, c)
    one_way(b, c)
    slot_time(b, c, unit_us)
    worker_time(b, c, unit_us)
    fits_the_budget(b, c, budget_bytes)
    host_capacity(b, c)
    device_update_order(b, c)
    host_update_order(b, c)
    in_use(b, c)
    away_copies(b, c)
    only_onward(b, c)
    host_turns(b, c, unit_us)
    disk_rows(b, c, unit_us)
    return Formulated(b.build(), unit_us, tuple(c.y), tuple(g.x for g in c.groups))


def one_point(b: ProgramBuilder, c: Columns) -> None:
    """Add (T1): a layer runs by one point, the first and the last of a run too."""
    rows = b.row_list("one_point")
    for run, y, first, last in zip(c.runs.layers, c.y, c.first, c.last, strict=True):
        _one(rows, len(run.layers), 1, y, first, last)
    rows.done()


def one_way(b: ProgramBuilder, c: Columns) -> None:
    """Add (T2): a group is treated in one way, those of the first and the last layer too."""
    rows = b.row_list("one_way")
    for run, g in zip(c.runs.groups, c.groups, strict=True):
        _one(rows, len(run.groups), run.each, g.x, g.first, g.last)
    rows.done()


def _one(rows: RowList, count: int, each: int, all_of: IntArray, first: IntArray, last: IntArray) -> None:
    add_row(rows, each_of(all_of), count, count)
    if first is not all_of:
        add_row(rows, each_of(first), each, each)
        add_row(rows, each_of(last), each, each)
        for one, other, total in zip(first, last, all_of, strict=True):
            add_row(rows, each_of([one, other]) + each_of([total], -1.0), upper=0.0)


def slot_time(b: ProgramBuilder, c: Columns, unit_us: float) -> None:
    """Add (T3): a slot lasts as long as its phases and the device updates in it."""
    runs = c.runs
    terms = [[(int(tau), 1.0), *phases_us(c, s, -1.0 / unit_us)] for s, tau in enumerate(c.tau)]
    for r, g in enumerate(c.groups):
        for update in g.updates:
            for t in update.updates.slots:
                terms[t % runs.slots] += update.updates.during(t, -runs.alike(r).update_us / unit_us)
    rows = b.row_list("slot_time")
    for row in terms:
        add_row(rows, row, lower=0.0)
    rows.done()


def worker_time(b: ProgramBuilder, c: Columns, unit_us: float) -> None:
    """Add (T4): each direction of the link, and the host, do in a slot what its time allows."""
    for name, moves in _work(c).items():
        terms: list[Terms] = [[(int(tau), -1.0)] for tau in c.tau]
        for us, flow in moves:
            for t in flow.slots:
                terms[t % c.runs.slots] += flow.during(t, us / unit_us)
        if name == "host" and c.runs.problem.clip_grad_norm:
            terms[-1] += phases_us(c, c.runs.slots - 1, 1.0 / unit_us)
        rows = b.row_list(f"worker_time {name}")
        for row in terms:
            if len(row) > 1:
                add_row(rows, row, upper=0.0)
        rows.done()


def _work(c: Columns) -> dict[str, list[tuple[float, Flow]]]:
    """List what each worker does: the time that one group takes, and the flow."""
    host = c.runs.problem.host
    found: dict[str, list[tuple[float, Flow]]] = {"stores": [], "loads": [], "host": []}

    def move(name: str, size_bytes: int, flow: Flow | None) -> None:
        if flow is not None:
            found[name].append((host.load_us(size_bytes) if name == "loads" else host.store_us(size_bytes), flow))

    for r, g in enumerate(c.groups):
        group = c.runs.alike(r)
        for update in g.updates:
            move("loads", update.way.loaded_bytes(group), update.loads)
            move("stores", update.way.stored_bytes(group), update.stores)
        move("stores", group.copy_gradient_bytes, g.gradients)
        for flow in (g.copies, *g.gaps):
            move("loads", group.copy_bytes, flow)
        if g.host_updates is not None and group.host_update_us:
            found["host"].append((group.host_update_us, g.host_updates))
    return found


def fits_the_budget(b: ProgramBuilder, c: Columns, budget_bytes: int) -> None:
    """Add (T5): what the last phase of each slot finds on the device fits."""
    scale = max(budget_bytes, 1)
    rows = b.row_list("fits_the_budget")
    for s in range(c.runs.slots):
        terms = _activations(c, s)
        for r, g in enumerate(c.groups):
            group = c.runs.alike(r)
            terms += [(int(x), way.resident_bytes(group)) for x, way in zip(g.x, g.ways, strict=True)]
            terms += [(column, group.copy_bytes * share) for column, share in _copies(c, r, s)]
            terms += _gradients(c, r, s)
            for update in g.updates:
                if update.loads is not None and update.stores is not None:
                    size = update.way.stored_bytes(group)
                    for t in _laps(s, update.loads.first, update.stores.last, c.runs.slots):
                        terms += update.loads(t, size) + update.stores(t, -size)
        room = budget_bytes - c.runs.problem.fixed_bytes
        add_row(rows, [(column, size / scale) for column, size in _summed(terms)], upper=room / scale)
    rows.done()


def _summed(terms: Terms) -> Terms:
    total: dict[int, float] = defaultdict(float)
    for column, value in terms:
        total[column] += value
    return [(column, value) for column, value in total.items() if value]


def _laps(slot: int, first: int, last: int, slots: int) -> range:
    """Slots between two that are this one in some step."""
    return range(first + (slot - first) % slots, last + 1, slots)


def _activations(c: Columns, s: int) -> Terms:
    """Bytes of layers in the last phase of a slot: what is kept, and what the layer that runs takes."""
    runs, at = c.runs, c.runs.run(s)
    forward = runs.is_forward(s)
    terms: Terms = []
    for a in range(at + forward):
        points = runs.problem.points(runs.layers[a].layers[0])
        terms += [(int(y), float(p.kept_bytes)) for y, p in zip(c.y[a], points, strict=True)]
    points = runs.problem.points(runs.layers[at].layers[0])
    for column, p in zip((c.last if forward else c.first)[at].tolist(), points, strict=True):
        terms.append((column, float(p.forward_bytes if forward else p.kept_bytes + p.backward_bytes)))
    return terms


def _copies(c: Columns, r: int, s: int) -> Terms:
    """Groups whose streamed copy is on the device in the last phase of a slot."""
    g, q, uses = c.groups[r], c.runs.last_phase(s), c.runs.uses(r)
    ended = sum(use.last <= q for use in uses)
    if ended and uses[ended - 1].last == q:
        return each_of([g.used[ended - 1]] if g.used else g.streamed(g.x))
    return _left(g, ended - 1, s if ended else s + c.runs.slots)


def _left(g: GroupColumns, use: int, t: int) -> Terms:
    """Groups whose streamed copy has stayed since a use, or has come back."""
    here, gap = each_of(g.streamed(g.x)), g.gaps[use]
    return here if gap is None else here + less(gap.total) + gap(t)


def _gradients(c: Columns, r: int, s: int) -> Terms:
    """Bytes of gradients in the last phase of a slot."""
    g, group, runs = c.groups[r], c.runs.alike(r), c.runs
    if not group.is_trained:
        return []
    first, ready = runs.slot(runs.first_gradients(r).first), runs.updates_from(r)
    terms: Terms = []
    for t in _laps(s, first, runs.slot(runs.next_uses(r).last), runs.slots):
        q = runs.last_phase(t)
        for weights in (True, False):
            held = each_of(g.on_device(g.x, weights))
            if held and ready.first < ready.last == q:
                held = each_of([g.made[weights]])
            elif q > ready.last:
                by = t - runs.is_single(t)
                held += [
                    term for u in g.updates if (u.way.weights == "device") is weights for term in u.updates(by, -1.0)
                ]
            size = group.gradient_bytes if weights else group.copy_gradient_bytes
            terms += [(column, size * share) for column, share in held]
        if g.gradients is not None:
            held = g.gradients.total + g.gradients(t, -1.0)
            terms += [(column, group.copy_gradient_bytes * share) for column, share in held]
    return terms


def host_capacity(b: ProgramBuilder, c: Columns) -> None:
    """Add (T6): what the host holds fits it."""
    capacity = c.runs.problem.host.capacity_bytes
    if capacity is None:
        return
    scale = max(capacity, 1)
    terms = [
        (int(x), host_bytes(c.runs.alike(r), way) / scale)
        for r, g in enumerate(c.groups)
        for x, way in zip(g.x, g.ways, strict=True)
    ]
    rows = b.row_list("host_capacity")
    add_row(rows, terms, upper=capacity / scale)
    rows.done()


def device_update_order(b: ProgramBuilder, c: Columns) -> None:
    """Add (T7): load, update, store, and the next load."""
    rows = b.row_list("device_update_order")
    for update in (update for g in c.groups for update in g.updates):
        if update.loads is None or update.stores is None:
            continue
        for t in update.updates.slots:
            add_row(rows, update.updates(t) + update.loads(t, -1.0), upper=0.0)
        for t in update.stores.slots:
            by = t - c.runs.is_single(t)
            if by <= update.updates.last:
                add_row(rows, update.stores(t) + update.updates(by, -1.0), upper=0.0)
            add_row(rows, update.loads(t - c.runs.slots) + update.stores(t, -1.0), upper=0.0)
    rows.done()


def in_use(b: ProgramBuilder, c: Columns) -> None:
    """Add (T9): gradients and copies of the layer that uses them in the last phase of a slot are there."""
    rows = b.row_list("in_use")
    for r, g in enumerate(c.groups):
        if g.first is g.x:
            continue
        for i, use in enumerate(c.runs.uses(r)):
            slot = c.runs.slot(use.last)
            layer = g.last if c.runs.is_forward(slot) else g.first
            add_row(rows, [*each_of(g.streamed(layer)), (g.used[i], -1.0)], upper=0.0)
            add_row(rows, [*_left(g, i, slot), (g.used[i], -1.0)], upper=0.0)
        if g.gradients is not None:
            slot = c.runs.slot(c.runs.last_gradients(r).last)
            add_row(rows, g.gradients(slot) + each_of(g.on_host(g.first)) + less(g.gradients.total), upper=0.0)
        for weights, made in g.made.items():
            slot = c.runs.slot(c.runs.updates_from(r).last)
            add_row(rows, [*each_of(g.on_device(g.first, weights)), (made, -1.0)], upper=0.0)
            left = [t for u in g.updates if (u.way.weights == "device") is weights for t in u.updates(slot, -1.0)]
            add_row(rows, [*each_of(g.on_device(g.x, weights)), *left, (made, -1.0)], upper=0.0)
    rows.done()


def away_copies(b: ProgramBuilder, c: Columns) -> None:
    """Add (T10): a copy leaves only where it is streamed."""
    rows = b.row_list("away_copies")
    for g in c.groups:
        streamed = g.streamed(g.x)
        for gap in g.gaps:
            if gap is not None and [column for column, _ in gap.total] != streamed:
                add_row(rows, gap.total + each_of(streamed, -1.0), upper=0.0)
    rows.done()


def only_onward(b: ProgramBuilder, c: Columns) -> None:
    """Add (T11): a flow only goes on."""
    rows = b.row_list("only_onward")
    for flow in (flow for g in c.groups for flow in flows(g)):
        # The first slot starts from nothing; columns are not negative.
        for t in range(flow.first + 1, flow.last + 1):
            add_row(rows, flow(t - 1) + flow(t, -1.0), upper=0.0)
    rows.done()
