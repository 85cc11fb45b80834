"""Measurement of links: timed transfers, the costs that fit them, and what links share.

**Transfers** are point-to-point calls of ``torch.distributed``. A sender's clock runs until it hears from the receiver,
so that no two clocks need agree. Where the receiver sends back what it got, half of the time is one way's; where it
answers with a few bytes, the answer is in the time, which does no harm to the comparison of large transfers. So is the
software's time, as it is when plans run.

**Costs** of a link are latency, occupancy per message and bandwidth. n messages of s bytes one after another take L + n
(g + beta s); the same bytes as one message take L + g + n beta s. Both are linear in (L, g, beta): least squares of
relative errors over several n and s, with none of them negative.

**Shared** resources show by how much transfers slow one another down. Two transfers at once that each take as long as
alone share nothing that matters; where the slower takes much longer, they share a resource: at the sender, at the
receiver, or in between.

Source: [Shah23], section 5.3 (link profiling, with TACCL's alpha split into L and g; inferring multi-GPU topologies:
pairs that get low bandwidth in a simultaneous copy share a switch).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np
import torch
import torch.distributed as dist

from loadmaster.errors import InputError

Pair = tuple[int, int]
Call = Callable[..., dist.Work | None]

ANSWER_BYTES = 8


@dataclass(frozen=True)
class TransferBatch:
    """Transfers that go at once, each of some messages one after another, or merged; ``echo``: all is sent back."""

    pairs: tuple[Pair, ...]
    size_bytes: int
    count: int = 1
    merged: bool = False
    echo: bool = False


class TransferTimer:
    """Times batches of transfers; every rank of the group makes one and asks for the same batches in the same order."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, repeats: int) -> None:
        """Make a timer that counts the least time of ``repeats`` turns."""
        self.group, self.device, self.repeats = group, device, repeats
        self.rank, self.size = group.rank(), group.size()

    def seconds(self, batches: Sequence[TransferBatch]) -> list[dict[Pair, float]]:
        """Time each transfer of each batch, seconds one way; the result is the same on every rank."""
        mine: list[dict[Pair, float]] = []
        for batch in batches:
            least: dict[Pair, float] = {}
            data = self._buffers(batch)
            answers = data
            if not batch.echo:
                answers = {pair: [t.new_zeros(ANSWER_BYTES) for t in own[:1]] for pair, own in data.items()}
            # One more than counted: the first brings up connections.
            for turn in range(self.repeats + 1):
                dist.barrier(group=self.group)
                for pair, found in self._once(batch, data, answers).items():
                    if turn:
                        least[pair] = min(found, least.get(pair, found))
            mine.append(least)
        said: list[list[dict[Pair, float]]] = [[] for _ in range(self.size)]
        dist.all_gather_object(said, mine, group=self.group)
        return [{pair: found for of_rank in said for pair, found in of_rank[k].items()} for k in range(len(batches))]

    def _buffers(self, batch: TransferBatch) -> dict[Pair, list[torch.Tensor]]:
        """Make the messages of each transfer that this rank has a part in."""
        messages, size = (1, batch.count * batch.size_bytes) if batch.merged else (batch.count, batch.size_bytes)
        return {
            pair: [torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(messages)]
            for pair in batch.pairs
            if self.rank in pair
        }

    def _once(
        self, batch: TransferBatch, data: dict[Pair, list[torch.Tensor]], answers: dict[Pair, list[torch.Tensor]]
    ) -> dict[Pair, float]:
        """Do a batch once; return the time of each transfer that this rank sends, as it sees it."""
        sent = [pair for pair in batch.pairs if pair[0] == self.rank]
        received = [pair for pair in batch.pairs if pair[1] == self.rank]
        begun = time.perf_counter()
        self._do(
            [
                *((dist.irecv, t, pair[0]) for pair in received for t in data[pair]),
                *((dist.isend, t, pair[1]) for pair in sent for t in data[pair]),
            ]
        )
        self._do(
            [
                *((dist.isend, t, pair[0]) for pair in received for t in answers[pair]),
                *((dist.irecv, t, pair[1]) for pair in sent for t in answers[pair]),
            ]
        )
        took = time.perf_counter() - begun
        return dict.fromkeys(sent, took / 2 if batch.echo else took)

    def _do(self, calls: Sequence[tuple[Call, torch.Tensor, int]]) -> None:
        if not calls:
            return
        operations = [dist.P2POp(call, t, group=self.group, group_peer=peer) for call, t, peer in calls]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Sample:
    """Time of ``count`` messages of ``size_bytes`` each, or of one as large (``merged``): first byte out to last in."""

    size_bytes: int
    count: int
    merged: bool
    seconds: float


@dataclass(frozen=True)
class LinkCost:
    """Costs of a link that were fitted, as :class:`loadmaster.models.topologies.topology.Link` takes them. ``error``:
    median of the relative differences between the fit and its samples."""

    latency_ns: int
    message_ns: int
    gbps: float
    error: float

    def seconds(self, sample: Sample) -> float:
        """Time that a transfer takes by the fit."""
        messages = 1 if sample.merged else sample.count
        total_bytes = sample.count * sample.size_bytes
        return (self.latency_ns + messages * self.message_ns + total_bytes / self.gbps) / 1e9


def fit(samples: Sequence[Sample]) -> LinkCost:
    """Fit the costs of a link to timed transfers. InputError: fewer than three samples, a time that is not above 0, or
    sizes that do not tell a bandwidth."""
    if len(samples) < 3:
        raise InputError("samples", len(samples), "are too few to fit three costs", "Time more sizes and counts.")
    for sample in samples:
        if not sample.seconds > 0:
            raise InputError("samples", sample.seconds, "is no time", "Give seconds, more than 0.")
    by_bytes = [s.seconds for s in sorted(samples, key=lambda s: s.size_bytes * s.count)]
    half = len(by_bytes) // 2
    few, many = float(np.median(by_bytes[:half])), float(np.median(by_bytes[half:]))
    if many <= few:
        problem = f"is no more for the larger half of the samples than for the smaller ({few})"
        raise InputError("samples", many, problem, "Time larger messages.")
    measured_ns = np.array([sample.seconds * 1e9 for sample in samples])
    rows = np.array([[1.0, 1.0 if s.merged else s.count, s.count * s.size_bytes] for s in samples])
    weighted = rows / measured_ns[:, None]
    # With three costs, trying which of the first two are zero finds the non-negative least squares exactly.
    best, least = None, np.inf
    for used in product((True, False), repeat=2):
        columns = [index for index, use in enumerate((*used, True)) if use]
        found, *_ = np.linalg.lstsq(weighted[:, columns], np.ones(len(samples)), rcond=None)
        if (found < 0).any() or found[-1] <= 0:
            continue
        missed = float(((weighted[:, columns] @ found - 1) ** 2).sum())
        if missed < least * (1 - 1e-9):
            least, best = missed, dict(zip(columns, found, strict=True))
    if best is None:
        raise InputError("samples", len(samples), "tell no bandwidth", "Time larger messages, and more of them.")
    costs = np.array([best.get(index, 0.0) for index in range(3)])
    error = float(np.median(np.abs(weighted @ costs - 1)))
    return LinkCost(round(costs[0]), round(costs[1]), float(f"{1 / costs[2]:.6g}"), error)


Slowdown = Callable[[Sequence[Pair]], float]
"""Factor by which the slowest of some transfers takes longer when they go at once than alone."""

# Halfway, by ratio, between transfers that share nothing (1) and two that share all (2).
SHARED_FROM = 1.41
# Choices of the other ends, when it is asked whether two ranks share something at this one.
MOST_CHOICES = 3


@dataclass
class Shared:
    """Resources that links were seen to share, by name the links that hold them; ``seen``, ``unseen`` are in words."""

    resources: dict[str, set[Pair]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def find_shared(links: Mapping[str, Sequence[Pair]], node_of: Sequence[int], slowdown: Slowdown) -> Shared:
    """Find ports, shared adapters and half-duplex wires by class; every rank calls ``slowdown`` in the same way."""
    shared = Shared()
    for name, pairs in links.items():
        _wires(name, pairs, slowdown, shared)
        _ports(name, pairs, slowdown, shared, end=0)
        _ports(name, pairs, slowdown, shared, end=1)
        if _adapters(name, pairs, node_of, slowdown, shared, end=0) & _adapters(
            name, pairs, node_of, slowdown, shared, end=1
        ):
            shared.unseen.append(
                f"{name}: whether what ranks share on the way out is not what others share on the way in"
            )
    return shared


def _wires(name: str, pairs: Sequence[Pair], slowdown: Slowdown, shared: Shared) -> None:
    """Find whether a way and the way back are one wire; one pair of the class answers for it."""
    both = [(a, b) for a, b in pairs if a < b and (b, a) in pairs]
    if not both:
        shared.unseen.append(f"{name}: whether a link and its way back share a wire (no pair has both)")
        return
    a, b = both[0]
    factor = slowdown([(a, b), (b, a)])
    if factor < SHARED_FROM:
        shared.seen.append(f"{name}: full duplex ({factor:.2f} x the time both ways at once)")
        return
    shared.seen.append(f"{name}: half duplex ({factor:.2f} x the time both ways at once)")
    for a, b in both:
        shared.resources[f"{name} wire {a}<->{b}"] = {(a, b), (b, a)}


def _ports(name: str, pairs: Sequence[Pair], slowdown: Slowdown, shared: Shared, end: int) -> None:
    """Find whether a rank sends to two others (``end`` 0), or receives from two (1), as fast as to or from one."""
    what, way = (("egress", "sends to two"), ("ingress", "receives from two"))[end]
    factors = {}
    for rank in sorted({pair[end] for pair in pairs}):
        own = [pair for pair in pairs if pair[end] == rank]
        if len(own) < 2:
            continue
        factors[rank] = slowdown([own[0], own[-1]])
        if factors[rank] >= SHARED_FROM:
            shared.resources[f"{name} {what} {rank}"] = set(own)
    if not factors:
        shared.unseen.append(f"{name}: {what} ports (no rank has two links of the class)")
        return
    found = sum(factor >= SHARED_FROM for factor in factors.values())
    low, high = min(factors.values()), max(factors.values())
    shared.seen.append(
        f"{name}: {found} of {len(factors)} ranks have one {what} port: a rank that {way} at once takes "
        f"{low:.2f} to {high:.2f} x the time"
    )


def _adapters(
    name: str, pairs: Sequence[Pair], node_of: Sequence[int], slowdown: Slowdown, shared: Shared, end: int
) -> bool:
    """Find ranks of a node that slow each other down, though neither end of their links is the same. Several choices of
    the other ends are tried where there are several: what is slow with all is shared at this end."""
    what = ("out", "in")[end]
    slow: list[Pair] = []
    tried = 0
    ranks = sorted({pair[end] for pair in pairs})
    for a, b in combinations(ranks, 2):
        if node_of[a] != node_of[b]:
            continue
        choices = list(_apart(pairs, a, b, end))
        if not choices:
            continue
        tried += 1
        if all(slowdown(choice) >= SHARED_FROM for choice in choices):
            slow.append((a, b))
    if not tried:
        shared.unseen.append(f"{name}: what ranks of a node share on the way {what} (too few ranks)")
        return False
    groups = _joined(slow)
    for group in groups:
        label = ",".join(map(str, sorted(group)))
        shared.resources[f"{name} {what} of {label}"] = {pair for pair in pairs if pair[end] in group}
    found = "; ".join("ranks " + ", ".join(map(str, sorted(group))) for group in groups) or "none"
    shared.seen.append(f"{name}: ranks that share a way {what}: {found} ({tried} pairs of ranks tried)")
    return bool(groups)


def _apart(pairs: Sequence[Pair], a: int, b: int, end: int) -> Iterable[tuple[Pair, Pair]]:
    """Some choices of a link of a and one of b, four ranks in all: one link of a with several of b."""
    for one in (pair for pair in pairs if pair[end] == a):
        others = [pair for pair in pairs if pair[end] == b and len({*one, *pair}) == 4]
        if others:
            yield from ((one, other) for other in others[:MOST_CHOICES])
            return


def _joined(pairs: Iterable[Pair]) -> list[set[int]]:
    """Groups of ranks that pairs join, directly or through others."""
    groups: list[set[int]] = []
    for pair in pairs:
        touching = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if not group & set(pair)] + [set(pair).union(*touching)]
    return groups
