"""Tape of what one forward pass saved, in order, and when; the backward pass needs it in the reverse order."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from loadmaster.executor.placement.cache.adaptive import Plan, Profile
from loadmaster.executor.placement.cache.parts import Layout, Part, Record
from loadmaster.executor.steps.measure import Mark, seconds


class Stopwatch:
    """Times one forward pass: when each part was saved, and what waiting took."""

    def __init__(self) -> None:
        self._saved: list[tuple[int, Mark]] = []
        self._waits: list[tuple[Mark, Mark]] = []
        self._waits_before: list[int] = []
        self._end: Mark | None = None

    def saved(self, size_bytes: int, at: Mark) -> None:
        """Note that a part was saved."""
        if self._end is None:
            self._saved.append((size_bytes, at))
            self._waits_before.append(len(self._waits))

    def waited(self, start: Mark, stop: Mark) -> None:
        """Note a wait, in which training stood still."""
        if self._end is None:
            self._waits.append((start, stop))

    def ended(self, at: Mark) -> None:
        """Note that the backward pass begins; only the first time counts."""
        self._end = self._end if self._end is not None else at

    def profile(self) -> Profile | None:
        """Profile of the forward pass; None before it is over, or if nothing was saved. Waits for the device."""
        if self._end is None or not self._saved:
            return None
        waits_s = [seconds(*wait) for wait in self._waits]
        start, timed = self._saved[0][1], zip(self._saved, self._waits_before, strict=True)
        at_s = [seconds(start, at) - sum(waits_s[:before]) for (_, at), before in timed]
        forward_s = seconds(start, self._end) - sum(waits_s)
        sizes = tuple(size for size, _ in self._saved)
        return Profile(sizes, tuple(max(0.0, s) for s in at_s), max(forward_s, 0.0, *at_s))


class Tape:
    """The uses of records in one forward pass, or in several with no backward pass between them.

    ``sizes`` are the bytes of the parts that were met first here, which the plan counts. ``plan`` says what is sent
    (None: everything), after ``timed`` passes; ``watch`` times this one, for a plan. Once the backward pass has
    ``begun``, ``brought_bytes`` come back in all, and ``ahead_bytes`` of them are not needed yet.
    """

    def __init__(self, plan: Plan | None, timed: int, watch: Stopwatch | None) -> None:
        self._uses: list[tuple[weakref.ref[Record], Layout, int]] = []  # and how many parts had been met
        self._before: list[int] = []  # bytes of the parts that were met before a use
        self._bytes = 0
        self._near: int | None = None
        self._far: int | None = None
        self.sizes: list[int] = []
        self.plan, self.timed, self.watch, self.begun = plan, timed, watch, False
        self.ahead_bytes = self.brought_bytes = 0

    def add(self, record: Record, layout: Layout) -> int:
        """Add one more use and return its number."""
        self._uses.append((weakref.ref(record), layout, len(self.sizes)))
        self._before.append(self._bytes)
        self._near = self._far = None  # a micro-batch that was entered again went on with its forward pass
        return len(self._uses) - 1

    def __len__(self) -> int:
        return len(self._uses)

    def met(self, part: Part) -> int:
        """Add a part that is decided upon; return how many were before it."""
        self.sizes.append(part.size_bytes)
        self._bytes += part.size_bytes
        return len(self.sizes) - 1

    def alive(self) -> bool:
        """Return whether a graph still needs anything of the tape."""
        return any(record() is not None for record, _, _ in self._uses)

    def part(self, use: int) -> Part | None:
        """Find the part that a use needs; None once no graph needs it, or before it is decided."""
        record = self._uses[use][0]()
        found = record.found(self._uses[use][1]) if record is not None else None
        return found[0] if found is not None else None

    def near(self, use: int, window_bytes: int) -> Iterator[Part]:
        """Parts that are needed next after a use, within so many bytes of the pass; each is yielded once."""
        here_bytes = self._before[use] if use < len(self) else self._bytes
        n = use if self._near is None else min(self._near, use)
        while n and here_bytes - (self._before[n] if n < len(self) else here_bytes) < window_bytes:
            n -= 1
            self._near = n
            if (part := self.part(n)) is not None and not part.passed:
                yield part

    def far(self, use: int, window_bytes: int) -> Iterator[Part]:
        """Parts to bring back now, in the order they are needed; each is yielded once. A window of them is ahead at any
        time, and where there is a plan, all that is due."""
        due = self.plan.due if self.plan is not None else ()
        due_bytes = due[min(self._uses[use][2], len(due) - 1)] if due and use < len(self) else 0
        self._far = use - 1 if self._far is None else min(self._far, use - 1)
        while self._far >= 0 and (self.ahead_bytes < window_bytes or self.brought_bytes < due_bytes):
            part = self.part(self._far)
            self._far -= 1
            if part is not None and part.away:
                yield part

    def rewind(self) -> None:
        """Start again after a backward pass: another one may need what is still there."""
        for n in range(len(self)):
            if (part := self.part(n)) is not None:
                part.again()
        self._near = self._far = None
        self.ahead_bytes = self.brought_bytes = 0
