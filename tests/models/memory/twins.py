"""The formulations once more, written out in PuLP: the readable statement that the arrays are held against.

Nothing is shared with them: no implementation is left out, no column fixed, every sum is written where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulp

from loadmaster.models.memory.problem import MemoryProblem


def binary(name: str) -> pulp.LpVariable:
    return pulp.LpVariable(name, cat="Binary")


def monet_twin(problem: MemoryProblem, budget_bytes: int) -> pulp.LpProblem:
    """MONeT, [Shah23] equations 4.7 to 4.16, with the accounting of the published schedules."""
    forward, backward, m = problem.forward, problem.backward, [int(b) for b in problem.output_bytes]
    T, V = range(problem.stage_count), range(len(problem.forward))
    model = pulp.LpProblem("monet", pulp.LpMinimize)
    r = {(t, i): binary(f"r_{t}_{i}") for t in T for i in V}
    p = {(t, i): binary(f"p_{t}_{i}") for t in T for i in V}
    s = {(t, i): binary(f"s_{t}_{i}") for t in range(len(T) + 1) for i in V}  # stored when stage t starts
    options = {(t, i): forward[i].recompute_implementations if t else forward[i].implementations for t in T for i in V}
    d = {(t, i, n): binary(f"d_{t}_{i}_{n}") for (t, i), offered in options.items() for n in range(len(offered))}
    h = {(b.id, n): binary(f"h_{b.id}_{n}") for b in backward for n in range(len(b.implementations))}
    own = [i for i in V if forward[i].in_place is not None and forward[i].encodes is None]
    beside = [i for i in V if forward[i].in_place is not None and forward[i].encodes is not None]
    q = {(t, i): binary(f"q_{t}_{i}") for t in T for i in own + beside}
    # Product of a chosen backward implementation and a need that is not kept.
    a = {(k, n, i): binary(f"a_{k}_{n}_{i}") for k, n in h for i in backward[k - 1].implementations[n].needs}

    def workspace(t: int, i: int) -> pulp.LpAffineExpression:
        total = pulp.lpSum(d[t, i, n] * c.workspace_bytes for n, c in enumerate(options[t, i]))
        return total + (forward[i].in_place.workspace_delta_bytes * q[t, i] if forward[i].in_place else 0)

    def needed(t: int, below: int) -> pulp.LpAffineExpression:
        """Needs of backward t that are not kept, of results before ``below``."""
        return pulp.lpSum(m[i] * a[k, n, i] for k, n, i in a if k == t and i < below)

    # The objective, equation 4.9.
    model += (
        pulp.lpSum(problem.cost(options[t, i][n]) * d[t, i, n] for t, i, n in d)
        + pulp.lpSum(problem.in_place_cost(forward[i].in_place) * q[t, i] for t, i in q)
        + pulp.lpSum(problem.cost(backward[k - 1].implementations[n]) * h[k, n] for k, n in h)
    )
    for i in V:
        model += s[0, i] == 0
        if forward[i].encodes is None:
            model += r[0, i] == 1
    for t in T:
        for j in V:
            if t > 0 and not forward[j].recomputable:
                model += r[t, j] == 0
            for i in forward[j].inputs:
                model += r[t, j] <= s[t, i] + r[t, i]  # (4.7)
            model += s[t + 1, j] <= s[t, j] + p[t, j]  # (4.7)
            model += p[t, j] <= r[t, j]  # (4.11)
            model += pulp.lpSum(d[t, j, n] for n in range(len(options[t, j]))) == r[t, j]
            if forward[j].encodes is not None:
                model += r[t, j] <= r[t, forward[j].encodes]
        for j in own:
            i = forward[j].in_place.overwrites
            model += q[t, j] <= r[t, j]  # (4.11)
            model += p[t, i] <= 2 - 2 * q[t, j]  # (4.10)
            model += s[t + 1, i] <= 2 - 2 * q[t, j]  # (4.10)
            for reader in V:
                if reader > j and i in forward[reader].inputs:
                    model += r[t, reader] <= 1 - q[t, j]
        for e in beside:  # encoded beside a parent in place: a product, linear as in section 4.3.4
            parent = forward[e].encodes
            model += q[t, e] >= r[t, e] + q[t, parent] - 1
            model += q[t, e] <= r[t, e]
            model += q[t, e] <= q[t, parent]
    for b in backward:
        model += pulp.lpSum(h[b.id, n] for n in range(len(b.implementations))) == 1
        for n, c in enumerate(b.implementations):
            for i in c.needs:
                model += s[b.id + 1, i] + p[b.id, i] >= h[b.id, n]  # (4.8)
                model += a[b.id, n, i] >= h[b.id, n] - s[b.id + 1, i]  # section 4.3.4
                model += a[b.id, n, i] <= h[b.id, n]
                model += a[b.id, n, i] <= 1 - s[b.id + 1, i]
    for t in T:
        gradients = problem.gradient_bytes(t)
        for j in V:
            kept_before = {i: m[i] * s[t + 1, i] for i in range(j)}
            stored_after = [m[i] * s[t, i] for i in range(j + 1, len(V))]
            model += (  # (4.15)
                gradients + m[j] * s[t, j] + pulp.lpSum(stored_after) + pulp.lpSum(kept_before.values()) + needed(t, j)
                <= budget_bytes
            )
            apart = [kept_before[i] for i in range(j) if i not in forward[j].live_inputs]
            model += (  # (4.14)
                gradients
                + workspace(t, j)
                + r[t, j] * (m[j] + forward[j].live_bytes)
                + pulp.lpSum(stored_after)
                + pulp.lpSum(apart)
                + needed(t, j)
                <= budget_bytes
            )
    for b in backward:  # (4.12)
        chosen = pulp.lpSum(h[b.id, n] * c.workspace_bytes for n, c in enumerate(b.implementations))
        kept = pulp.lpSum(m[i] * s[b.id + 1, i] for i in V)
        model += chosen + b.live_bytes + b.fixed_bytes + b.output_bytes + kept + needed(b.id, len(V)) <= budget_bytes
    return model


def checkmate_twin(problem: MemoryProblem, budget_bytes: int, ways: Sequence[int]) -> pulp.LpProblem:
    """Checkmate's equations 1 to 7 for given backward implementations, counting live inputs and needs as here.

    FREE is written as what it says: x[t,i,j] holds if result i is on the device while j runs in stage t (j = V: while
    backward t does). It goes after its last use in the stage unless it is kept; what nobody uses there stays.
    What backward t reads from storage and nobody wants later lingers in stage t+1, until that has passed its operator.
    A stored result that is recomputed takes its room twice (equation 3).
    """
    forward, backward, m = problem.forward, problem.backward, [int(b) for b in problem.output_bytes]
    chosen = [b.implementations[n] for b, n in zip(backward, ways, strict=True)]
    read = {i for c in chosen for i in c.needs}
    T, end = range(problem.stage_count), len(forward)
    V = [f.id for f in forward if f.encodes is None or f.id in read]
    users = {i: [j for j in V if i in forward[j].inputs] for i in V}
    model = pulp.LpProblem("checkmate", pulp.LpMinimize)
    r = {(t, i): binary(f"r_{t}_{i}") for t in T for i in V}
    s = {(t, i): binary(f"s_{t}_{i}") for t in range(len(T) + 1) for i in V}
    x = {(t, i, j): binary(f"x_{t}_{i}_{j}") for t in T for i in V for j in (*V, end)}
    e = {(t, i): binary(f"e_{t}_{i}") for t in range(len(T) + 1) for i in V}
    twice = {(t, i): binary(f"twice_{t}_{i}") for t in T for i in V}
    fastest = {
        (t, i): min(forward[i].recompute_implementations if t else forward[i].implementations, key=problem.cost)
        for t in T
        for i in V
    }
    model += pulp.lpSum(problem.cost(fastest[key]) * r[key] for key in r) + sum(problem.cost(c) for c in chosen)
    for i in V:
        model += r[0, i] == 1
        model += s[0, i] == 0
    for t in T:
        needs = chosen[t - 1].needs if t else ()
        for j in V:
            for i in forward[j].inputs:
                model += r[t, j] <= s[t, i] + r[t, i]
            model += s[t + 1, j] <= s[t, j] + r[t, j]
            model += twice[t, j] >= s[t, j] + r[t, j] - 1
            if forward[j].encodes is not None:
                model += r[t, j] <= r[t, forward[j].encodes]
            if t > 0 and not forward[j].recomputable:
                model += r[t, j] == 0
            if j in needs:
                model += s[t, j] + r[t, j] >= 1
                model += s[t + 1, j] + r[t, j] + e[t + 1, j] >= 1
        for t_, i, j in x:
            if t_ != t:
                continue
            if i >= j:
                model += x[t, i, j] >= s[t, i]
            if i == j:
                model += x[t, i, j] >= r[t, i]
            if i < j:
                model += x[t, i, j] >= s[t + 1, i]
                model += x[t, i, j] >= s[t, i] - pulp.lpSum(r[t, n] for n in (i, *users[i]) if n < j)
                for n in users[i]:
                    if n >= j:
                        model += x[t, i, j] >= r[t, n]
                if i in needs:
                    model += x[t, i, j] == 1
        gradients = problem.gradient_bytes(t)
        for j in V:
            lingering = pulp.lpSum(m[i] * e[t, i] for i in V if i >= j)
            space = gradients + fastest[t, j].workspace_bytes * r[t, j] + lingering
            present = {i: m[i] * (x[t, i, j] + (twice[t, i] if i <= j else 0)) for i in V}
            model += space + pulp.lpSum(present.values()) <= budget_bytes
            apart = pulp.lpSum(present[i] for i in V if i not in forward[j].live_inputs)
            model += space + apart + forward[j].live_bytes * r[t, j] <= budget_bytes
        if t > 0:
            b, workspace = backward[t - 1], chosen[t - 1].workspace_bytes
            at_the_end = pulp.lpSum(m[i] * (x[t, i, end] + twice[t, i]) for i in V)
            model += workspace + b.live_bytes + b.fixed_bytes + b.output_bytes + at_the_end <= budget_bytes
    return model
