"""Schedule of a placement plan: moves before each call of the step, followed while the calls are as recorded.

A call that was not recorded (a loss that is printed now and then) is passed over; calls that do not come are skipped,
if one of the next that do come was recorded soon after. After too many strangers the rest of the step has no plan.
Whatever is followed, an operator gets its pages: a plan only decides when they move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadmaster.executor.placement.pager.memory import Page, PagedMemory
from loadmaster.executor.placement.trace import Trace
from loadmaster.models.placement.plan import Moves

_WINDOW = 64  # calls that may be missing, or strange, in a row


@dataclass(frozen=True)
class Call:
    """A call of the recorded step.

    Attributes:
        key: what tells it from other calls: its operator, and shape and type of each tensor.
        operands, births: numbers of the storages that it was given and that it made, in order; None where there is
            no page.
        new_bytes: what it allocated.
        operator: its number among the recorded operators, if it is one.
    """

    key: Hashable
    operands: tuple[int | None, ...]
    births: tuple[int | None, ...]
    new_bytes: int
    operator: int | None


@dataclass(frozen=True)
class Move:
    """A move of the page that the recorded storage ``number`` is."""

    what: Literal["store", "evict", "load"]
    number: int


@dataclass
class Schedule:
    """Moves before each call of the recorded step."""

    calls: Sequence[Call]
    moves: dict[int, list[Move]]
    uses: dict[int, list[int]] = field(default_factory=dict)
    places: dict[Hashable, list[int]] = field(default_factory=dict)
    born: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for at, call in enumerate(self.calls):
            self.places.setdefault(call.key, []).append(at)
            self.born.update(number for number in call.births if number is not None)
            for number in {*call.operands, *call.births}:
                if number is not None:
                    self.uses.setdefault(number, []).append(at)


def schedule_of(calls: Sequence[Call], trace: Trace, moves: Moves) -> Schedule:
    """Build the schedule of a plan: each move comes before the first call of its operator."""
    count = len(trace.problem.operators)
    first: dict[int, int] = {}
    for at, call in enumerate(calls):
        if call.operator is not None:
            first.setdefault(trace.positions[call.operator], at)
    first[0] = 0
    found: dict[int, list[Move]] = {}
    # In this order: what is stored, what leaves after its copy, what comes into the room.
    for store in moves.stores:
        found.setdefault(first[store.at], []).append(Move("store", trace.blocks[store.block]))
    for absence in moves.absences:
        found.setdefault(first[absence.gone_at], []).append(Move("evict", trace.blocks[absence.block]))
    for absence in moves.absences:
        at = first[absence.load_at % count]
        found.setdefault(at, []).append(Move("load", trace.blocks[absence.block]))
    return Schedule(calls, found)


class Follower:
    """Position of a running step in its schedule."""

    def __init__(self, schedule: Schedule, memory: PagedMemory) -> None:
        self.schedule, self.memory = schedule, memory
        self.at = 0
        self.strange = 0
        self.matched = 0
        self.lost = False
        self.pages: dict[int, Page] = {}
        self._late: list[int] = []

    def begin(self) -> None:
        """Begin a new step at the start of the schedule."""
        self.at = self.strange = self.matched = 0
        self.lost = False
        self._late.clear()

    def expect(self, key: Hashable) -> Call | None:
        """Make the moves before a call, and return the recorded call that it is; None of a stranger."""
        if self.lost:
            return None
        calls = self.schedule.calls
        if self.at >= len(calls) or calls[self.at].key != key:
            places = self.schedule.places.get(key, ())
            later = bisect_right(places, self.at)
            if later == len(places) or places[later] - self.at > _WINDOW:
                self.strange += 1
                self.lost = self.strange > _WINDOW
                return None
            while self.at < places[later]:
                self._move()
                self.at += 1
        self.strange = 0
        self.matched += 1
        self._move()
        self.at += 1
        return calls[self.at - 1]

    def is_next(self, key: Hashable) -> bool:
        """Return whether the next recorded call has this key."""
        return self.at < len(self.schedule.calls) and self.schedule.calls[self.at].key == key

    def pass_by(self) -> Call:
        """Pass the next recorded call and return it, while another plan is followed."""
        self.at += 1
        self.matched += 1
        return self.schedule.calls[self.at - 1]

    def is_now(self, number: int, page: Page) -> None:
        """Note that the page is that recorded storage from now on."""
        self.pages[number] = page

    def victim(self, pages: Iterator[Page]) -> Page | None:
        """Pick the page whose next use is farthest away."""
        return max(pages, key=self._next_use, default=None)

    def _next_use(self, page: Page) -> float:
        """Number of calls until the next use of a page; one that is not used again comes last of all."""
        if page.number is None or self.pages.get(page.number) is not page:
            return 2.0 * len(self.schedule.calls)
        uses = self.schedule.uses.get(page.number, [])
        place = bisect_right(uses, self.at - 1)
        if place < len(uses):
            return uses[place] - self.at
        if page.number in self.schedule.born:  # the next step makes its own
            return 2.0 * len(self.schedule.calls)
        return len(self.schedule.calls) + uses[0] - self.at

    def _move(self) -> None:
        for number in [n for n in self._late if self._is_there(n)]:
            self._late.remove(number)
        for move in self.schedule.moves.get(self.at, ()):
            page = self.pages.get(move.number)
            if page is None or page.dead:
                continue
            if move.what == "store":
                self.memory.store(page)
            elif move.what == "evict":
                self.memory.evict(page)
            elif not self.memory.prefetch(page):
                self.memory.counts.late += 1
                self._late.append(move.number)
        self.memory.settle()

    def _is_there(self, number: int) -> bool:
        """Return whether a load that had no room is done, or not needed any more; it is tried again here."""
        page = self.pages.get(number)
        return page is None or page.dead or self.memory.prefetch(page)
