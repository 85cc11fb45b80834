"""The program of a training step once more, written out in PuLP.

Slots are lists of phases here, and what moves in each is a variable: sums of these stand where the arrays have flows.
Every sum goes over the groups of one group run at a time, in the words of the rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pulp

from loadmaster.models.training.phases import Phases
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.models.training.runs import Runs
from loadmaster.models.training.ways import ways
from tests.models import cbc

Sum = pulp.LpAffineExpression


class Twin:
    """The least time of a step by CBC; None where there is none."""

    def __init__(self, problem: TrainingProblem, budget_bytes: int, runs: Runs, *, integer: bool) -> None:
        self.problem, self.runs, self.phases = problem, runs, Phases(problem)
        self.category = "Integer" if integer else "Continuous"
        self.model = pulp.LpProblem("training", pulp.LpMinimize)
        layers = len(problem.layers)
        forward = [[layer for layer in run.layers] for run in runs.layers]
        backward = [[2 * layers - 1 - layer for layer in reversed(run.layers)] for run in reversed(runs.layers)]
        once = forward + backward
        self.slots = [[p + 2 * layers * k for p in slot] for k in range(problem.micro_batches) for slot in once]
        self.count = len(self.slots)
        self.tau = [self.var(f"tau_{s}") for s in range(self.count)]
        self.busy: dict[tuple[str, int], list[Sum]] = defaultdict(list)
        self.bytes: list[list[Sum]] = [[] for _ in range(self.count)]
        self.on_host: list[Sum] = []
        self.in_files: list[tuple[int, int, Sum]] = []  # state of one group, groups of the run, those in files
        self.names = 0
        self.model += pulp.lpSum(self.tau)
        self.layers()
        # Updates on the host: their time, and of each run how many of each layer.
        self.host_us: list[Sum] = []
        self.host_layers: dict[int, list[Sum]] = defaultdict(list)
        for r in range(len(runs.groups)):
            self.group_run(r)
        self.host_turns()
        for s in range(self.count):
            self.model += pulp.lpSum(self.busy["device", s]) <= self.tau[s]
            for worker in ("store", "load", "host"):
                work = self.busy[worker, s]
                if worker == "host" and problem.clip_grad_norm and s == self.count - 1:
                    work = [*work, *self.busy["phases", s]]
                self.model += pulp.lpSum(work) <= self.tau[s]
            self.model += problem.fixed_bytes + pulp.lpSum(self.bytes[s]) <= budget_bytes
        if problem.host.capacity_bytes is not None:
            self.model += pulp.lpSum(self.on_host) <= problem.host.capacity_bytes
            for size, members, n in self.in_files:
                self.model += pulp.lpSum(self.on_host) + size / members * n <= problem.host.capacity_bytes
        if problem.disk is not None:
            moved = [(problem.disk.store_us(size) + problem.disk.load_us(size)) * n for size, _, n in self.in_files]
            self.model += pulp.lpSum(moved) <= pulp.lpSum(self.tau)
            if problem.disk.capacity_bytes is not None:
                self.model += pulp.lpSum(size * n for size, _, n in self.in_files) <= problem.disk.capacity_bytes

    def value(self) -> float | None:
        return cbc.optimum(self.model)

    def var(self, name: str, integer: bool = False) -> pulp.LpVariable:
        return pulp.LpVariable(name, 0, None, self.category if integer else "Continuous")

    def slot(self, phase: int) -> int:
        """The slot of a phase of any step."""
        lap, p = divmod(phase, len(self.phases))
        (found,) = (s for s, phases in enumerate(self.slots) if p in phases)
        return found + lap * self.count

    def last(self, slot: int) -> int:
        lap, s = divmod(slot, self.count)
        return self.slots[s][-1] + lap * len(self.phases)

    def amounts(self, first: int, last: int, total: Sum) -> dict[int, pulp.LpVariable]:
        """How much moves in each slot of a window; all of it in the end."""
        self.names += 1
        found = {t: self.var(f"a_{self.names}_{t - first}") for t in range(first, last + 1)}
        self.model += pulp.lpSum(found.values()) == total
        return found

    def ends(self, total: Sequence[pulp.LpVariable], count: int, each: int, has_ends: bool) -> tuple[list, list]:
        """What the first and the last layer of a run have."""
        self.model += pulp.lpSum(total) == count
        if not has_ends:
            return list(total), list(total)
        self.names += 1
        first, last = ([self.var(f"e_{self.names}_{k}_{i}") for i in range(len(total))] for k in range(2))
        self.model += pulp.lpSum(first) == each
        self.model += pulp.lpSum(last) == each
        for one, other, both in zip(first, last, total, strict=True):
            self.model += one + other <= both
        return first, last

    def layers(self) -> None:
        layers = len(self.problem.layers)
        for a, run in enumerate(self.runs.layers):
            points = self.problem.points(run.layers[0])
            y = [self.var(f"y_{a}_{p}", integer=True) for p in range(len(points))]
            first, last = self.ends(y, len(run.layers), 1, len(run.layers) > 1)
            for s, phases in enumerate(self.slots):
                q = phases[-1] % (2 * layers)
                is_mine = self.phases.layer(q) in run.layers
                for p, point in enumerate(points):
                    if is_mine:
                        us = point.forward_us if q < layers else point.backward_us
                        self.busy["device", s].append(us * y[p])
                        self.busy["phases", s].append(us * y[p])
                        self.bytes[s].append(
                            (point.forward_bytes if q < layers else point.backward_bytes)
                            * (last if q < layers else first)[p]
                        )
                    if is_mine and q >= layers:
                        # Backward passes of the others have ended.
                        self.bytes[s].append(point.kept_bytes * first[p])
                    elif run.layers[-1] <= q <= 2 * layers - 1 - run.layers[-1]:
                        self.bytes[s].append(point.kept_bytes * y[p])

    def group_run(self, r: int) -> None:
        members = self.runs.groups[r]
        groups = [self.problem.groups[g] for g in members.groups]
        group, phases = groups[0], self.phases
        has_ends = len(groups) >= len(members.layers) > 1
        listed = ways(group, has_disk=self.problem.disk is not None)
        x = [self.var(f"x_{r}_{w}", integer=True) for w in range(len(listed))]
        if filed := [n for way, n in zip(listed, x, strict=True) if way.state == "disk"]:
            self.in_files.append((group.state_bytes, len(groups), pulp.lpSum(filed)))
        first, last = self.ends(x, len(groups), len(groups) // len(members.layers), has_ends)
        by = list(zip(listed, x, first, last, strict=True))
        for s in range(self.count):
            for way, n, _, _ in by:
                size = {"device": group.weight_bytes, "copy": group.copy_bytes, "streamed": 0}[way.weights]
                self.bytes[s].append((size + group.state_bytes * (way.state == "device")) * n)
        for way, n, _, _ in by:
            size = group.state_bytes * (way.state == "host")
            size += (group.weight_bytes + group.copy_bytes) * (way.weights != "device")
            self.on_host.append((size + group.copy_gradient_bytes * (way.update == "host")) * n)
        updated: list[tuple[str, dict[int, pulp.LpVariable]]] = []
        if group.is_trained:
            updated = self.updates(group, groups, by)
        uses = [phases.uses[g] for g in members.groups]
        streamed, each = self.sum(n for way, n, _, _ in by if way.weights == "streamed"), range(len(uses[0]))
        ready = [amounts for name, amounts in updated if name == "copy is new"]
        copies = [amounts for name, amounts in updated if name == "copy in place"]
        for i in each:
            following = [[*of[1:], len(phases) + of[0]][i] for of in uses]
            start, end = min(self.slot(of[i] + 1) for of in uses), max(self.slot(use) for use in following)
            is_last = group.is_trained and i == each[-1]
            away = streamed if is_last else self.var(f"away_{r}_{i}")
            self.model += away <= streamed
            loads = self.amounts(start, end, away)
            for t, amount in loads.items():
                self.busy["load", t % self.count].append(self.problem.host.load_us(group.copy_bytes) * amount)
            used_at = max(of[i] for of in uses)
            for t in range(self.slot(used_at), end):
                here = streamed - away + self.until(loads, t)
                if has_ends and self.last(t) == used_at:
                    used = self.var(f"used_{r}_{i}")
                    mine = [(v if self.phases.is_forward(used_at) else u, way) for way, _, u, v in by]
                    self.model += used >= here
                    self.model += used >= self.sum(v for v, way in mine if way.weights == "streamed")
                    here = used
                elif self.last(t) == used_at:
                    here = streamed
                if self.last(t) < min(following):
                    self.bytes[t % self.count].append(group.copy_bytes * here)
            if is_last:
                for t in range(self.slot(min(map(phases.last_gradient, groups))), end + 1):
                    come = self.until(loads, t) + self.sum(self.until(a, t) for a in copies)
                    self.model += come <= self.sum(self.until(a, t) for a in ready)

    def updates(self, group: Group, groups: Sequence[Group], by: Sequence) -> list:
        """The updates of a group run. Returns amounts of new copies, and of those loaded in place."""
        p, count, host = self.phases, self.count, self.problem.host
        ready, complete = list(map(p.update_from, groups)), list(map(p.last_gradient, groups))
        begun, use = self.slot(min(map(p.first_gradient, groups))), list(map(p.next_use, groups))
        found = []
        gradients: dict[bool, list] = {True: [], False: []}
        for way, n, f, _ in by:
            if way.update != "device":
                continue
            runs = self.amounts(self.slot(min(ready)), self.slot(max(use) - 1), n)
            gradients[way.weights == "device"].append((n, f, runs))
            for t, amount in runs.items():
                self.busy["device", t % count].append(group.update_us * amount)
            loaded = group.state_bytes * (way.state == "host") + group.weight_bytes * (way.weights != "device")
            if not loaded:
                continue
            stored = loaded + group.copy_bytes * (way.weights == "streamed")
            after = self.slot(min(ready) + 1)
            loads = self.amounts(after - count, self.slot(max(use) - 1), n)
            stores = self.amounts(after, self.slot(max(use) - 1) + count, n)
            for t in range(after - count, self.slot(max(use) - 1) + count + 1):
                done = self.until(runs, t - 1 if len(self.slots[t % count]) == 1 else t)
                self.model += self.until(runs, t) <= self.until(loads, t)
                self.model += self.until(stores, t) <= done
                self.model += self.until(loads, t - count) <= self.until(stores, t)
                self.bytes[t % count].append(stored * (self.until(loads, t) - self.until(stores, t)))
            for t, amount in loads.items():
                self.busy["load", t % count].append(host.load_us(loaded) * amount)
            for t, amount in stores.items():
                self.busy["store", t % count].append(host.store_us(stored) * amount)
            if way.weights == "streamed":
                found.append(("copy is new", stores))
        for on_device, of in gradients.items():
            size = group.gradient_bytes if on_device else group.copy_gradient_bytes
            for t in range(begun, self.slot(max(use)) + 1) if of else ():
                q, single = self.last(t), len(self.slots[t % count]) == 1
                left = self.sum(n - self.until(runs, t - 1 if single else t) for n, _, runs in of)
                if q < max(ready) or q == min(ready) == max(ready):
                    left = self.sum(n for n, _, _ in of)
                elif q == max(ready):
                    self.names += 1
                    made = self.var(f"made_{self.names}")
                    self.model += made >= left
                    self.model += made >= self.sum(f for _, f, _ in of)
                    left = made
                self.bytes[t % count].append(size * left)
        here = [(way, n, f) for way, n, f, _ in by if way.update == "host"]
        if here:
            total = self.sum(n for _, n, _ in here)
            (a,) = (a for a, run in enumerate(self.runs.layers) if groups[0].layers[0] in run.layers)
            self.host_us.append((group.host_update_us or 0.0) * total)
            self.host_layers[a].append(total * (1 / max(1, len(groups) // len(set(gr.layers[0] for gr in groups)))))
            sent = self.amounts(self.slot(min(complete) + 1), self.slot(max(use)), total)
            start = self.slot(min(complete) + 1)
            if self.problem.clip_grad_norm:
                start = max(start, self.slot(len(p) - 1))
            done = self.amounts(start, self.slot(max(use)), total)
            copies = self.sum(n for way, n, _ in here if way.weights == "copy")
            in_place = self.amounts(start, self.slot(max(use)), copies)
            for t in range(begun, self.slot(max(use)) + 1):
                left = total - self.until(sent, t)
                self.bytes[t % count].append(group.copy_gradient_bytes * left)
                self.model += self.until(done, t) <= self.until(sent, t)
                if self.last(t) == max(complete) != min(complete):
                    self.model += left >= self.sum(f for _, _, f in here)
            for t, amount in sent.items():
                self.busy["store", t % count].append(host.store_us(group.copy_gradient_bytes) * amount)
            for t, amount in done.items():
                self.busy["host", t % count].append((group.host_update_us or 0.0) * amount)
            for t, amount in in_place.items():
                self.busy["load", t % count].append(host.load_us(group.copy_bytes) * amount)
            found += [("copy is new", done), ("copy in place", in_place)]
        return found

    def host_turns(self) -> None:
        """No update on the host while the layers that have some run forward again."""
        if not self.host_us:
            return
        layers, last = len(self.problem.layers), len(self.phases) - 1
        idle = []
        for a, run in enumerate(self.runs.layers):
            turns = self.var(f"turns_{a}")
            for each in self.host_layers[a]:
                self.model += turns >= each
            idle.append(turns * min(p.forward_us for p in self.problem.points(run.layers[0])))
        passes = [self.tau[s] for s, of in enumerate(self.slots) if of[-1] < layers]
        if self.problem.clip_grad_norm:
            passes += [self.tau[-1], *(-1 * us for us in self.busy["phases", self.count - 1])]
        else:
            passes += [self.tau[s] for s, of in enumerate(self.slots) if of[0] > last - layers]
        self.model += pulp.lpSum(self.host_us) + pulp.lpSum(idle) <= pulp.lpSum(passes)

    @staticmethod
    def until(amounts: dict[int, pulp.LpVariable], slot: int) -> Sum:
        """What has moved by the end of a slot."""
        return pulp.lpSum(amount for t, amount in amounts.items() if t <= slot)

    @staticmethod
    def sum(terms: object) -> Sum:
        return pulp.lpSum(terms)
