"""The classic algorithms, written out plainly for tests: who sends what to whom, step by step.

Every function gives the sends of one instance whose chunks are those of its collective with one part a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from tests.models.collective.schedules import Booking

# Per step, the messages: (source, target, chunks).
Steps = Iterable[list[tuple[int, int, list[int]]]]


def copied(instance: Instance, steps: Steps) -> tuple[Send, ...]:
    """Every message once all before it that reached its source are there."""
    return _booked(Booking(instance), steps, {}).schedule()


def halved_and_doubled(instance: Instance) -> tuple[Send, ...]:
    """AllReduce: sums by recursive halving, chunk r to rank r, then copies by recursive doubling."""
    count = instance.topology.rank_count
    booking, ready = Booking(instance), dict.fromkeys(range(count), 0)
    distance = count // 2
    while distance:
        # A rank keeps the chunks of ranks on its own side of the distance, and sends its parts of the others.
        halves = [
            (r, r ^ distance, [c for c in range(count) if c // distance == (r ^ distance) // distance])
            for r in range(count)
        ]
        arrived = {to: booking.send(r, to, chunks, ready[r], combines=True) for r, to, chunks in halves}
        ready = {r: max(ready[r], arrived[r]) for r in range(count)}
        distance //= 2
    return _booked(booking, doubling(count), ready).schedule()


def ring_reduced_and_gathered(instance: Instance) -> tuple[Send, ...]:
    """AllReduce round a ring: every sum goes once around, then its whole goes around again."""
    count = instance.topology.rank_count
    booking, ready = Booking(instance), dict.fromkeys(range(count), 0)
    for step in range(count - 1):
        # Rank r passes on the chunk that becomes whole at r + count - 1 - step ranks on.
        sent = [(r, (r + 1) % count, [(r - step - 1) % count]) for r in range(count)]
        arrived = {to: booking.send(r, to, chunks, ready[r], combines=True) for r, to, chunks in sent}
        ready = {r: max(ready[r], arrived[r]) for r in range(count)}
    return _booked(booking, ring(count), ready).schedule()


def reduced_by_a_tree_and_spread(instance: Instance) -> tuple[Send, ...]:
    """AllReduce: all parts up a binomial tree to rank 0, then all wholes down it."""
    count = instance.topology.rank_count
    booking, ready, chunks = Booking(instance), dict.fromkeys(range(count), 0), list(range(count))
    distance = 1
    while distance < count:
        for r in range(distance, count, 2 * distance):
            arrived = booking.send(r, r - distance, chunks, ready[r], combines=True)
            ready[r - distance] = max(ready[r - distance], arrived)
        distance *= 2
    return _booked(booking, tree(count, chunks), ready).schedule()


def doubling(count: int) -> Steps:
    """AllGather by recursive doubling: chunk r starts at rank r; what a rank has doubles with every step."""
    distance = 1
    while distance < count:
        yield [
            (r, r ^ distance, list(range(r // distance * distance, (r // distance + 1) * distance)))
            for r in range(count)
        ]
        distance *= 2


def bruck(count: int) -> Steps:
    """AllGather by dissemination: r sends to r - distance the chunks from its own on, as many as are lacking."""
    distance = 1
    while distance < count:
        many = min(distance, count - distance)
        yield [(r, (r - distance) % count, sorted((r + i) % count for i in range(many))) for r in range(count)]
        distance *= 2


def ring(count: int) -> Steps:
    """AllGather round a ring."""
    for step in range(count - 1):
        yield [(r, (r + 1) % count, [(r - step) % count]) for r in range(count)]


def tree(count: int, chunks: list[int]) -> Steps:
    """Broadcast from rank 0 down a binomial tree."""
    distance = 1
    while distance < count:
        distance *= 2
    while distance > 1:
        distance //= 2
        yield [(r, r + distance, chunks) for r in range(0, count, 2 * distance) if r + distance < count]


def exchange(count: int) -> Steps:
    """AllToAll: chunk s n + d from s to d, in n - 1 steps of pairs."""
    for distance in range(1, count):
        yield [(s, (s + distance) % count, [s * count + (s + distance) % count]) for s in range(count)]


def bruck_exchange(count: int) -> Steps:
    """AllToAll by Bruck: a chunk goes the binary digits of its distance, the smallest first."""
    distance = 1
    while distance < count:
        step = []
        for r in range(count):
            # At r are the chunks from s = r - (their distance so far) to d.
            carried = [
                s * count + d
                for s in range(count)
                for d in range(count)
                if (d - s) % count & distance and (s + ((d - s) % count & (distance - 1))) % count == r
            ]
            step.append((r, (r + distance) % count, carried))
        yield step
        distance *= 2


AllGather = Callable[[int], Steps]


def _booked(booking: Booking, steps: Steps, ready_ns: dict[int, int]) -> Booking:
    ready = dict(ready_ns)
    for step in steps:
        arrived: dict[int, int] = {}
        for source, target, chunks in step:
            if chunks:
                arrived[target] = booking.send(source, target, chunks, ready.get(source, 0))
        ready = {r: max(ready.get(r, 0), arrived.get(r, 0)) for r in {*ready, *arrived}}
    return booking
