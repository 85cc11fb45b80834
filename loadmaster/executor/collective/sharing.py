"""Detection of links that share something, by how much transfers slow one another down.

Two transfers at once that each take as long as alone share nothing that matters; where the slower takes much longer,
they share a resource, and the question is where: at the sender, at the receiver, or in between.

Source: [Shah23], section 5.3 (inferring multi-GPU topologies: pairs that get low bandwidth in a
simultaneous copy share a switch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

Pair = tuple[int, int]
Slowdown = Callable[[Sequence[Pair]], float]
"""Factor by which the slowest of some transfers takes longer when they go at once than alone."""

# Halfway, by ratio, between transfers that share nothing (1) and two that share all (2).
SHARED_FROM = 1.41
# Choices of the other ends, when it is asked whether two ranks share something at this one.
MOST_CHOICES = 3


@dataclass
class Shared:
    """Resources that links were seen to share.

    Attributes:
        resources: name -> links that hold it.
        seen, unseen: in words.
    """

    resources: dict[str, set[Pair]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def find_shared(links: Mapping[str, Sequence[Pair]], node_of: Sequence[int], slowdown: Slowdown) -> Shared:
    """Find ports, shared adapters and half-duplex wires, class by class.

    Args:
        links: the links of each class.
        slowdown: measures; it is called in the same way on every rank.
    """
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
    """Find ranks of a node that slow each other down, though neither end of their links is the same.

    Several choices of the other ends are tried where there are several: what is slow with all is shared at this end.
    """
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
