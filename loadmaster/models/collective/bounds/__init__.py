"""Proofs that no schedule of an instance is faster: combinatorial bounds, each a module with its argument.

They hold for atomic chunks of the instance's sizes on its logical topology, whatever schedule, symmetric or not, and
however it merges chunks; asked for divisible chunks, for the same chunks cut into any number of parts. They say nothing
of another form of the same collective: :mod:`loadmaster.models.collective.proof` puts those together.
:mod:`loadmaster.models.collective.proof` has the bound by bandwidth alone,
:mod:`loadmaster.models.collective.taccl.routing` the linear programs.

Sums to one rank each are broadcasts from it, seen from the end: bounds of copies hold for them too. Take a schedule
that ends by T, and of its chunks the sums with one target t each. Call a message useful to such a chunk if it carries
parts of it to t, or to a rank that sends a useful one at or after the arrival. Every source but t sends a useful one,
or its part would not come to t. Now let every message that is useful to some of these chunks run the other way, with
these only: one over link k that started at s starts at T - s - occupancy - latency, over k the other way, and arrives
by T - s. Then

- its sender has each chunk: it is t, or the useful message it sent at or after the arrival arrives in time;
- where all links that hold a resource have one latency, the messages on it are shifted equally and stay disjoint.

So this is a schedule by T of copies from each t to all sources. Which ranks may send to other nodes is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadmaster.models.collective.bounds.counting import counting_bounds
from loadmaster.models.collective.bounds.cuts import cut_bounds, dilation_ns, shared_wires_ns
from loadmaster.models.collective.bounds.gathering import gathering_bounds
from loadmaster.models.collective.bounds.lengths import moves, timed_lengths_ns
from loadmaster.models.collective.bounds.meeting import meeting_bounds, meetings
from loadmaster.models.collective.bounds.network import NEVER, Network
from loadmaster.models.collective.instance import Chunk, Instance

__all__ = ["NEVER", "Bound", "all_bounds", "lower_bound"]


def mirrored(instance: Instance) -> Instance | None:
    """The copies that the sums to one rank are from the end; None without any, or where latencies differ."""
    chunks = tuple(
        Chunk(c.size_bytes, c.targets, c.sources) for c in instance.chunks if c.reduces and len(c.targets) == 1
    )
    latency: dict[int, int] = {}
    for link in instance.topology.links:
        for resource in link.resources:
            if latency.setdefault(resource, link.latency_ns) != link.latency_ns:
                return None
    return Instance(instance.topology.reversed(), chunks) if chunks else None


@dataclass(frozen=True)
class Bound:
    """A lower bound of ``ns`` on every schedule, by the argument named ``by``; ``NEVER`` or more: none exists."""

    ns: int
    by: str


def all_bounds(
    instance: Instance, *, divisible: bool = False, over: Callable[[], bool] = lambda: False
) -> Iterator[Bound]:
    """Yield every combinatorial bound, cheap ones first; slow ones ask ``over`` and end with what they have."""
    network = Network(instance, divisible=divisible)
    yield Bound(dilation_ns(network), "dilation")
    yield Bound(shared_wires_ns(network), "messages over a shared wire")
    if moves(network):
        yield Bound(timed_lengths_ns(network, over), "lengths of ways")
    sums = meetings(network)
    for bounds in (
        cut_bounds(network),
        meeting_bounds(sums),
        counting_bounds(network, sums),
        gathering_bounds(network, over=over),
    ):
        for ns, by in bounds:
            yield Bound(ns, by)
    backwards = mirrored(instance)
    if backwards is not None:
        for ns, by in gathering_bounds(Network(backwards, divisible=divisible), mirrored=True, over=over):
            yield Bound(ns, f"{by}, from the end")


def lower_bound(
    instance: Instance, *, divisible: bool = False, enough_ns: int = NEVER, over: Callable[[], bool] = lambda: False
) -> Bound:
    """The best of them; of equals the first. A bound of ``enough_ns`` or more is not improved any further."""
    best = Bound(0, "nothing to do")
    for bound in all_bounds(instance, divisible=divisible, over=over):
        if bound.ns > best.ns:
            best = bound
        if best.ns >= enough_ns or over():
            break
    return best
