r"""The banded restriction: MONeT with recomputation only at the start of *slots*, near where results are read.

Source: MONeT, 003_283bdbbccdcfdb68.txt, equations 4.7 to 4.16, restricted; with offload after SSDTrain's
recompute-offload-keep. Every point is a plan, so its optimum is an upper bound; its own bound proves nothing.

Sets: as in :mod:`relaxation`; the groups are here called slots h = 0..H-1, slot h holding the stages a_h..b_h. Slot h
may recompute the results of a *band* (:mod:`bands`), all at the start of its first stage.

Variables (binary unless said):
    s[h,i]  result i is on the device when slot h starts; one column until something can happen to i, then continuous
    r[h,i], y[h,i,c], q[h,i]  slot h recomputes i, with implementation c, in place
    d[k,l], y0[i,c], q0[i]    backward implementation; forward implementation, in place
    z[i], z[h,i]  continuous: encoded result i is computed beside a parent that runs in place (section 4.3.4)
    v[k,i]  continuous: i is present while stage k runs, because k or a later stage of the slot reads it, or s[h+1,i]
    e[h,i]  slot h keeps i, which its first stage reads, beyond that stage: counted once there where live, else twice
    x[h,n]  continuous: bytes just before the n-th result whose presence changes while slot h recomputes
    o[i], f[h,i]  i is sent to the host; arrives when slot h starts, on its way during slot h-1
    g[h,i]  f[h,i], but on its way only when slot h starts, which waits for it (on small graphs)
    b[j], w[j]  continuous: bytes waiting for the link when forward j starts; those of them left over when j-1 ended
    stall[j], stall[h]  continuous: waits in microseconds

Objective: forward + recomputation + backward costs + stalls (4.9).

Constraints:
(4.7)   r[h,j] <= s[h,i] + r[h,i] + f[h,i] for inputs i of j; r[h,e] <= r[h,parent] for encoded e - `add_dependencies`
(4.7b)  s[h+1,i] <= s[h,i] + r[h,i] + f[h,i] - `add_presence`
(4.8)   v[k,i] >= needs at k, v[k+1,i]; v[b_h,i] >= s[h+1,i]; v[a_h,i] <= s + r + f - `add_presence`
(4.8b)  what the last stage of a slot reads from storage is stored into the next - `add_presence`
(4.10)  where running j in place overwrites u: q[h,j] <= r[h,j]; q[h,j] + v[a_h,u] <= 1; q[h,j] + r[h,n] <= 1 for later
        readers n of u; in the forward pass likewise, with s[0,u] and s[0,n] (1 if n encodes nothing) - `add_in_place`
(4.8c)  e[h,i] <= v[a_h + 1,i], s[h+1,i] in a slot of one stage; e is that itself if binary - `add_recompute_memory`
(4.14)  slot h recomputes j: workspace + r (m_j + |L_j|) + bytes elsewhere <= M - `add_recompute_memory`
(4.15)  x follows the bytes from result to result; x <= M - `add_levels`
(4.12)  backward k: workspace + gradients + sum(m_i v[k,i]) <= M - `add_backward_memory`
(4.1)   forward j: workspace + m_j + |L_j| + kept before + b[j] <= M - `_add_forward_pass`
(O1)    b[j] >= bytes last read by j-1 and sent + w - bandwidth stall[j]; w >= b[j-1] - bandwidth (time of j-1);
        w = 0 where nothing joins the queue; b[V] = 0 - `add_queue`
(O2)    o[i] + s[0,i] <= 1; f[h,i] <= o[i]; bytes sent <= host capacity; what is overwritten is not sent - `add_sending`
(O3)    g[h,i] <= f[h,i]; bytes f[h] - g[h] take no longer than slot h-1 and stall[h], and stand in memory there (4.15);
        bytes g[h] cost their time - `add_fetching`
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from loadmaster.models.memory.banded_offload import BandedOffload
from loadmaster.models.memory.banded_points import BandedPoints
from loadmaster.models.memory.bands import BoolArray, slots_of_stages
from loadmaster.models.memory.forward_queue import ForwardQueue
from loadmaster.models.memory.grouped import Grouped
from loadmaster.models.memory.problem import ForwardOperator, MemoryProblem
from loadmaster.models.memory.reach import MIB, Row, direct_uses, least_workspace_bytes, term, worthwhile
from loadmaster.solvers.program import IntArray

# A choice of implementation gets columns when it moves at least this share of the budget in workspace; below it the
# least workspace is assumed here, and the cheapest that fits is taken afterwards (:mod:`completion`).
NOTICEABLE = 0.002
# At most so many implementations of a recomputation get columns: cheapest, middle of the front, least workspace.
CHOICES = 3
# Tensors below this share of the budget are not worth the link.
WORTH_SENDING = 0.002
# Kept off the budget so that solver tolerances (1e-6 of a MiB and row) never cost a byte.
MARGIN_MIB = 1e-4


class Banded(BandedOffload, BandedPoints, ForwardQueue, Grouped):
    """The program of one restriction, and the way back from its points to decisions."""

    def __init__(
        self,
        problem: MemoryProblem,
        budget_bytes: int | None,
        starts: Sequence[int],
        allowed: BoolArray,
        *,
        offload: bool,
        to_the_byte: bool = False,
    ) -> None:
        """
        Args:
            budget_bytes: None to minimize it, whatever the time.
            starts: first stages of the slots.
            allowed: [slots, V], which recomputations are considered.
            offload: whether results may travel to the host (needs a host link and a time objective).
            to_the_byte: nothing is kept off the budget: solver tolerances may cost a byte too many.
        """
        super().__init__(problem, budget_bytes, starts, NOTICEABLE)
        self.budget -= 0.0 if to_the_byte or budget_bytes is None else MARGIN_MIB
        self.allowed = allowed
        self.queues = offload and problem.may_offload
        self._slot = slots_of_stages(self.groups)
        self._add_columns()
        self._choose_backward()
        if self.queues:
            self.add_queue_columns(whole=False)
        self._add_forward_pass()
        if self.queues:
            self.add_queue()
            self.add_sending()
        for h in range(len(self.groups)):
            self.add_dependencies(h)
            presence = self.add_presence(h)
            self.add_in_place(h, presence)
            level = self.add_levels(h, presence)
            self.add_recompute_memory(h, presence, level)
            self.add_backward_memory(h, presence, level)
            if self.queues and h > 0:
                self.add_fetching(h)
        self.program = self._build()

    # -- variables ---------------------------------------------------------------------------------------------------

    def _add_columns(self) -> None:
        p, slots = self.problem, len(self.groups)
        self._read_in = [{self._slot[k] for k in stages} for stages in direct_uses(p)]
        events: list[set[int]] = [set(slots_) for slots_ in self._read_in]
        for h, i in zip(*np.nonzero(self.allowed), strict=True):
            events[i].add(int(h))
            for u in p.forward[i].inputs:
                events[u].add(int(h))
        self.offload = self._cells("offload", self._sendable(events))
        self.fetch = self._fetches(events)
        self.add_late_columns()
        self.stored = np.full((slots + 1, self.count), -1, dtype=np.int64)
        for i, when in enumerate(events):
            self._add_storage(i, when)
        self.recompute = self._cells("recompute", self.allowed)
        self.recompute_in_place = np.full((slots, self.count), -1, dtype=np.int64)
        self._encoded_in_place = np.full((slots, self.count), -1, dtype=np.int64)
        self.recompute_choices: dict[tuple[int, int], tuple[IntArray, tuple[int, ...]]] = {}
        self._spent: list[Row] = [Row() for _ in range(slots)]
        self._keep_columns: set[int] = set()  # columns of e
        # For each slot, of what its first stage's backward reads: whether that stage keeps it.
        self._kept: list[dict[int, Row]] = []
        for h, i in zip(*np.nonzero(self.allowed), strict=True):
            self._add_recompute(int(h), int(i))

    def _sendable(self, events: list[set[int]]) -> BoolArray:
        # Encoded results are small, and computed only when kept: those stay here.
        large = self.sizes >= WORTH_SENDING * self.budget
        travels = [f.offloadable and f.encodes is None and bool(events[f.id]) for f in self.problem.forward]
        return np.array(travels) & large & self.queues

    def _fetches(self, events: list[set[int]]) -> IntArray:
        """A fetch may arrive at any slot where something can happen to the result, but the first."""
        mask = np.zeros((len(self.groups), self.count), dtype=bool)
        for i in np.flatnonzero(self.offload >= 0):
            mask[[h for h in events[i] if h > 0], i] = True
        return self._cells("fetch", mask)

    def _add_storage(self, i: int, events: set[int]) -> None:
        """One column of s for result i from event to event; after the last one only if (4.8b) asks for it."""
        if not events:
            return
        last = max(events)
        column = int(self.builder.columns("stored", 1, upper=1.0, integer=True)[0])
        for h in range(len(self.groups)):
            before = h - 1
            if before in events and before != last:
                column = int(self.builder.columns("stored", 1, upper=1.0, integer=True)[0])
            elif before == last:
                column = self._presence("stored") if before in self._read_in[i] else -1
            elif before > last:
                column = -1
            self.stored[h, i] = column

    def _add_recompute(self, h: int, i: int) -> None:
        f = self.problem.forward[i]
        recompute = int(self.recompute[h, i])
        choices = worthwhile(self.problem, f.recompute_implementations, self._noticeable_bytes)
        if len(choices) > CHOICES:
            choices = [choices[0], choices[len(choices) // 2], choices[-1]]
        cheapest = self.problem.cost(choices[0][1])
        self._spend(h, recompute, cheapest)
        if len(choices) > 1:
            columns = self.builder.columns("recompute_choice", len(choices), upper=1.0, integer=True)
            self._eq("recompute_choice", Row({int(c): 1.0 for c in columns}).also(recompute, -1.0))
            self.recompute_choices[h, i] = (columns, tuple(c for c, _ in choices))
            for column, (_, choice) in zip(columns, choices, strict=True):
                self._spend(h, int(column), self.problem.cost(choice) - cheapest)
        if f.in_place is None:
            return
        if f.encodes is None:
            column = int(self.builder.columns("recompute_in_place", 1, upper=1.0, integer=True)[0])
            self.recompute_in_place[h, i] = column
        elif self.recompute_in_place[h, f.encodes] >= 0:
            column = self._both("encoded_in_place", recompute, int(self.recompute_in_place[h, f.encodes]))
            self._encoded_in_place[h, i] = column
        else:
            return
        self._spend(h, column, self.problem.in_place_cost(f.in_place))

    def _both(self, name: str, first: int, second: int) -> int:
        """A column that is the product of two binary ones."""
        both = self._presence(name)
        self._le(name, Row({both: 1.0, first: -1.0}), 0.0)
        self._le(name, Row({both: 1.0, second: -1.0}), 0.0)
        self._le(name, Row({both: -1.0, first: 1.0, second: 1.0}), 1.0)
        return both

    def _spend(self, h: int, column: int, cost: float) -> None:
        self._cost(column, cost)
        self._spent[h].also(column, cost)

    def _s(self, h: int, i: int) -> Row:
        return term(self.stored, h, i) if h < len(self.groups) else Row()

    def _arriving(self, h: int, i: int) -> Row:
        return term(self.fetch, h, i) if h < len(self.groups) else Row()

    def _on_device(self, h: int, i: int) -> Row:
        """s + f: there when slot h starts."""
        return self._s(h, i).plus(self._arriving(h, i))

    # -- the forward pass ----------------------------------------------------------------------------------------------

    def _keep_encoded(self, f: ForwardOperator, before: Row, taken: float) -> None:
        """(4.1) for an encoded result: computed exactly when kept, in place exactly when its parent is."""
        kept = int(self.stored[0, f.id])
        if kept < 0:
            return
        cost = Row({kept: min(self.problem.cost(c) for c in f.implementations)})
        workspace = max(c.workspace_bytes for c in f.implementations) / MIB
        parent = int(self.in_place[f.encodes]) if f.encodes is not None else -1
        if f.in_place is not None and parent >= 0:
            both = self._both("encoded_in_place", kept, parent)
            cost.also(both, self.problem.in_place_cost(f.in_place))
            before.also(both, f.in_place.workspace_delta_bytes / MIB)
        self.forward_cost[f.id] = cost, 0.0
        self._objective.plus(cost)
        gradients = self.problem.gradient_bytes(0) / MIB
        self._fits("forward_encoded", before.also(kept, workspace + taken - gradients), gradients)

    def _survives(self, i: int) -> Row:
        return self._s(0, i).plus(term(self.offload, i))

    # -- slots ---------------------------------------------------------------------------------------------------------

    def add_dependencies(self, h: int) -> None:
        """(4.7): inputs of what is recomputed are there, arrive, or are recomputed too."""
        for j in map(int, np.flatnonzero(self.allowed[h])):
            f = self.problem.forward[j]
            for i in f.inputs:
                have = self._on_device(h, i).plus(term(self.recompute, h, i))
                self._le("dependency", term(self.recompute, h, j).plus(have, -1.0), 0.0)
            if f.encodes is not None:
                parent = term(self.recompute, h, f.encodes)
                self._le("encoded", term(self.recompute, h, j).plus(parent, -1.0), 0.0)

    def add_presence(self, h: int) -> dict[int, list[Row]]:
        """(4.7b), (4.8): v, as rows [V] for each stage of the slot."""
        a, b = self.groups[h]
        current = [self._s(h + 1, i) for i in range(self.count)]
        for i, later in enumerate(current):
            if later and later != self._s(h, i):
                have = self._on_device(h, i).plus(term(self.recompute, h, i))
                self._le("carry", Row(later).plus(have, -1.0), 0.0)
        presence: dict[int, list[Row]] = {}
        touched: set[int] = set()
        for k in range(b, a - 1, -1):
            for i in self._wanted(k):
                touched.add(i)
                needs = self._needs[k, i]
                if current[i]:
                    column = Row({self._presence("present"): 1.0})
                    self._le("present", Row(needs).plus(column, -1.0), 0.0)
                    self._le("present", Row(current[i]).plus(column, -1.0), 0.0)
                    current[i] = column
                else:
                    current[i] = Row(needs)
            presence[k] = list(current)
        for i in touched:
            have = self._on_device(h, i).plus(term(self.recompute, h, i))
            self._le("available", Row(presence[a][i]).plus(have, -1.0), 0.0)
        for i in self._wanted(b):
            if self._s(h + 1, i):
                made_here = term(self.recompute, h, i) if a == b else Row()
                row = Row(self._needs[b, i]).plus(self._s(h + 1, i), -1.0).plus(made_here, -1.0)
                self._le("stored_through", row, 0.0)
        return presence

    def add_in_place(self, h: int, presence: dict[int, list[Row]]) -> None:
        """(4.10): what is overwritten is not present any more."""
        for j in map(int, np.flatnonzero(self.recompute_in_place[h] >= 0)):
            in_place = self.problem.forward[j].in_place
            assert in_place is not None
            inside = term(self.recompute_in_place, h, j)
            self._le("in_place", Row(inside).plus(term(self.recompute, h, j), -1.0), 0.0)
            row = inside.plus(presence[self.groups[h][0]][in_place.overwrites])
            self._le("in_place", row, 1.0)
            for reader in self.problem.consumers[in_place.overwrites]:
                if reader > j and self.recompute[h, reader] >= 0:
                    self._le(
                        "in_place",
                        Row(term(self.recompute_in_place, h, j)).plus(term(self.recompute, h, reader)),
                        1.0,
                    )

    def add_levels(self, h: int, presence: dict[int, list[Row]]) -> _Level:
        """(4.15): the bytes just before each result, as a chain from one changing result to the next.

        What is stored and stays alike throughout the slot's recomputation is summed once, so that rows stay short.
        """
        a, _ = self.groups[h]
        taken = self.problem.gradient_bytes(a) / MIB
        after = presence[a]
        changing = [
            i for i in range(self.count) if (self._on_device(h, i) or after[i]) and self._on_device(h, i) != after[i]
        ]
        first = Row()
        for i in range(self.count):
            first.plus(self._on_device(h, i), self.sizes[i])
            first.plus(self.on_its_way(h + 1, i), self.sizes[i])
        columns = [self._level_column("level", first, taken)]
        for i in changing:
            change = Row(after[i]).plus(self._on_device(h, i), -1.0)
            step = Row({columns[-1]: 1.0}).plus(change, self.sizes[i])
            columns.append(self._level_column("level", step, taken))
        return _Level(changing, columns)

    def _level_column(self, name: str, equals: Row, taken: float) -> int:
        """A column that equals a row, with room for ``taken`` beside it under the budget."""
        room = self.budget - taken
        column = int(self.builder.columns(name, 1, upper=np.inf if self._free else max(room, 0.0))[0])
        if self._free or room < 0:
            self._fits("room", Row({column: 1.0}), taken)
        self._eq(name, Row(equals).also(column, -1.0))
        return column

    def add_recompute_memory(self, h: int, presence: dict[int, list[Row]], level: _Level) -> None:
        """(4.14): each recomputation at the start of the slot."""
        a, b = self.groups[h]
        gradients = self.problem.gradient_bytes(a) / MIB
        wanted = set(self._wanted(a))
        live = {i for j in np.flatnonzero(self.allowed[h]) for i in self.problem.forward[int(j)].live_inputs}
        later = presence[a + 1] if a < b else [self._s(h + 1, i) for i in range(self.count)]
        self._kept.append({i: self._keeps(later[i]) if i in live else later[i] for i in wanted})
        for j in map(int, np.flatnonzero(self.allowed[h])):
            f = self.problem.forward[j]
            row = Row({level.before(j): 1.0}).plus(self._on_device(h, j), -self.sizes[j])
            for i in f.live_inputs:
                row.plus(self._kept[h].get(i, presence[a][i]), -self.sizes[i])
            held = self.sizes[j] + f.live_bytes / MIB
            if (h, j) in self.recompute_choices:
                columns, numbers = self.recompute_choices[h, j]
                for column, number in zip(columns, numbers, strict=True):
                    row.also(int(column), f.recompute_implementations[number].workspace_bytes / MIB)
            else:
                held += least_workspace_bytes(f.recompute_implementations) / MIB
            if f.in_place is not None:
                inside = term(self.recompute_in_place, h, j).plus(term(self._encoded_in_place, h, j))
                row.plus(inside, f.in_place.workspace_delta_bytes / MIB)
            self._fits("recompute", row.plus(term(self.recompute, h, j), held), gradients)

    def _keeps(self, later: Row) -> Row:
        """Whether the first stage of a slot keeps a result that it reads: whole, or not at all."""
        if not self._presences & later.keys():
            return later  # binary as it stands
        column = int(self.builder.columns("kept", 1, upper=1.0, integer=True)[0])
        self._le("kept", Row({column: 1.0}).plus(later, -1.0), 0.0)
        self._keep_columns.add(column)
        return Row({column: 1.0})

    def add_backward_memory(self, h: int, presence: dict[int, list[Row]], level: _Level) -> None:
        """(4.12): backward operators, with what the slot still holds."""
        a, b = self.groups[h]
        bytes_held = level.columns[-1]
        for k in range(a, b + 1):
            operator = self.problem.backward[k - 1]
            if k > a:
                # What stage k-1 held is stored when stage k starts; then what k-1 read last is gone.
                self._fits("stage_start", Row({bytes_held: 1.0}), self.problem.gradient_bytes(k) / MIB)
                step = Row({bytes_held: 1.0})
                for i in range(self.count):
                    if presence[k][i] != presence[k - 1][i]:
                        step.plus(presence[k][i], self.sizes[i]).plus(presence[k - 1][i], -self.sizes[i])
                bytes_held = self._level_column("held", step, 0.0)
            row = Row({bytes_held: 1.0})
            for column, choice in zip(self.backward[k - 1], operator.implementations, strict=True):
                row.also(int(column), choice.workspace_bytes / MIB)
            self._fits("backward", row, (operator.live_bytes + operator.fixed_bytes + operator.output_bytes) / MIB)


class _Level:
    """The chain of byte levels of one slot."""

    def __init__(self, changing: list[int], columns: list[int]) -> None:
        self.changing, self.columns = changing, columns

    def before(self, j: int) -> int:
        """The column of the bytes just before result j."""
        return self.columns[bisect.bisect_left(self.changing, j)]
