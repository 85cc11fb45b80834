"""Restarts of list scheduling until the bound is met or the time is up.

First a fixed list of settings, the plainest first, as far as the instance gives them a meaning: merging and holding
only where messages cost time whatever their size. Then chance: the best settings so far with one of them changed, and
some noise in the order of offers.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from loadmaster.models.collective.instance import Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.symmetry import closure
from loadmaster.planner.collective.criticality import UNLIMITED, Mode, Parameters
from loadmaster.planner.collective.dispatch import dispatch, reachable
from loadmaster.planner.collective.link_subsets import FULL, Lanes, LinkSubset, links_of
from loadmaster.planner.collective.prune import finish_ns, prune, retime
from loadmaster.planner.collective.routes import sequential
from loadmaster.planner.collective.scheduling_graph import NOTHING_BEFORE, Release, SchedulingGraph, typical_bytes

# Merging is tried where a message costs at least this part of the time that a chunk takes without it.
MERGING_MATTERS = 0.01
# A message waits for more chunks only where it costs at least this part: less is no more than the wait for a chunk.
WAITING_MATTERS = 0.1
# Steps are saved at the price of detours where it costs at least this part.
LINK_SUBSETS_MATTER = 0.2
# Of the waits on a route, the part that counts (see routes.py); anything of this order balances about as well.
ROUTED_SHARE = 0.3
# Where messages cost more than chunks, waiting that part of a message for more pays as a rule.
LINGER = 0.2
# Of the time of a search, the part in which list scheduling must find its first schedule; after that the plainest one,
# which is found in a time that goes by its sends alone, takes its place.
FIRST_SHARE = 0.5
# Instances of more targets than that are far beyond what the plainest schedule is good for.
SMALL_TARGETS = 256
# Longer lists than this leave chance too little; after the first of them, chance has every other turn.
FIXED_SETTINGS, PLAIN_SETTINGS = 120, 24
# Pruning and retiming make what dispatch found shorter by no more than about that part.
RETIMING_GAINS = 0.03
# Noise that breaks ties by chance and decides nothing else.
TIES = 0.01
# Settings that chance changes are among that many best ones.
ELITE = 6


OnBetter = Callable[[tuple[Send, ...], int], None]
"""Called with each better schedule and its time in ns."""


def good_enough_ns(bound_ns: float, gap: float) -> float:
    """The longest time t with (t - bound) / t within the gap: any at all within a gap of 1."""
    return math.inf if gap >= 1.0 else bound_ns / (1.0 - gap)


@dataclass(frozen=True)
class Setting:
    """Setting of one restart, without its seed. ``powers`` are those of the generators that it keeps; 0 drops one."""

    parameters: Parameters
    subset: LinkSubset
    powers: tuple[int, ...]
    slack: float = 0.0
    share: float = 0.0
    late: bool = False


Change = Callable[[Setting], Setting]


@dataclass
class Restarts:
    """Search for schedules of one instance by restarts of list scheduling. ``cancelled`` is asked between events.

    Args:
        usable: per chunk the links it may use; None: as the instance says.
        release: what the schedule builds on.
        needed: there must be a schedule in the end: the plainest where list scheduling found none in time.
    """

    instance: Instance
    seed: int
    usable: Sequence[Sequence[int]] | None = None
    release: Release = NOTHING_BEFORE
    cancelled: Callable[[], bool] | None = None
    on_better: OnBetter | None = None
    needed: bool = True
    best: tuple[Send, ...] | None = None
    best_ns: int | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.graphs: dict[Setting, SchedulingGraph | None] = {}
        self.tried: dict[Setting, int] = {}
        self.count = 0
        self.settings = self._settings()
        links = self.instance.topology.links
        size_bytes = typical_bytes(self.instance)
        self.weight = {
            crosses: max(
                (k.message_ns * k.gbps / size_bytes for k in links if self.instance.topology.crosses(k) == crosses),
                default=0.0,
            )
            for crosses in (False, True)
        }
        self.subsets = self._subsets()
        self.per_nic = _crossings_per_nic(self.instance)
        self.floor_is_due = self._is_small()
        self.all_powers = (1,) * len(self.instance.generators)

    def search(
        self,
        *,
        bound_ns: float,
        seconds: float,
        gap: float = 0.0,
        runs: int | None = None,
        first_s: float | None = None,
    ) -> tuple[Send, ...] | None:
        """Restart until a schedule is within ``gap`` of the bound, or time, runs or the caller's patience are up. May
        be called again to go on. Returns the best of all calls; None if there is no schedule, or none was found.

        Args:
            bound_ns: no schedule is faster; 0 where that is not known.
            gap: (time - bound) / time that is good enough.
            runs: most restarts of each phase in this call; None: as many as the time allows.
            first_s: seconds for a first schedule, where these may be more than those of this call.
        """
        good_ns = good_enough_ns(bound_ns, gap)
        until = time.monotonic() + seconds
        stop = _stopper(until, self.cancelled)
        first = _stopper(time.monotonic() + FIRST_SHARE * (seconds if first_s is None else first_s), self.cancelled)
        last = None if runs is None else self.count + runs
        if self.best_ns is not None and (self.best_ns <= good_ns or stop()):
            return self.best
        for setting in self.settings:
            is_first = self.needed and self.best is None
            self._offer(self._run(setting, first if is_first else stop), setting)
            if is_first and self.best is None and first():
                self._offer(sequential(self.instance, self.usable), None)
            if self.floor_is_due and self.best is not None:
                self.floor_is_due = False
                self._offer(sequential(self.instance, self.usable), None)
            if self.best_ns is not None and self.best_ns <= good_ns:
                break
            if (last is not None and self.count >= last) or stop():
                break
        return self.best

    def _offer(self, sends: tuple[Send, ...] | None, setting: Setting | None) -> None:
        if sends is None:
            return
        time_ns = finish_ns(self.instance, sends)
        if setting is not None:
            self.tried[setting] = min(time_ns, self.tried.get(setting, time_ns))
        if self.best_ns is None or time_ns < self.best_ns:
            self.best, self.best_ns = sends, time_ns
            if self.on_better is not None:
                self.on_better(sends, time_ns)

    def _is_small(self) -> bool:
        """Return whether the plainest schedule is worth its time: it has a send per target, and builds on nothing."""
        targets = sum(len(chunk.targets) for chunk in self.instance.chunks)
        return targets <= SMALL_TARGETS and self.release is NOTHING_BEFORE

    def _run(self, setting: Setting, cancelled: Callable[[], bool] | None) -> tuple[Send, ...] | None:
        graph = self._graph(setting)
        if graph is None:
            return None
        self.count += 1
        found = dispatch(
            graph,
            setting.parameters,
            self.seed + self.count,
            release=self.release,
            limit_ns=self.best_ns,
            cancelled=cancelled,
        )
        if found is None:
            return None
        if self.best_ns is not None and finish_ns(self.instance, found) > self.best_ns * (1.0 + RETIMING_GAINS):
            return None
        found = prune(self.instance, found)
        # On top of other sends, starting earlier could run into what they hold.
        return found if self.release.taken else retime(self.instance, found, self.release.ready_ns)

    def _graph(self, setting: Setting) -> SchedulingGraph | None:
        """Build the graph of a setting; None where its links do not reach every target."""
        key = replace(setting, parameters=Parameters())
        if key not in self.graphs:
            generators = zip(self.instance.generators, setting.powers, strict=True)
            chosen = tuple(_power(generator, n) for generator, n in generators if n)
            instance = replace(self.instance, generators=chosen)
            group = closure(chosen, instance.topology.rank_count, len(instance.chunks))
            links = links_of(instance, setting.subset, group)
            graph = SchedulingGraph(
                instance,
                links=links,
                usable=self.usable,
                slack=setting.slack,
                share=setting.share,
                late=setting.late,
            )
            self.graphs[key] = graph if reachable(graph) else None
        return self.graphs[key]

    def _settings(self) -> Iterator[Setting]:
        fixed = list(self._fixed())
        if self._moves():
            routed = [replace(setting, share=ROUTED_SHARE) for setting in fixed]
            # Where merging matters more than balance, only the plainest settings are tried with routes as well.
            paired = len(fixed) if max(self.weight.values()) < LINK_SUBSETS_MATTER else 2
            pairs = zip(fixed[:paired], routed[:paired], strict=True)
            fixed = [setting for pair in pairs for setting in pair] + fixed[paired:]
            if max(self.weight.values()) >= LINK_SUBSETS_MATTER and self._shares_nics():
                late = [replace(s, late=True, parameters=replace(s.parameters, noise=TIES)) for s in fixed]
                fixed = [setting for pair in zip(fixed, late, strict=True) for setting in pair][:FIXED_SETTINGS]
        yield from fixed[:PLAIN_SETTINGS]
        for setting in fixed[PLAIN_SETTINGS:]:
            if self.tried:
                yield self._changed(fixed)
            yield setting
        if self.best is None and self.all_powers:
            # Two images of a message were in each other's way wherever it was tried: schedules without symmetries.
            fixed = [replace(setting, powers=self._no_powers()) for setting in fixed]
            yield from fixed
        while True:
            yield self._changed(fixed)

    def _fixed(self) -> Iterator[Setting]:
        """Yield the fixed settings, ordered by the sum of how far each choice is from the plainest."""
        merged_near = _merges(self.weight[False], self._most_chunks())
        merged_far = _merges(self.weight[True], self._most_chunks(), self.per_nic)
        costs = max(self.weight.values())
        linger = LINGER if costs > 1.0 else 0.0
        modes: list[Mode] = ["tail", "bulk"] if costs >= MERGING_MATTERS else ["tail", "rare"]
        choices = [
            (
                a + b + c + d,
                Setting(Parameters(*far[:2], *near[:2], far[2], linger, mode=mode), subset, self.all_powers),
            )
            for (a, subset), (b, far), (c, near), (d, mode) in product(
                enumerate(self.subsets), enumerate(merged_far), enumerate(merged_near), enumerate(modes)
            )
        ]
        choices.sort(key=lambda choice: choice[0])
        yield from (setting for _, setting in choices[:FIXED_SETTINGS])

    def _subsets(self) -> list[LinkSubset]:
        """List link subsets that differ in their links, the likeliest first."""
        count = self.instance.topology.node_count
        wanted = any(wish > 0 for wish in self.instance.connections)
        if max(self.weight.values()) < LINK_SUBSETS_MATTER and not wanted:
            return [FULL]
        lanes: tuple[Lanes, ...] = ("all",) if count == 1 else ("all", "one", "rails")
        choices = product(enumerate((0, 2, 4, 3, 1)), enumerate((0,) if count < 3 else (0, 2, 1)), enumerate(lanes))
        ranked = sorted((a + b + c, a, LinkSubset(near, far, lane)) for (a, near), (b, far), (c, lane) in choices)
        group = closure(self.instance.generators, self.instance.topology.rank_count, len(self.instance.chunks))
        distinct: dict[frozenset[int], LinkSubset] = {}
        for _, _, subset in ranked:
            distinct.setdefault(links_of(self.instance, subset, group), subset)
        return list(distinct.values())

    def _moves(self) -> bool:
        """Return whether any chunk has one source and one target."""
        return any(len(chunk.sources) == len(chunk.targets) == 1 for chunk in self.instance.chunks)

    def _shares_nics(self) -> bool:
        """Return whether several ranks of a node leave it over the same resource."""
        topology = self.instance.topology
        leaves = {(k.source, resource) for k in topology.links if topology.crosses(k) for resource in k.resources}
        owns = Counter(resource for _, resource in leaves)
        return any(count > 1 for count in owns.values())

    def _no_powers(self) -> tuple[int, ...]:
        return (0,) * len(self.all_powers)

    def _most_chunks(self) -> int:
        return max(2, len(self.instance.chunks))

    def _changed(self, fixed: Sequence[Setting]) -> Setting:
        """Return one of the best settings with something changed."""
        chance = self.random
        # Of settings that gave the same time the last one: they often differ in nothing that mattered.
        by_time = {time_ns: setting for setting, time_ns in self.tried.items()}
        elite = [by_time[time_ns] for time_ns in sorted(by_time)[:ELITE]]
        if not elite:
            return replace(chance.choice(fixed), powers=self._no_powers())
        setting = chance.choice(elite)
        weights, changes = zip(*self._changes(), strict=True)
        change: Change = chance.choices(changes, weights)[0]
        return _with(change(setting), noise=chance.choice((0.0, 0.01, 0.05, 0.2, 0.5, 1.0)))

    def _changes(self) -> tuple[tuple[int, Change], ...]:
        """List possible changes of a setting, each with its weight; the noise changes in any case."""
        choice = self.random.choice
        far = _merges(self.weight[True], self._most_chunks(), self.per_nic)
        near = _merges(self.weight[False], self._most_chunks())
        return (
            (20, lambda s: _with(s, **dict(zip(("batch", "hold", "taper"), choice(far), strict=True)))),
            (20, lambda s: _with(s, **dict(zip(("local_batch", "local_hold"), choice(near)[:2], strict=True)))),
            (5, lambda s: _with(s, taper=choice((1.0, 0.9, 0.8, 0.65, 0.5)))),
            (5, lambda s: _with(s, mode=choice(("tail", "bulk", "rare")))),
            (10, lambda s: _with(s, enter_once=not s.parameters.enter_once)),
            (3, lambda s: _with(s, patient=not s.parameters.patient)),
            (5, lambda s: _with(s, linger=choice((0.0, 0.05, LINGER, 0.5, 1.0)))),
            (7, lambda s: replace(s, subset=choice(self.subsets))),
            (5, lambda s: replace(s, slack=choice((0.0, 0.5, 1.0)), share=0.0)),
            (3, lambda s: replace(s, share=choice((0.0, 0.05, ROUTED_SHARE, 1.0)))),
            (2, lambda s: replace(s, late=not s.late)),
            (5, lambda s: replace(s, powers=tuple(choice((0, 1, 2, 4)) for _ in self.all_powers))),
            (10, lambda s: s),
        )


def _with(setting: Setting, **changes: Any) -> Setting:
    return replace(setting, parameters=replace(setting.parameters, **changes))


def _power(generator: Symmetry, n: int) -> Symmetry:
    ranks, chunks = generator.ranks, generator.chunks
    for _ in range(n - 1):
        ranks = tuple(generator.ranks[r] for r in ranks)
        chunks = tuple(generator.chunks[c] for c in chunks)
    return Symmetry(ranks, chunks)


def _crossings_per_nic(instance: Instance) -> int:
    """Estimate how many chunks go through each NIC: what one message can carry at most if nothing is sent twice."""
    topology = instance.topology
    held = Counter(resource for k in topology.links if topology.crosses(k) for resource in k.resources)
    nics = {max(k.resources, key=lambda resource: held[resource]) for k in topology.links if topology.crosses(k)}
    nodes = topology.node_of
    crossings = sum(
        len({nodes[rank] for rank in chunk.targets} - {nodes[rank] for rank in chunk.sources})
        for chunk in instance.chunks
    )
    return max(1, crossings // max(1, len(nics)))


def _merges(weight: float, most: int, usual: int = 1) -> list[tuple[int, int, float]]:
    """List (batch, hold, taper) worth trying where a message costs ``weight`` of a chunk's own time, likely ones first.
    ``usual``: chunks that a message could carry at most."""
    if weight < MERGING_MATTERS:
        return [(1, 1, 1.0)]
    powers = [n for e in range(1, most.bit_length()) for n in (1 << e, 3 << (e - 1)) if n <= most]
    if weight > 0.5:
        likely = [hold for hold in (usual, 3 * usual // 4, usual // 2, usual // 4, 2 * usual) if 1 < hold <= most]
        waiting = [(UNLIMITED, hold, 1.0) for hold in dict.fromkeys((*likely, *powers))]
        return [(UNLIMITED, 1, 1.0), *waiting, (1, 1, 1.0), *((n, n, 1.0) for n in powers)]
    tapered = [(UNLIMITED, 1, taper) for taper in (0.9, 0.5)]
    held = [(n, n, 1.0) for n in powers] if weight >= WAITING_MATTERS else []
    return [(1, 1, 1.0), (6, 1, 1.0), *tapered, *((n, 1, 1.0) for n in powers), *held]


def _stopper(until: float, cancelled: Callable[[], bool] | None) -> Callable[[], bool]:
    def stop() -> bool:
        return time.monotonic() >= until or (cancelled is not None and cancelled())

    return stop
