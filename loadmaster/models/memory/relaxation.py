r"""The boundary relaxation: a small program whose optimum no plan can beat. It gives proofs, never plans.

Source: MONeT, 003_283bdbbccdcfdb68.txt, section 4.2.2, relaxed: instead of every stage, only the *boundaries* between
groups of backward stages are looked at. What matters most is decided there: the bytes that stand in memory when the
forward pass ends. One group (a single boundary) is solved in a second; more groups prove more, and cost more.

Sets: forward operators i = 0..V-1, backward operators k = 1..K split into groups g = 0..G-1, group g holding the stages
a_g..b_g; D_k^l the needs of implementation l of backward k; L_j the live inputs of forward j; m_i bytes of result i;
M the budget less the bytes fixed at the moment in question.

Variables (binary unless said):
    s[g,i]  result i is on the device when group g starts (g = 0: kept by the forward pass)
    r[g,i]  i is recomputed in group g, at least once
    y0[i,c], y[g,i,c]  with implementation c, where the choice trades noticeable workspace for time; y continuous
    d[k,l]  backward k uses implementation l
    q[i]    forward i runs in place in the forward pass
    o[i], f[g,i]  i is sent to the host; is fetched in group g (only with a host link)
    w[g,i,k], e[g,i], v[k,i]  continuous presences, defined below
    b[j], w[j], p[g]  continuous: bytes waiting for the link when forward j starts; those of them left over when j-1
        ended; bytes of later fetches that have arrived when group g ends (only with a host link)
    stall[j], stall[g]  continuous: waits in microseconds
    u[i,j], z[g,i]  binary: result i, sent, has gone when forward j starts; is under way when the last stage of g runs

Objective: forward + recomputation + backward costs, every recomputation at its cheapest, in-place savings granted;
stalls.

Constraints; each holds for every schedule the checker accepts, so the optimum is a lower bound:
(R1)  r[g,j] <= s[g,i] + r[g,i] (+ f[g,i]) for inputs i of j; r[g,e] <= r[g,parent] for encoded e - `add_dependencies`
(R2)  s[g+1,i] <= s[g,i] + r[g,i] (+ f[g,i]) - `add_carry`
(R3)  d[k,l] <= s[g,i] + r[g,i] (+ f[g,i]) for i in D_k^l; one implementation each - `add_backward_choices`
(R4)  q[j] + s[0,u] <= 1 where running j in place overwrites u; so for later readers e of u, where s[0,e] is 1 for what
      encodes nothing - `_add_forward_pass`
(R5)  forward j: workspace + m_j + |L_j| + sum(m_i s[0,i], i < j, i not in L_j) <= M - `_add_forward_pass`
(R6)  sum(m_i s[g,i]) <= M at the start of group g - `add_group_start`
(R7)  w[g,i,k] >= d-needs of i after k in the group, and s[g+1,i], each less r[g,i] (and f[g,i]): what is wanted later
      and not made again in the group has been there all along - `add_backward_memory`
(R8)  v[k,i] >= needs of i at k, w[g,i,k], and s[g+1,i] at k = b_g - `add_backward_memory`
(R9)  backward k: workspace + gradients + sum(m_i v[k,i] or m_i w[g,i,k]) <= M - `add_backward_memory`
(R10) e[g,i] >= s[g+1,i] - r[g,i], and needs of i at b_g - r[g,i]: there throughout the group - `add_recompute_memory`
(R11) recomputing j: r[g,j] (workspace + m_j + |L_j|) + sum(m_i e[g,i], i not in L_j or j) <= M - `add_recompute_memory`
(R12) in a group of one stage, (R11) has s[g,i] for i > j and s[g+1,i] for i < j, not e - `add_recompute_memory`
(R13) b[j] >= bytes last read by j-1 and sent + w[j] - bandwidth stall[j]; w[j] >= b[j-1] - bandwidth (time of j-1);
      w[j] = 0 where nothing joins the queue; b[V] = 0; f[g,i] <= o[i]; o[i] + s[0,i] <= 1; bytes sent <= host capacity;
      (R5) has b[j] too - `add_queue`, `add_sending`
(R14) bytes f[g] <= p[g-1] + bandwidth (stall[g] + time of group g before its last backward operator; none of that time
      in a group of one stage, which fetches before it recomputes) - `add_fetching`
(R15) bytes f[g] + p[g] <= p[g-1] + bandwidth (time of group g + stall[g]); (R9) of the group's last stage has p[g] too,
      and (R6) and (R12) of a group of one stage - `add_fetching`
(R16) on small graphs results travel whole. u[i,j] <= u[i,j+1] <= o[i]; (R5) has sum(m_i (o[i] - u[i,j])) >= b[j] in
      place of b[j]. z[g,i] <= z[g+1,i] + f[g+1,i]; sum(m_i z[g,i]) >= p[g] stands in its place in the rows above; in a
      group of one stage, sum(m_i max(0, f[g,i] - z[g-1,i])) <= bandwidth stall[g] - `add_whole_results`,
      `add_whole_fetches`
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.memory.forward_queue import ForwardQueue
from loadmaster.models.memory.grouped import Grouped
from loadmaster.models.memory.problem import ForwardOperator, MemoryProblem
from loadmaster.models.memory.reach import MIB, Row, last_uses, least_workspace_bytes, worthwhile
from loadmaster.models.memory.relaxation_links import RelaxedLinks
from loadmaster.solvers.program import IntArray

# A choice of implementation gets variables when it moves at least this share of the budget; below it, the relaxation
# assumes the cheapest time and the least workspace at once, which is still a lower bound.
NOTICEABLE = 0.01


class Relaxation(RelaxedLinks, ForwardQueue, Grouped):
    """The program of one relaxation, and where its decisions stand in it."""

    def __init__(self, problem: MemoryProblem, budget_bytes: int | None, starts: Sequence[int]) -> None:
        """``starts``: first stages of the groups. Without a budget, the program minimizes the budget itself."""
        super().__init__(problem, budget_bytes, starts, NOTICEABLE)
        self.queues = problem.may_offload
        self._add_columns(last_uses(problem))
        if self.queues:
            self.add_link_columns()
        self.add_dependencies()
        self.add_carry()
        self.add_backward_choices()
        self._add_forward_pass()
        for g in range(len(self.groups)):
            self.add_group_start(g)
            self.add_backward_memory(g)
            self.add_recompute_memory(g)
        if self.queues:
            self.add_sending()
            self.add_fetching()
        self.program = self._build()

    # -- variables ---------------------------------------------------------------------------------------------------

    def _add_columns(self, last: IntArray) -> None:
        p = self.problem
        starts = np.array([a for a, _ in self.groups])
        matters = last[None, :] >= starts[:, None]
        recomputable = np.array([f.recomputable for f in p.forward])
        self.stored = self._cells("stored", matters)
        self.recompute = self._cells("recompute", matters & recomputable)
        sendable = np.array([p.may_offload and f.offloadable for f in p.forward]) & matters[0]
        self.offload = self._cells("offload", sendable)
        self.fetch = self._cells("fetch", matters & sendable[None, :])
        self._recompute_choices: dict[tuple[int, int], Row] = {}
        self.spent: list[Row] = [Row() for _ in self.groups]
        for g, i in zip(*np.nonzero(self.recompute >= 0), strict=True):
            f = p.forward[i]
            choices = [c for _, c in worthwhile(p, f.recompute_implementations, self._noticeable_bytes)]
            saving = min(0.0, p.in_place_cost(f.in_place)) if f.in_place is not None else 0.0
            cheapest = p.cost(choices[0])
            cost = self.spent[g].also(int(self.recompute[g, i]), max(0.0, cheapest + saving))
            if len(choices) > 1:
                columns = self.builder.columns("recompute_choice", len(choices), upper=1.0)
                used = Row()
                for column, choice in zip(columns, choices, strict=True):
                    cost.also(int(column), p.cost(choice) - cheapest)
                    used.also(int(column), choice.workspace_bytes / MIB)
                self._recompute_choices[int(g), int(i)] = used
                chosen = Row({int(c): 1.0 for c in columns}).also(int(self.recompute[g, i]), -1.0)
                self._eq("recompute_choice", chosen)
        for spent in self.spent:
            self._objective.plus(spent)

    def _available(self, g: int, i: int, factor: float = -1.0) -> Row:
        """factor x (s + r + f) of result i in group g."""
        row = Row()
        for cells in (self.stored, self.recompute, self.fetch):
            if cells[g, i] >= 0:
                row.also(int(cells[g, i]), factor)
        return row

    def _made_again(self, g: int, i: int) -> Row:
        """r + f of result i in group g."""
        row = Row()
        for cells in (self.recompute, self.fetch):
            if cells[g, i] >= 0:
                row.also(int(cells[g, i]))
        return row

    def _later(self, g: int, i: int) -> Row:
        """s of result i at the end of group g; empty after the last group."""
        if g + 1 < len(self.groups) and self.stored[g + 1, i] >= 0:
            return Row({int(self.stored[g + 1, i]): 1.0})
        return Row()

    # -- constraints -------------------------------------------------------------------------------------------------

    def add_dependencies(self) -> None:
        """(R1): inputs of what is recomputed are there or recomputed too."""
        for g, j in zip(*np.nonzero(self.recompute >= 0), strict=True):
            f = self.problem.forward[j]
            for i in f.inputs:
                self._le("dependency", Row({int(self.recompute[g, j]): 1.0}).plus(self._available(g, i)), 0.0)
            if f.encodes is not None:
                parent = int(self.recompute[g, f.encodes])
                row = Row({int(self.recompute[g, j]): 1.0})
                self._le("encoded", row.also(parent, -1.0) if parent >= 0 else row, 0.0)

    def add_carry(self) -> None:
        """(R2): only what is there can be carried on."""
        for g in range(len(self.groups) - 1):
            for i in map(int, np.flatnonzero(self.stored[g + 1] >= 0)):
                self._le("carry", self._later(g, i).plus(self._available(g, i)), 0.0)

    def add_backward_choices(self) -> None:
        """(R3): each backward operator uses one implementation, whose needs are there."""
        self._choose_backward()
        for g, (a, b) in enumerate(self.groups):
            for k in range(a, b + 1):
                for i in self._wanted(k):
                    self._le("need", Row(self._needs[k, i]).plus(self._available(g, i)), 0.0)

    def _keep_encoded(self, f: ForwardOperator, before: Row, taken: float) -> None:
        """An encoded result that is kept has been computed in the forward pass; its bytes there are ignored."""
        if self.stored[0, f.id] >= 0:
            saving = min(0.0, self.problem.in_place_cost(f.in_place)) if f.in_place is not None else 0.0
            cheapest = min(self.problem.cost(c) for c in f.implementations)
            cost = Row({int(self.stored[0, f.id]): max(0.0, cheapest + saving)})
            self.forward_cost[f.id] = cost, 0.0
            self._objective.plus(cost)

    def add_group_start(self, g: int) -> None:
        """(R6): what stands in memory when a group starts."""
        a, _ = self.groups[g]
        row = Row({int(c): self.sizes[i] for i, c in enumerate(self.stored[g]) if c >= 0})
        self._fits("group_start", row.plus(self._on_the_way(g, a)), self.problem.gradient_bytes(a) / MIB)

    def add_backward_memory(self, g: int) -> None:
        """(R7) to (R9): backward operators, with what must be there beside their own needs."""
        a, b = self.groups[g]
        carried = [i for i in range(self.count) if self._later(g, i)]
        lasting: dict[int, int] = {}
        for k in range(b, a - 1, -1):
            operator = self.problem.backward[k - 1]
            row = self._on_the_way(g, k)
            wanted = self._wanted(k)
            for i in {*wanted, *lasting, *carried}:
                if i in wanted:
                    present = self._presence("present")
                    self._le("present", Row(self._needs[k, i]).also(present, -1.0), 0.0)
                    if k == b and self._later(g, i):
                        self._le("present", self._later(g, i).also(present, -1.0), 0.0)
                    elif k < b and (i in lasting or self._later(g, i)):
                        self._le("present", Row({self._lasting(g, i, lasting): 1.0, present: -1.0}), 0.0)
                    row.also(present, self.sizes[i])
                elif k == b:
                    row.plus(self._later(g, i), self.sizes[i])
                else:
                    row.also(self._lasting(g, i, lasting), self.sizes[i])
            for column, choice in zip(self.backward[k - 1], operator.implementations, strict=True):
                row.also(int(column), choice.workspace_bytes / MIB)
            self._fits("backward", row, (operator.live_bytes + operator.fixed_bytes + operator.output_bytes) / MIB)
            for i in wanted if k > a else ():
                column = self._presence("lasting")
                self._not_made_again("lasting", g, i, self._needs[k, i], column)
                if i in lasting:
                    self._le("lasting", Row({lasting[i]: 1.0, column: -1.0}), 0.0)
                elif self._later(g, i):
                    self._not_made_again("lasting", g, i, self._later(g, i), column)
                lasting[i] = column

    def _lasting(self, g: int, i: int, lasting: dict[int, int]) -> int:
        """w of (R7) for a result that is only carried to the group's end."""
        if i not in lasting:
            lasting[i] = self._presence("lasting")
            self._not_made_again("lasting", g, i, self._later(g, i), lasting[i])
        return lasting[i]

    def _not_made_again(self, name: str, g: int, i: int, wanted: Row, column: int) -> None:
        """column >= wanted - (r + f): wanted later and not made again, so there all along."""
        self._le(name, Row(wanted).plus(self._made_again(g, i), -1.0).also(column, -1.0), 0.0)

    def add_recompute_memory(self, g: int) -> None:
        """(R10) to (R12): what must be there while j is recomputed in the group."""
        a, b = self.groups[g]
        last = self._wanted(b)
        through = Row() if a == b else self._throughout(g, last)
        total = -1
        if through:
            total = int(self.builder.columns("throughout_bytes", 1)[0])
            row = Row({total: 1.0})
            for i, column in through.items():
                row.also(int(column), -self.sizes[i])
            self._eq("throughout_bytes", row)
        gradients = min(self.problem.gradient_bytes(k) for k in range(a, b + 1)) / MIB
        for j in np.flatnonzero(self.recompute[g] >= 0):
            f = self.problem.forward[j]
            held = self.sizes[j] + f.live_bytes / MIB
            if f.in_place is not None:
                held += min(0.0, f.in_place.workspace_delta_bytes / MIB)
            row = Row(self._recompute_choices.get((g, int(j)), {}))
            if not row:
                held += least_workspace_bytes(f.recompute_implementations) / MIB
            row.also(int(self.recompute[g, j]), held)
            live = set(f.live_inputs)
            if a == b:
                row.plus(self._on_the_way(g, a))
                for i in range(self.count):
                    if i > j and self.stored[g, i] >= 0:
                        row.also(int(self.stored[g, i]), self.sizes[i])
                    elif i < j and i not in live:
                        row.plus(self._later(g, i), self.sizes[i])
            elif through:
                row.also(total)
                for i in live | {int(j)}:
                    if i in through:
                        row.also(int(through[i]), -self.sizes[i])
            self._fits("recompute", row, gradients)

    def _throughout(self, g: int, last: Sequence[int]) -> Row:
        """e of (R10), as result -> column."""
        through = Row()
        for i in range(self.count):
            if i in last or self._later(g, i):
                column = self._presence("throughout")
                through[i] = column
                if self._later(g, i):
                    self._not_made_again("throughout", g, i, self._later(g, i), column)
                if i in last:
                    self._not_made_again("throughout", g, i, self._needs[self.groups[g][1], i], column)
        return through
