"""Prefetching of pages where no plan says when they move: what comes next is what came next the last time.

Correlation prefetching [DeepUM23] section 4, by the chain that the simulator of ``models`` has too. A kernel's
execution id is its operator with the shapes of its tensors. Storages, and their addresses, are new in every step: a
page is known by its *slot*, the call of the step at which it was made or first given. Predicted pages come as far as
room is free or held by pages that are not predicted; those are copied to the host before they have to leave, so that
neither direction keeps an operator waiting. A wrong prediction costs time, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence

from loadmaster.executor.placement.pager.memory import Page, PagedMemory
from loadmaster.models.placement.policies.chain import Chain

_WINDOW = 1 / 16  # of the limit: bytes on the device, or on their way, for operators to come

_Name = tuple[int, int, int]  # execution id, its how-manieth call of the step, which of its tensors


class Prefetcher:
    """Prefetcher that learns which pages follow each call, and brings them."""

    def __init__(self, memory: PagedMemory) -> None:
        self._memory = memory
        self._window_bytes = int(_WINDOW * memory.budget_bytes)
        self._chain = Chain(self._is_missing, self._size_bytes, window_bytes=self._window_bytes)
        self._ids: dict[Hashable, int] = {}
        self._slots: dict[_Name, int] = {}
        self._pages: list[Page] = []  # by slot
        self._calls: Counter[int] = Counter()  # of this step, by execution id
        self._now = (0, 0)
        self._early: set[Page] = set()  # brought, and not used yet
        self._spilled: list[Page] = []  # predicted, and gone all the same

    def starts(self, key: Hashable, given: Sequence[Page | None], read: Collection[Page]) -> None:
        """Learn a call that is about to run, with the operands whose bytes it reads, and predict what follows."""
        kernel = self._ids.setdefault(key, len(self._ids))
        self._now = (kernel, self._calls[kernel])
        self._calls[kernel] += 1
        slots: dict[int, None] = {}
        for place, page in enumerate(given):
            if page is not None and not page.fixed and page in read:
                slots[self._slot(page, place)] = None
                self._early.discard(page)
        for page in self._spilled:
            if page.slot is not None:
                self._chain.lost(page.slot)
        self._spilled.clear()
        self._chain.observe(kernel, tuple(slots))
        for slot in slots:
            self._chain.found(slot)

    def bring(self, used: Collection[Page], new_bytes: int) -> None:
        """Start the copies of predicted pages, and of pages that will leave for them, not for what runs now."""
        memory = self._memory
        memory.settle()
        for slot in self._chain.missing:
            page = self._pages[slot]
            if page.resident or page.dead:
                continue
            if not memory.make_room(new_bytes + page.size_bytes, used, self._unpredicted):
                break
            memory.prefetch(page)
            self._early.add(page)
        if not memory.has_room(new_bytes + self._window_bytes):
            self._store_ahead(used)

    def made(self, born: Sequence[Page | None]) -> None:
        """Learn the pages of the storages that the call made."""
        for place, page in enumerate(born):
            if page is not None and not page.fixed:
                self._slot(page, ~place)

    def victim(self, pages: Iterator[Page]) -> Page | None:
        """The least recently used page that is not predicted, or else the least recently used one."""
        first = None
        for page in pages:
            if not self._is_predicted(page):
                return page
            first = first or page
        if first is not None:
            self._spilled.append(first)
        return first

    def end_step(self) -> None:
        """End a step, so that its calls are counted from the start in the next one."""
        self._calls.clear()
        self._early = {page for page in self._early if page.resident}

    def interrupt(self) -> None:
        """Break the chain of calls, after calls that were not reported here."""
        self._chain.interrupt()

    def _slot(self, page: Page, place: int) -> int:
        slot = page.slot
        if slot is None or self._pages[slot] is not page:
            slot = page.slot = self._slots.setdefault((*self._now, place), len(self._pages))
            if slot == len(self._pages):
                self._pages.append(page)
            else:
                self._pages[slot] = page
        return slot

    def _is_predicted(self, page: Page) -> bool:
        slot = page.slot
        return slot is not None and slot in self._chain.predicted and self._pages[slot] is page

    def _unpredicted(self, pages: Iterator[Page]) -> Page | None:
        return next((page for page in pages if not self._is_predicted(page)), None)

    def _store_ahead(self, used: Collection[Page]) -> None:
        """Copy to the host what would leave next, up to a window of bytes."""
        ahead_bytes = 0
        for page in self._memory.movable():
            if page in used or self._is_predicted(page):
                continue
            if page.host is None:
                self._memory.store(page)
            ahead_bytes += page.size_bytes
            if ahead_bytes >= self._window_bytes:
                return

    def _is_missing(self, slot: int) -> bool:
        page = self._pages[slot]
        return not page.dead and (not page.resident or page in self._early)

    def _size_bytes(self, slot: int) -> int:
        return self._pages[slot].size_bytes
