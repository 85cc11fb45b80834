"""One record a storage and version: what was saved of it, whole or in pieces, however many tensors share it.

The key is the storage itself and the version of its contents. The record hangs on the storage, so that it is never
found by an address that is used again, and only weakly: it lives as long as a graph needs it.

A view of a small part of a large storage must not send the whole storage. Views that are saved one after another are
looked at together: if they cover half of the storage, it is sent whole; else each of them is copied and sent alone, and
comes back dense.
"""

from __future__ import annotations

import itertools
import weakref

from torch import Tensor

from loadmaster.executor.placement.cache.parts import Checked, Layout, Part
from loadmaster.executor.torch_private.autograd import version_of

COVERED = 0.5  # of a storage, from which on it is sent whole
_NAME = "_loadmaster_records"


class Record:
    """Parts of one storage that graphs saved.

    Attributes:
        views: those that wait for a decision, by layout.
        whole: the part that holds the whole storage, if there is one.
        pieces: parts that hold copies of single views, with the layouts of the copies.
    """

    def __init__(self, storage_bytes: int) -> None:
        self.storage_bytes = storage_bytes
        self.views: dict[Layout, Checked] = {}
        self.whole: Part | None = None
        self.pieces: dict[Layout, tuple[Part, Layout]] = {}

    def found(self, layout: Layout) -> tuple[Part, Layout] | None:
        """Find the part that holds a view, and the view's layout in it."""
        return (self.whole, layout) if self.whole is not None else self.pieces.get(layout)

    def add_view(self, layout: Layout, tensor: Tensor) -> bool:
        """Add a view that waits for a decision; return whether the storage should be sent whole."""
        self.views.setdefault(layout, Checked(tensor))
        return sum(seen.size_bytes for seen in self.views) >= COVERED * self.storage_bytes


class Ledger:
    """Index of one cache's records by storage and version."""

    _tokens = itertools.count()

    def __init__(self) -> None:
        self._token = next(Ledger._tokens)

    def record_of(self, tensor: Tensor) -> Record:
        """Find the record of a tensor's storage at its version, or make a new one."""
        storage = tensor.untyped_storage()
        books: weakref.WeakValueDictionary[tuple[int, int], Record]
        books = storage.__dict__.setdefault(_NAME, weakref.WeakValueDictionary())
        key = (self._token, version_of(tensor))
        record = books.get(key)
        if record is None:
            record = books[key] = Record(storage.nbytes())
        return record
