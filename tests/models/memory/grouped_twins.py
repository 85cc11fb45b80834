"""The grouped programs once more, written out in PuLP from the constraint lists in their docstrings.

Nothing is shared with the arrays: every result has every variable in every group, every implementation has one, and
every sum is written where it stands. Sizes are in MiB, as there.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulp

from loadmaster.models.memory.bands import BoolArray
from loadmaster.models.memory.problem import MemoryProblem
from tests.models.memory.twins import binary

MIB = float(1 << 20)
Groups = Sequence[tuple[int, int]]


def share(name: str) -> pulp.LpVariable:
    return pulp.LpVariable(name, 0.0, 1.0)


def amount(name: str) -> pulp.LpVariable:
    return pulp.LpVariable(name, 0.0)


class _Common:
    """What both twins start from: the figures in MiB, the choices of the backward pass, the needs they make."""

    def __init__(self, name: str, problem: MemoryProblem, budget_bytes: int) -> None:
        self.problem, self.budget = problem, budget_bytes / MIB
        self.model = pulp.LpProblem(name, pulp.LpMinimize)
        self.V = range(len(problem.forward))
        self.m = [f.output_bytes / MIB for f in problem.forward]
        self.live = [f.live_bytes / MIB for f in problem.forward]
        self.plain = [f.id for f in problem.forward if f.encodes is None]
        self.cost = problem.cost
        self.objective = pulp.LpAffineExpression()
        self.d = {(b.id, n): binary(f"d_{b.id}_{n}") for b in problem.backward for n in range(len(b.implementations))}
        for b in problem.backward:
            self.model += pulp.lpSum(self.d[b.id, n] for n in range(len(b.implementations))) == 1
            for n, choice in enumerate(b.implementations):
                self.objective += problem.cost(choice) * self.d[b.id, n]

    def gradients(self, stage: int) -> float:
        return self.problem.gradient_bytes(stage) / MIB

    def need(self, k: int, i: int) -> pulp.LpAffineExpression:
        chosen = self.problem.backward[k - 1].implementations
        return pulp.lpSum(self.d[k, n] for n, choice in enumerate(chosen) if i in choice.needs)

    def backward_us(self, k: int) -> pulp.LpAffineExpression:
        chosen = self.problem.backward[k - 1].implementations
        return pulp.lpSum(self.d[k, n] * choice.time_us for n, choice in enumerate(chosen))

    def around_backward(self, k: int) -> pulp.LpAffineExpression:
        b = self.problem.backward[k - 1]
        workspace = pulp.lpSum(self.d[k, n] * (c.workspace_bytes / MIB) for n, c in enumerate(b.implementations))
        return workspace + (b.live_bytes + b.fixed_bytes + b.output_bytes) / MIB

    def forward_choices(self) -> tuple[dict[int, pulp.LpAffineExpression], dict[int, pulp.LpVariable]]:
        """Workspace of each operator of the forward pass, with its choices paid for, and who runs in place."""
        workspace, q = {}, {}
        self.forward_cost = {i: pulp.LpAffineExpression() for i in self.V}
        for i in self.plain:
            f = self.problem.forward[i]
            y = [binary(f"y0_{i}_{n}") for n in range(len(f.implementations))]
            self.model += pulp.lpSum(y) == 1
            workspace[i] = pulp.lpSum(v * (c.workspace_bytes / MIB) for v, c in zip(y, f.implementations, strict=True))
            self.forward_cost[i] += pulp.lpSum(v * self.cost(c) for v, c in zip(y, f.implementations, strict=True))
            if f.in_place is not None:
                q[i] = binary(f"q0_{i}")
                workspace[i] += q[i] * (f.in_place.workspace_delta_bytes / MIB)
                self.forward_cost[i] += q[i] * self.problem.in_place_cost(f.in_place)
            self.objective += self.forward_cost[i]
        return workspace, q

    def queue(self, o: dict[int, pulp.LpVariable], backlog: Sequence[pulp.LpVariable]) -> None:
        """(O1): bytes done with and not sent when each forward operator starts, and the waits for the link."""
        link, forward = self.problem.host_link, self.problem.forward
        assert link is not None
        per_us = link.to_host_gbps * 1e3 / MIB
        for j in range(1, len(self.V) + 1):
            joins = [i for i in self.V if max([i, *(n.id for n in forward if i in n.inputs)]) == j - 1]
            stall, left = amount(f"stall_{j}"), amount(f"left_{j}")
            cut = pulp.lpSum(o[i] * link.cutting_us(forward[i].output_bytes) for i in joins)
            self.objective += stall + cut
            self.model += left >= backlog[j - 1] - per_us * self.forward_cost[j - 1]
            self.model += backlog[j] >= left + pulp.lpSum(self.m[i] * o[i] for i in joins) - per_us * (stall + cut)
        self.model += backlog[len(self.V)] <= 0


def relaxation_twin(
    problem: MemoryProblem, budget_bytes: int, groups: Groups, *, whole: bool = False
) -> pulp.LpProblem:
    """(R1) to (R15), and (R16) if results travel whole."""
    c = _Common("relaxation", problem, budget_bytes)
    model, V, m, budget, forward = c.model, c.V, c.m, c.budget, problem.forward
    link = problem.host_link if problem.objective == "time" else None
    G, last = range(len(groups)), len(groups) - 1
    s = {(g, i): binary(f"s_{g}_{i}") for g in G for i in V}
    r = {(g, i): binary(f"r_{g}_{i}") for g in G for i in V}
    o = {i: binary(f"o_{i}") for i in V}
    f = {(g, i): binary(f"f_{g}_{i}") for g in G for i in V}
    for i in V:
        if link is None or not forward[i].offloadable:
            model += o[i] == 0
        for g in G:
            model += f[g, i] <= o[i]  # (R13)
            if not forward[i].recomputable:
                model += r[g, i] == 0

    def later(g: int, i: int) -> pulp.LpAffineExpression:
        return pulp.lpSum([s[g + 1, i]] if g < last else [])

    recompute_workspace = {}
    spent = {g: pulp.LpAffineExpression() for g in G}
    for g, i in r:
        operator = forward[i]
        offered = operator.recompute_implementations
        saving = min(0.0, problem.in_place_cost(operator.in_place)) if operator.in_place is not None else 0.0
        cheapest = min(c.cost(x) for x in offered)
        y = [share(f"y_{g}_{i}_{n}") for n in range(len(offered))]
        model += pulp.lpSum(y) == r[g, i]
        spent[g] += max(0.0, cheapest + saving) * r[g, i]
        spent[g] += pulp.lpSum(v * (c.cost(x) - cheapest) for v, x in zip(y, offered, strict=True))
        recompute_workspace[g, i] = pulp.lpSum(v * (x.workspace_bytes / MIB) for v, x in zip(y, offered, strict=True))
        for u in operator.inputs:
            model += r[g, i] <= s[g, u] + r[g, u] + f[g, u]  # (R1)
        if operator.encodes is not None:
            model += r[g, i] <= r[g, operator.encodes]  # (R1)
        model += later(g, i) <= s[g, i] + r[g, i] + f[g, i]  # (R2)
    for g, (a, b) in enumerate(groups):
        for k in range(a, b + 1):
            for i in V:
                model += c.need(k, i) <= s[g, i] + r[g, i] + f[g, i]  # (R3)
    workspace, q = c.forward_choices()
    backlog = [amount(f"b_{j}") for j in range(len(V) + 1)]
    prefetched = [amount(f"p_{g}") for g in G]
    beside_forward, beside_group = list(backlog), list(prefetched)
    u = {(i, j): binary(f"u_{i}_{j}") for i in V for j in V}
    z = {(g, i): binary(f"z_{g}_{i}") for g in G for i in V}
    if whole and link is not None:  # (R16)
        for j in V:
            done_with = [i for i in V if max([i, *(n.id for n in forward if i in n.inputs)]) < j]
            for i in done_with:
                model += u[i, j] <= (u[i, j + 1] if j + 1 in V else o[i])
            beside_forward[j] = pulp.lpSum(m[i] * (o[i] - u[i, j]) for i in done_with)
            model += beside_forward[j] >= backlog[j]
        for g in G:
            for i in V:
                model += z[g, i] <= (z[g + 1, i] + f[g + 1, i] if g < last else 0)
            beside_group[g] = pulp.lpSum(m[i] * z[g, i] for i in V)
            model += beside_group[g] >= prefetched[g]
    for j in q:
        overwritten = forward[j].in_place.overwrites
        model += q[j] + s[0, overwritten] <= 1  # (R4)
        _spare_readers(c, q[j], j, overwritten, s)
    for j in c.plain:
        apart = pulp.lpSum(m[i] * s[0, i] for i in range(j) if i not in forward[j].live_inputs)
        model += c.gradients(0) + workspace[j] + m[j] + c.live[j] + apart + beside_forward[j] <= budget  # (R5)
    for e in V:
        if forward[e].encodes is not None:
            saving = min(0.0, problem.in_place_cost(forward[e].in_place)) if forward[e].in_place is not None else 0.0
            c.forward_cost[e] += max(0.0, min(c.cost(x) for x in forward[e].implementations) + saving) * s[0, e]
            c.objective += c.forward_cost[e]
    for g, (a, b) in enumerate(groups):
        on_the_way = beside_group[g] if link is not None else 0
        start = c.gradients(a) + pulp.lpSum(m[i] * s[g, i] for i in V)
        model += start + (on_the_way if a == b else 0) <= budget  # (R6)
        for k in range(a, b + 1):
            present = []
            for i in V:
                v = share(f"v_{k}_{i}")
                present.append(m[i] * v)
                model += v >= c.need(k, i)  # (R8)
                if k == b:
                    model += v >= later(g, i)  # (R8)
                    continue
                w = share(f"w_{g}_{i}_{k}")
                model += v >= w  # (R8)
                model += w >= later(g, i) - r[g, i] - f[g, i]  # (R7)
                for afterwards in range(k + 1, b + 1):
                    model += w >= c.need(afterwards, i) - r[g, i] - f[g, i]  # (R7)
            beside = on_the_way if k == b else 0
            model += c.around_backward(k) + pulp.lpSum(present) + beside <= budget  # (R9)
        e = {i: share(f"e_{g}_{i}") for i in V}
        for i in V:
            model += e[i] >= later(g, i) - r[g, i] - f[g, i]  # (R10)
            model += e[i] >= c.need(b, i) - r[g, i] - f[g, i]  # (R10)
        lightest = min(c.gradients(k) for k in range(a, b + 1))
        for j in V:
            live, in_place = forward[j].live_inputs, forward[j].in_place
            held = m[j] + c.live[j] + (min(0, in_place.workspace_delta_bytes) / MIB if in_place is not None else 0.0)
            if a == b:  # (R12)
                beside = pulp.lpSum(m[i] * s[g, i] for i in V if i > j)
                beside += pulp.lpSum(m[i] * later(g, i) for i in range(j) if i not in live) + on_the_way
            else:  # (R11)
                beside = pulp.lpSum(m[i] * e[i] for i in V if i != j and i not in live)
            if forward[j].recomputable and _matters(problem, j, a):
                model += lightest + r[g, j] * held + recompute_workspace[g, j] + beside <= budget
    c.objective += pulp.lpSum(spent.values())
    if link is not None:
        c.queue(o, backlog)  # (R13)
        for i in V:
            model += o[i] + s[0, i] <= 1  # (R13)
        if link.capacity_bytes is not None:
            model += pulp.lpSum(m[i] * o[i] for i in V) <= link.capacity_bytes / MIB  # (R13)
        per_us = link.from_host_gbps * 1e3 / MIB
        for g, (a, b) in enumerate(groups):
            stall = amount(f"fetch_stall_{g}")
            c.objective += stall
            arriving = pulp.lpSum(m[i] * f[g, i] for i in V)
            before = prefetched[g - 1] if g else 0
            earlier = spent[g] + pulp.lpSum(c.backward_us(k) for k in range(a, b))
            model += arriving <= before + per_us * (stall + (earlier if a < b else 0))  # (R14)
            model += arriving + prefetched[g] <= before + per_us * (stall + earlier + c.backward_us(b))  # (R15)
            if whole and a == b:  # (R16)
                late = [amount(f"late_{g}_{i}") for i in V]
                for i in V:
                    model += late[i] >= f[g, i] - (z[g - 1, i] if g else 0)
                model += pulp.lpSum(m[i] * late[i] for i in V) <= per_us * stall
    model += c.objective
    return model


def _spare_readers(
    c: _Common, in_place: pulp.LpVariable, j: int, overwritten: int, s: dict[tuple[int, int], pulp.LpVariable]
) -> None:
    """Nobody after j reads in the forward pass what j overwrites there."""
    for reader in range(j + 1, len(c.V)):
        if overwritten in c.problem.forward[reader].inputs:
            runs = s[0, reader] if c.problem.forward[reader].encodes is not None else 1
            c.model += in_place + runs <= 1


def _matters(problem: MemoryProblem, i: int, stage: int) -> bool:
    """Whether anything from that stage on can read result i, or something computed with it."""
    if any(i in choice.needs for b in problem.backward[stage - 1 :] for choice in b.implementations):
        return True
    made_with_it = [f.id for f in problem.forward if i in f.inputs or f.encodes == i]
    return any(_matters(problem, j, stage) for j in made_with_it)


def banded_twin(
    problem: MemoryProblem, budget_bytes: int, slots: Groups, allowed: BoolArray, *, offload: bool
) -> pulp.LpProblem:
    """(4.1), (4.7) to (4.15), (B.a) to (B.c) and (O1) to (O3)."""
    c = _Common("banded", problem, budget_bytes)
    model, V, m, budget, forward = c.model, c.V, c.m, c.budget, problem.forward
    H = range(len(slots))
    s = {(h, i): binary(f"s_{h}_{i}") for h in range(len(slots) + 1) for i in V}
    r = {(h, i): binary(f"r_{h}_{i}") for h in H for i in V}
    o = {i: binary(f"o_{i}") for i in V}
    f = {(h, i): binary(f"f_{h}_{i}") for h in range(len(slots) + 1) for i in V}
    late = {(h, i): binary(f"g_{h}_{i}") for h, i in f}
    here = {(h, i): s[h, i] + f[h, i] for h, i in f}
    spent = {h: pulp.LpAffineExpression() for h in H}
    recompute_workspace, q = {}, {}
    for i in V:
        model += s[len(slots), i] == 0
        if not offload or not forward[i].offloadable or forward[i].encodes is not None:
            model += o[i] == 0
        for h in range(len(slots) + 1):
            model += f[h, i] <= o[i]  # (O2)
            model += late[h, i] <= f[h, i]  # (O3)
            if h == 0 or h == len(slots) or not _something_happens(problem, slots[h], allowed[h], i):
                model += f[h, i] == 0
        model += o[i] + s[0, i] <= 1  # (O2)
    for h, i in r:
        operator = forward[i]
        offered = operator.recompute_implementations
        if not allowed[h, i]:
            model += r[h, i] == 0
        y = [binary(f"y_{h}_{i}_{n}") for n in range(len(offered))]
        model += pulp.lpSum(y) == r[h, i]
        spent[h] += pulp.lpSum(v * c.cost(x) for v, x in zip(y, offered, strict=True))
        recompute_workspace[h, i] = pulp.lpSum(v * (x.workspace_bytes / MIB) for v, x in zip(y, offered, strict=True))
        if operator.in_place is not None and (operator.encodes is None or (h, operator.encodes) in q):
            q[h, i] = binary(f"q_{h}_{i}")
            model += q[h, i] <= r[h, i]  # (4.10)
            if operator.encodes is not None:
                model += q[h, i] <= q[h, operator.encodes]
                model += q[h, i] >= r[h, i] + q[h, operator.encodes] - 1
            spent[h] += q[h, i] * problem.in_place_cost(operator.in_place)
            recompute_workspace[h, i] += q[h, i] * (operator.in_place.workspace_delta_bytes / MIB)
        for u in operator.inputs:
            model += r[h, i] <= here[h, u] + r[h, u]  # (4.7)
        if operator.encodes is not None:
            model += r[h, i] <= r[h, operator.encodes]  # (4.7)
        model += s[h + 1, i] <= here[h, i] + r[h, i]  # (4.7)
    c.objective += pulp.lpSum(spent.values())
    v = {(k, i): share(f"v_{k}_{i}") for a, b in slots for k in range(a, b + 1) for i in V}
    for h, (a, b) in enumerate(slots):
        arriving = pulp.lpSum(m[i] * (f[h + 1, i] - late[h + 1, i]) for i in V)
        read_first = {i for choice in problem.backward[a - 1].implementations for i in choice.needs}
        stays = {i: v[a + 1, i] if a < b else s[h + 1, i] for i in V}
        for i in read_first if a < b else ():
            stays[i] = binary(f"e_{h}_{i}")
            model += stays[i] <= v[a + 1, i]  # (B.c)
        for i in V:
            for k in range(a, b + 1):
                model += v[k, i] >= c.need(k, i)  # (B.a)
                model += v[k, i] >= (v[k + 1, i] if k < b else s[h + 1, i])  # (B.a)
            model += v[a, i] <= here[h, i] + r[h, i]  # (4.8)
            if h + 1 < len(slots):
                model += c.need(b, i) <= s[h + 1, i] + (r[h, i] if a == b else 0)  # (B.b)
        for j in V:
            if (h, j) in q and forward[j].encodes is None:
                overwritten = forward[j].in_place.overwrites
                model += q[h, j] + v[a, overwritten] <= 1  # (4.10)
                for reader in range(j + 1, len(V)):
                    if overwritten in forward[reader].inputs:
                        model += q[h, j] + r[h, reader] <= 1  # (4.10)
            before = pulp.lpSum(m[i] * v[a, i] for i in range(j))
            after = pulp.lpSum(m[i] * here[h, i] for i in range(j + 1, len(V)))
            moment = c.gradients(a) + arriving + before + after
            model += moment + m[j] * here[h, j] <= budget  # (4.15)
            kept = {i: stays[i] for i in forward[j].live_inputs}
            moment -= pulp.lpSum(m[i] * kept[i] for i in kept)
            if allowed[h, j]:
                model += moment + recompute_workspace[h, j] + r[h, j] * (m[j] + c.live[j]) <= budget  # (4.14)
        model += c.gradients(a) + arriving + pulp.lpSum(m[i] * v[a, i] for i in V) <= budget  # (4.15)
        for k in range(a, b + 1):
            if k > a:  # (4.15), at the start of a stage inside the slot
                model += c.gradients(k) + arriving + pulp.lpSum(m[i] * v[k - 1, i] for i in V) <= budget
            model += c.around_backward(k) + arriving + pulp.lpSum(m[i] * v[k, i] for i in V) <= budget  # (4.12)
    workspace, q0 = c.forward_choices()
    backlog = [amount(f"b_{j}") for j in range(len(V) + 1)]
    _encoded_results(c, s, q0, backlog)
    for j in q0:
        overwritten = forward[j].in_place.overwrites
        model += q0[j] + s[0, overwritten] + o[overwritten] <= 1  # (4.10)
        _spare_readers(c, q0[j], j, overwritten, s)
    for j in c.plain:
        apart = pulp.lpSum(m[i] * s[0, i] for i in range(j) if i not in forward[j].live_inputs)
        model += c.gradients(0) + workspace[j] + m[j] + c.live[j] + apart + backlog[j] <= budget  # (4.1)
    if offload:
        _links(c, slots, o, f, late, spent, backlog)
    model += c.objective
    return model


def _something_happens(problem: MemoryProblem, slot: tuple[int, int], allowed: BoolArray, i: int) -> bool:
    """Whether the slot may read, recompute, or recompute from result i: only then may it arrive there."""
    stages = problem.backward[slot[0] - 1 : slot[1]]
    read = any(i in choice.needs for b in stages for choice in b.implementations)
    return read or bool(allowed[i]) or any(allowed[f.id] and i in f.inputs for f in problem.forward)


def _encoded_results(
    c: _Common,
    s: dict[tuple[int, int], pulp.LpVariable],
    q0: dict[int, pulp.LpVariable],
    backlog: Sequence[pulp.LpVariable],
) -> None:
    """(4.1) for encoded results: computed when kept, with the largest workspace at the least cost."""
    for e in c.V:
        operator = c.problem.forward[e]
        if operator.encodes is None:
            continue
        c.forward_cost[e] += min(c.cost(x) for x in operator.implementations) * s[0, e]
        workspace = max(x.workspace_bytes for x in operator.implementations) / MIB
        taken = s[0, e] * (workspace + c.m[e] + c.live[e])
        if operator.in_place is not None and operator.encodes in q0:
            z = binary(f"z_{e}")
            c.model += z <= s[0, e]
            c.model += z <= q0[operator.encodes]
            c.model += z >= s[0, e] + q0[operator.encodes] - 1
            c.forward_cost[e] += z * c.problem.in_place_cost(operator.in_place)
            taken += z * (operator.in_place.workspace_delta_bytes / MIB)
        c.objective += c.forward_cost[e]
        apart = pulp.lpSum(c.m[i] * s[0, i] for i in range(e) if i not in operator.live_inputs)
        c.model += c.gradients(0) + taken + apart + backlog[e] <= c.budget


def _links(
    c: _Common,
    slots: Groups,
    o: dict[int, pulp.LpVariable],
    f: dict[tuple[int, int], pulp.LpVariable],
    late: dict[tuple[int, int], pulp.LpVariable],
    spent: dict[int, pulp.LpAffineExpression],
    backlog: Sequence[pulp.LpVariable],
) -> None:
    """(O1) to (O3)."""
    link, V = c.problem.host_link, c.V
    assert link is not None
    c.queue(o, backlog)
    if link.capacity_bytes is not None:
        c.model += pulp.lpSum(c.m[i] * o[i] for i in V) <= link.capacity_bytes / MIB  # (O2)
    for h in range(1, len(slots)):
        stall = amount(f"fetch_stall_{h}")
        c.objective += stall
        a, b = slots[h - 1]
        backward = pulp.lpSum(
            c.d[k, n] * x.time_us
            for k in range(a, b + 1)
            for n, x in enumerate(c.problem.backward[k - 1].implementations)
        )
        us_per_mib = MIB / (link.from_host_gbps * 1e3)
        c.objective += us_per_mib * pulp.lpSum(c.m[i] * late[h, i] for i in V)  # (O3)
        needed = us_per_mib * pulp.lpSum(c.m[i] * (f[h, i] - late[h, i]) for i in V)
        c.model += needed <= spent[h - 1] + backward + stall  # (O3)
