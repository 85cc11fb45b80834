"""Pages of storages, on the device or in host memory, under a byte limit.

Every storage of the device has a page. To evict a page, its storage is resized to nothing, and its bytes are in the
host until an operator needs them. The copy in the host stays good until the page is written, and saves the next one. A
storage that dies is forgotten without a copy. The account holds what is on the device, copies under way included. It
exceeds the limit only for operators whose results nobody can foresee, and those are counted.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.placement.pager.copies import Copies, Ticket
from loadmaster.executor.placement.recorder import StorageTable
from loadmaster.models.units import show_bytes


@dataclass(eq=False)
class Page:
    """A storage, wherever its bytes are.

    Attributes:
        storage: a weak reference; the tensors hold it.
        fixed: it cannot move: it is small, its size cannot change, or its address was given away.
        host: its bytes in the host, None where there is no good copy.
        arriving, leaving: copies under way, which ``held`` keeps the storage for.
        number: of the recorded storage that it is at present, in the plan that is followed.
        slot: of the storages that take each other's place from step to step, for the prefetcher.
    """

    storage: weakref.ref[torch.UntypedStorage]
    size_bytes: int
    fixed: bool
    resident: bool = True
    host: Tensor | None = None
    arriving: Ticket | None = None
    leaving: Ticket | None = None
    held: torch.UntypedStorage | None = None
    number: int | None = None
    slot: int | None = None
    dead: bool = False


# Picks the page that leaves of those that may, given with the least recently used first; None: none of them.
Choice = Callable[[Iterator[Page]], Page | None]


def least_recently_used(pages: Iterator[Page]) -> Page | None:
    """Pick the first page, which is the least recently used one."""
    return next(pages, None)


@dataclass
class Counts:
    """Counts of what happened: bytes moved, pages that an operator had to wait for, storages that nobody foresaw."""

    faults: int = 0
    prefetches: int = 0
    late: int = 0
    evictions: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    unforeseen: int = 0
    peak_bytes: int = 0


class PagedMemory:
    """Storages of one device as pages under a byte limit; those smaller than ``small_bytes`` never move. While
    ``paused``, everything is on the device and stays there. ``choice`` picks the page that leaves for what an operator
    needs; ``was_short`` says whether any page had to leave."""

    def __init__(self, budget_bytes: int, copies: Copies, small_bytes: int) -> None:
        self.budget_bytes, self.small_bytes = budget_bytes, small_bytes
        self.used_bytes = 0
        self.paused = False
        self.counts = Counts()
        self.choice: Choice = least_recently_used
        self.was_short = False
        self._copies = copies
        self._table = StorageTable[Page](self._died)
        self._movable: OrderedDict[Page, None] = OrderedDict()  # resident, the least recently used first
        self._leaving: list[Page] = []

    # Pages

    def page(self, storage: torch.UntypedStorage) -> Page | None:
        """Return the page of a storage; None if the storage is not known."""
        return self._table.get(storage)

    def pages(self) -> list[Page]:
        """Pages of all storages that live."""
        return [page for _, page in self._table.living()]

    def add(self, storage: torch.UntypedStorage) -> Page:
        """Count a storage that is on the device from now on."""
        size_bytes = storage.nbytes()
        fixed = size_bytes < self.small_bytes or not storage.resizable()
        page = Page(weakref.ref(storage), size_bytes, fixed)
        self._table.add(storage, page)
        if not fixed:
            self._movable[page] = None
        self._take(size_bytes)
        return page

    def touch(self, pages: Iterable[Page]) -> None:
        """Count pages as the most recently used ones."""
        for page in pages:
            if page in self._movable:
                self._movable.move_to_end(page)

    def will_be_written(self, page: Page) -> None:
        """Give up the page's copy in the host, which will be out of date; a copy under way is waited for."""
        if page.leaving is not None:
            self._left(page)
        page.host = None

    def fix(self, page: Page) -> None:
        """Keep a page on the device from now on."""
        page.fixed = True
        self._movable.pop(page, None)

    # Room

    def ensure(self, pages: Collection[Page], contents: Collection[Page], new_bytes: int, what: Any) -> None:
        """Have these pages on the device, and room for more bytes; raises InputError if they do not fit into the limit.
        The bytes of ``contents`` are needed; the other pages are written whole. ``what`` is the operator, for
        messages."""
        missing = [page for page in pages if not page.resident]
        room = new_bytes + sum([page.size_bytes for page in missing])
        if not self.has_room(room):
            needed = new_bytes + sum(page.size_bytes for page in pages)
            if needed > self.budget_bytes:
                self._refuse(what, needed, 0)
            if not self.make_room(room, pages):
                self._refuse(what, needed, sum(p.size_bytes for p in self.pages() if p.fixed and p not in pages))
        for page in missing:
            self.counts.faults += 1
            self.load(page, with_bytes=page in contents)
        for page in pages:
            self._arrived(page)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether so many bytes are free."""
        return self.used_bytes + size_bytes <= self.budget_bytes

    def make_room(self, size_bytes: int, keep: Collection[Page] = (), choice: Choice | None = None) -> bool:
        """Evict until so many bytes are free, or nothing more can leave; return whether they are free."""
        choice = choice or self.choice
        while not self.has_room(size_bytes):
            victim = choice(page for page in self._movable if page not in keep)
            if victim is None:
                return False
            self.was_short = True
            self.counts.evictions += 1
            self.evict(victim)
        return True

    def movable(self) -> Iterator[Page]:
        """Pages on the device that could leave, the least recently used first."""
        return iter(self._movable)

    def _refuse(self, what: Any, needed: int, fixed: int) -> None:
        beside = f", beside {show_bytes(fixed)} that cannot move" if fixed else ""
        problem = f"{what} alone needs {show_bytes(needed)} on the device{beside}"
        remedy = f"Give {show_bytes(needed + fixed)} or more, or make that operator smaller."
        raise InputError("budget_bytes", self.budget_bytes, problem, remedy)

    # Moves

    def store(self, page: Page) -> None:
        """Copy a page to the host; it stays on the device."""
        storage = page.storage()
        if storage is None or not page.resident or page.fixed or page.host is not None:
            return
        self._arrived(page)
        page.host, page.leaving = self._copies.store(storage)
        self.counts.stored_bytes += page.size_bytes
        if page.leaving is not None:
            page.held = storage
            self._leaving.append(page)

    def evict(self, page: Page) -> None:
        """Free the page's device memory, with its bytes in the host."""
        storage = page.storage()
        if storage is None or not page.resident or page.fixed:
            return
        self._arrived(page)
        self.store(page)
        if page.leaving is not None:
            self._left(page)
        storage.resize_(0)
        page.resident = False
        self._movable.pop(page, None)
        self.used_bytes -= page.size_bytes

    def load(self, page: Page, *, with_bytes: bool = True) -> None:
        """Give a page device memory again, and start the copy back."""
        storage = page.storage()
        if storage is None or page.resident:
            return
        storage.resize_(page.size_bytes)
        page.resident = True
        self._movable[page] = None
        self._take(page.size_bytes)
        if with_bytes and page.host is not None:
            page.arriving = self._copies.load(storage, page.host)
            page.held = storage if page.arriving is not None else page.held
            self.counts.loaded_bytes += page.size_bytes

    def prefetch(self, page: Page) -> bool:
        """Load a page if there is room; return whether it is on the device."""
        if page.resident:
            return True
        if not self.has_room(page.size_bytes):
            return False
        self.counts.prefetches += 1
        self.load(page)
        return True

    def settle(self) -> None:
        """Let go of storages whose copies to the host are over."""
        for page in list(self._leaving):
            if page.leaving is None or page.leaving.over():
                self._left(page)

    def restore_all(self) -> None:
        """Bring all pages back, whatever the limit. Raises torch.OutOfMemoryError if the device does not hold them; the
        bytes of those that are not back are in the host."""
        for page in self.pages():
            self._arrived(page)
            if page.leaving is not None:
                self._left(page)
            if not page.resident:
                self.load(page)
                self._arrived(page)

    def forget(self) -> None:
        """Let go of all pages, without moving any."""
        self._table.clear()
        self._movable.clear()
        self._leaving.clear()
        self.used_bytes = 0

    def _arrived(self, page: Page) -> None:
        if page.arriving is None:
            return
        page.arriving.wait()
        page.arriving = None
        if page.leaving is None:
            page.held = None

    def _left(self, page: Page) -> None:
        if page.leaving is not None:
            page.leaving.wait()
        page.leaving = None
        if page in self._leaving:
            self._leaving.remove(page)
        if page.arriving is None:
            page.held = None

    def _take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self.counts.peak_bytes = max(self.counts.peak_bytes, self.used_bytes)

    def _died(self, page: Page) -> None:
        page.dead = True
        page.host = None
        if page.resident:
            page.resident = False
            self.used_bytes -= page.size_bytes
        self._movable.pop(page, None)
