"""The classic algorithms of a problem, the most promising first: which trees, which form, how many chunks.

The time of an algorithm is estimated from its messages with k0 chunks a piece, enough for its trees to take turns. Let
its busiest resource carry bytes for ``work`` ns and messages for ``fixed`` ns, and its longest path cost ``path`` ns
without bytes and ``fill`` ns for them. With k chunks it takes about ``work + fixed k / k0``, and ``path + fill k0 / k``
until the first chunk is there. The fewest chunks that come near the least of that are tried; from there, twice and half
as many, as long as that is faster.

Problems that are too large to plan are refused at once, with the size that can be planned. Time and memory of a plan go
by its *deliveries*, chunks times the ranks that must get them: list scheduling takes about a millisecond and 3 KiB for
each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import ROOTED, chunk_bytes, forms_of, instance_of, named_chunk_counts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem, Sketch
from loadmaster.planner.collective.sketches import turning
from loadmaster.planner.collective.trees import Messages, TreeClassic, messages, tree_classics

# A minute or two of list scheduling, and less than a GiB.
MOST_DELIVERIES = 1 << 18


def deliveries(problem: CollectiveProblem, chunk_count: int) -> int:
    """Count the deliveries of a problem: for each chunk the ranks that must get it; of sums that go on, the results."""
    if problem.custom is not None:
        return sum(len(set(chunk.targets) - set(chunk.sources)) for chunk in problem.custom)
    ranks = problem.topology.rank_count
    pairs = ranks - 1 if problem.collective in ROOTED else ranks * (ranks - 1)
    return pairs * chunk_count


def expect_plannable(problem: CollectiveProblem) -> None:
    """Refuse a problem that is too large to plan. Raises InputError naming what makes it so, and the most that can be
    planned."""
    for chunk_count in named_chunk_counts(problem) or (1,):
        found = deliveries(problem, chunk_count)
        if found <= MOST_DELIVERIES:
            continue
        what = f"makes {found:,} deliveries of chunks to ranks; {MOST_DELIVERIES:,} can be planned"
        if problem.custom is not None:
            raise InputError("custom", len(problem.custom), what, "Give fewer chunks, or fewer targets of each.")
        each = deliveries(problem, 1)
        if each <= MOST_DELIVERIES:
            raise InputError("chunk_counts", chunk_count, what, f"Give at most {MOST_DELIVERIES // each}.")
        most = next(n for n in range(problem.topology.rank_count, 0, -1) if n * (n - 1) <= MOST_DELIVERIES)
        raise InputError("topology", problem.topology.rank_count, what, f"Give at most {most} ranks.")


# More messages than this take seconds to order and to check; the fewest chunks are tried whatever they make.
MOST_MESSAGES = 1 << 17
MOST_PARTS = 1 << 10
# Estimates are of no more messages than this, where the fewest chunks make no more.
ESTIMATED_MESSAGES = 1 << 12
# Of more deliveries than this, one chunk stands for all that symmetries make of it.
PLAIN_DELIVERIES = 1 << 13
# Estimates that are made before the best of them are tried.
BATCH = 12
# An estimate adds up what may overlap: it may be twice the time. Beyond that part of the best it is not tried.
WORTH = 1.8
# The fewest chunks within that part of the least estimate, and other numbers of them within that part of the best time.
CLOSE, NEAR = 1.02, 1.1


@dataclass
class _Listed:
    """Algorithm in a form, with the estimate of each number of chunks, ascending. ``known_ns``: its time with ``count``
    chunks, where it was made."""

    classic: TreeClassic
    form: Form
    likely_ns: dict[int, float]
    known_ns: int | None = None

    @property
    def hoped_ns(self) -> float:
        """Time in ns with ``count`` chunks: the one that was found, else the estimate."""
        return self.likely_ns[self.count] if self.known_ns is None else self.known_ns

    @property
    def count(self) -> int:
        """Number of chunks to start with: the fewest that come near the least estimate."""
        least = min(self.likely_ns.values())
        return next(count for count, ns in self.likely_ns.items() if ns <= CLOSE * least)


# Orders and checks the messages of an algorithm in a form with a number of chunks; returns its time, or None.
Offer = Callable[[TreeClassic, Form, int, Messages], int | None]


@dataclass
class Baseline:
    """The classic algorithms of one size. ``whole`` makes the instance of a form and a number of chunks; ``over`` says
    whether the time to look for symmetries is up."""

    problem: CollectiveProblem
    size_bytes: int
    whole: Callable[[Form, int], Instance]
    over: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._unlisted = self._listed()
        self._left: list[_Listed] = []

    def first(self, offer: Offer) -> None:
        """Offer the first classic algorithm, with the number of chunks that suits it."""
        for listed, estimated, made in self._unlisted:
            again = made if listed.count == estimated else None
            listed.known_ns = self._offered(offer, listed, listed.count, again)
            self._left.append(listed)
            return

    def search(self, offer: Offer, best_ns: int | None, over: Callable[[], bool]) -> None:
        """Try all algorithms that may be faster than the best, until the time is up; may be called again to go on.
        Estimates are made in batches: those faster than the best are tried before the next batch, the rest after all.
        """
        while not over():
            best_ns = self._tried(offer, best_ns, 1.0, over)
            batch = [found[0] for found in self._batch(over)]
            self._left += batch
            if not batch and not over():
                self._tried(offer, best_ns, WORTH, over)
                return

    def _batch(self, over: Callable[[], bool]) -> Iterator[tuple[_Listed, int, Messages]]:
        """Yield the next few algorithms with their estimates."""
        for _ in range(BATCH):
            found = None if over() else next(self._unlisted, None)
            if found is not None:
                yield found

    def _tried(self, offer: Offer, best_ns: int | None, worth: float, over: Callable[[], bool]) -> int | None:
        """Try the algorithms whose estimates are within a part of the best time; return the best time after that."""
        self._left.sort(key=lambda listed: listed.hoped_ns, reverse=True)
        while self._left and not over():
            if best_ns is not None and self._left[-1].hoped_ns > worth * best_ns:
                break
            time_ns = self._climb(self._left.pop(), offer, best_ns, over)
            if time_ns is not None:
                best_ns = time_ns if best_ns is None else min(best_ns, time_ns)
        return best_ns

    def _climb(self, listed: _Listed, offer: Offer, best_ns: int | None, over: Callable[[], bool]) -> int | None:
        """Return the least time of an algorithm, from the number of chunks that suits it."""
        counts = list(listed.likely_ns)
        start = counts.index(listed.count)
        first_ns = listed.known_ns
        if first_ns is None:
            first_ns = self._offered(offer, listed, counts[start])
        if first_ns is None or (best_ns is not None and first_ns > NEAR * best_ns):
            return first_ns
        time_ns = first_ns
        # Fewer are estimated to be worse: they are tried where that takes no time worth counting.
        fewer = [count for count in counts[:start][::-1] if deliveries(self.problem, count) <= ESTIMATED_MESSAGES]
        for ways in (counts[start + 1 :], fewer):
            for count in ways:
                found_ns = None if over() else self._offered(offer, listed, count)
                if found_ns is None or found_ns >= time_ns:
                    break
                time_ns = found_ns
            if time_ns < first_ns:
                break
        return time_ns

    def _offered(self, offer: Offer, listed: _Listed, count: int, made: Messages | None = None) -> int | None:
        """Offer an algorithm with a number of chunks; return its time. Its messages may be made already."""
        made = made or messages(self._instance(listed.form, count), listed.classic)
        return None if made is None else offer(listed.classic, listed.form, count, made)

    def _instance(self, form: Form, count: int) -> Instance:
        """Build the instance of a form and chunk count, with symmetries where it is large."""
        if deliveries(self.problem, count) > PLAIN_DELIVERIES and self._turning is not None:
            with contextlib.suppress(InputError):
                return instance_of(self.problem, self.size_bytes, count, form, self._turning)
        return self.whole(form, count)

    @cached_property
    def _turning(self) -> Sketch | None:
        return turning(self.problem, self.over)

    def _listed(self) -> Iterator[tuple[_Listed, int, Messages]]:
        """Every algorithm in every form with its estimates; the number of chunks and the messages that they are of."""
        for classic in tree_classics(self.problem.topology, rooted=self.problem.collective in ROOTED):
            for form in forms_of(self.problem):
                counts = part_counts(self.problem, self.size_bytes, form)
                few = [count for count in counts if deliveries(self.problem, count) <= ESTIMATED_MESSAGES]
                estimated = max(few, default=counts[0])
                instance = self._instance(form, estimated)
                made = messages(instance, classic)
                if made is None or not made.sends:
                    continue
                work, fixed, path, fill = _costs(instance, made)
                likely = {}
                for count in counts:
                    more = count / estimated
                    if count == counts[0] or made.count * more <= MOST_MESSAGES:
                        likely[count] = work + fixed * more + path + fill / more
                yield _Listed(classic, form, likely), estimated, made


def part_counts(problem: CollectiveProblem, size_bytes: int, form: Form) -> Sequence[int]:
    """Parts of a piece, ascending: what the problem names, or powers of two that divide the size."""
    return sorted(named_chunk_counts(problem)) or list(_dividing(problem, size_bytes, form)) or [1]


def _dividing(problem: CollectiveProblem, size_bytes: int, form: Form) -> Iterator[int]:
    of_one = deliveries(problem, 1)
    parts = 1
    while parts == 1 or (parts <= MOST_PARTS and parts * of_one <= MOST_MESSAGES):
        if problem.collective != "alltoallv":
            try:
                chunk_bytes(problem, size_bytes, parts, form)
            except InputError:
                return
        yield parts
        parts *= 2


def _costs(instance: Instance, made: Messages) -> tuple[float, float, float, float]:
    """Terms of an estimate in ns: work and fixed cost of the busiest resource, path and fill of the longest path."""
    topology, sizes = instance.topology, [chunk.size_bytes for chunk in instance.chunks]
    work, fixed = [0.0] * len(topology.resources), [0.0] * len(topology.resources)
    # Per chunk and rank, the time of the longest way that a part or the whole took to there, and its part for bytes.
    there: dict[tuple[int, int], tuple[float, float]] = {}
    longest = 0.0, 0.0
    for send in made.sends:
        (c,) = send.chunks
        link = topology.links[topology.link_between[send.source, send.target]]
        bytes_ns = sizes[c] / link.gbps
        for resource in link.resources:
            stands = resource if made.images is None else made.images.resource[resource]
            work[stands] += bytes_ns
            fixed[stands] += link.message_ns
        before, of_bytes = there.get((c, send.source), (0.0, 0.0))
        after = before + bytes_ns + link.message_ns + link.latency_ns, of_bytes + bytes_ns
        key = c, send.target
        if after > there.get(key, (0.0, 0.0)):
            there[key] = after
            longest = max(longest, after)
    busiest = max(range(len(work)), key=lambda r: work[r] + fixed[r])
    return work[busiest], fixed[busiest], longest[0] - longest[1], longest[1]
