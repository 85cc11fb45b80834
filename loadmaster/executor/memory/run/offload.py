"""The transfers of a schedule in the graphs that run it: which copy starts where, and who waits for it.

The rule is that of :mod:`loadmaster.models.memory.links`, the operators are in
:mod:`loadmaster.executor.steps.transfers`. An offloaded forward operator has one host tensor for each of its results;
they travel from the forward to the backward graph as ordinary saved values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.emitting import call
from loadmaster.executor.memory.operators.emitter import Emitter, encoded_meta
from loadmaster.executor.memory.operators.groups import Operators
from loadmaster.executor.memory.run.channels_last import laid_out
from loadmaster.executor.memory.run.segments import STAGE
from loadmaster.executor.steps.transfers import fetch, fetched, send, sent
from loadmaster.models.memory.plan import Schedule

REMEDY = "Plan the problem captured from this model again, and check the plan."


@dataclass(frozen=True)
class HostCopy:
    """A saved value: the copy on the host of one result of a forward operator."""

    forward: int
    result: int


def expect_transfers(operators: Operators, schedule: Schedule) -> None:
    """Raise an InputError for transfers that the graphs cannot make: a result is sent that is not there, or too early,
    or fetched without having been sent."""
    offload, gone_before = schedule.offload, schedule.gone_before
    count, last = len(operators.forward), operators.last_readers
    computed = {c.forward for c in schedule.stages[0].computes}
    if len(set(offload)) != len(offload) or not set(offload) <= computed - set(schedule.stages[0].keep):
        problem = "sends results twice, results that are kept, or results that are not computed"
        raise InputError("schedule.offload", offload, problem, REMEDY)
    if gone_before and len(gone_before) != len(offload):
        raise InputError("schedule.gone_before", gone_before, f"is not one for each of {offload}", REMEDY)
    early = [i for i, gone in zip(offload, gone_before, strict=False) if not last[i] < gone <= count]
    if early:
        raise InputError("schedule.gone_before", gone_before, f"has {early} gone before they are read", REMEDY)
    for t, stage in enumerate(schedule.stages):
        for f in stage.fetches:
            if f.forward not in offload or not 1 <= f.issued_at <= t:
                problem = f"fetches forward {f.forward}, issued at stage {f.issued_at}, which cannot be"
                raise InputError(f"schedule.stages[{t}]", f, problem, REMEDY)


class Sends:
    """Sends of results to the host, in the forward graph: images ``channels_last``, or else as they were traced."""

    def __init__(self, operators: Operators, schedule: Schedule, emitter: Emitter, *, channels_last: bool) -> None:
        self.operators, self.emitter, self.channels_last = operators, emitter, channels_last
        self.hosts: dict[HostCopy, fx.Node] = {}
        self._last = operators.last_readers
        self._gone_before = schedule.departures(len(operators.forward))
        self._unsent = list(schedule.offload)
        self._sources: dict[int, list[fx.Node]] = {}
        self._segment = 0

    def before(self, j: int) -> None:
        """Emit what is due before forward operator j: sends, and waits (the number of forward operators: at the end).
        Raises an InputError if it would wait for a result that is not sent by then."""
        graph = self.emitter.graph
        while self._unsent and self._last[self._unsent[0]] < j:
            i = self._unsent.pop(0)
            group = self.operators.forward[i]
            values = [self.emitter.value(r) for r in group.results]
            self._sources[i] = values if group.encoding is None else [self.emitter.encoded[i]]
            fakes = fakes_of(self.operators, i, channels_last=self.channels_last)
            for n, (source, fake) in enumerate(zip(self._sources[i], fakes, strict=True)):
                self.hosts[HostCopy(i, n)] = call(graph, send, source, list(fake.stride()))
        waits = []
        for i in [i for i, gone in self._gone_before.items() if gone <= j]:
            if i not in self._sources:
                where = self.operators.forward[i].name
                raise InputError("schedule.gone_before", where, "is waited for before it is sent", REMEDY)
            del self._gone_before[i]
            waits += [call(graph, sent, s, self.hosts[HostCopy(i, n)]) for n, s in enumerate(self._sources[i])]
        if waits and j < len(self.operators.forward):
            # A compiler must not move what comes after the wait, and needs the room, before it.
            self._segment += 1
            waits[0].meta[STAGE] = (self._segment, True)
            self.emitter.forget_views()


class Fetches:
    """Fetches of results from the host, in the backward graph, in the layout that they were sent in; ``host`` gives the
    new node that holds a saved value."""

    def __init__(
        self,
        operators: Operators,
        schedule: Schedule,
        emitter: Emitter,
        host: Callable[[HostCopy], fx.Node],
        *,
        channels_last: bool,
    ) -> None:
        self.operators, self.schedule, self.emitter = operators, schedule, emitter
        self.channels_last = channels_last
        self._host = host
        self._hosts: dict[HostCopy, fx.Node] = {}
        self._under_way: dict[tuple[int, int], list[fx.Node]] = {}

    def at(self, t: int) -> set[int]:
        """Start the fetches that stage t issues, and wait for those that are for it; returns what arrived."""
        graph = self.emitter.graph
        for later, stage in enumerate(self.schedule.stages):
            for f in stage.fetches:
                if f.issued_at == t:
                    self._under_way[later, f.forward] = self._start(f.forward)
        arrived = [f.forward for f in self.schedule.stages[t].fetches]
        for i in arrived:
            results = self._under_way.pop((t, i))
            for n, result in enumerate(results):
                call(graph, fetched, result, self._hosts[HostCopy(i, n)])
            group = self.operators.forward[i]
            if group.encoding is not None:
                self.emitter.encoded[i] = results[0]
            else:
                self.emitter.held.update(zip(group.results, results, strict=True))
        return set(arrived)

    def _start(self, i: int) -> list[fx.Node]:
        started = []
        for n, fake in enumerate(fakes_of(self.operators, i, channels_last=self.channels_last)):
            copy = HostCopy(i, n)
            if copy not in self._hosts:
                self._hosts[copy] = self._host(copy)
            layout = (list(fake.shape), list(fake.stride()))
            started.append(call(self.emitter.graph, fetch, self._hosts[copy], *layout, fake.device))
        return started


def fakes_of(operators: Operators, i: int, *, channels_last: bool) -> list[torch.Tensor]:
    """Fake tensors like the results of forward operator i, as they travel."""
    group = operators.forward[i]
    metas = [root.meta for root in group.results] if group.encoding is None else [encoded_meta(operators, i)]
    return [laid_out(meta["val"]) if channels_last else meta["val"] for meta in metas]


def host_fake(operators: Operators, copy: HostCopy) -> torch.Tensor:
    """A fake tensor like a copy on the host."""
    fake = fakes_of(operators, copy.forward, channels_last=False)[copy.result]
    with torch.no_grad():
        host: torch.Tensor = send(fake, list(fake.stride()))
    return host
