"""One stretch of saved memory, and where it is: on the device, on its way, stored, or on its way back.

    kept ------> storing ------> stored ------> loading (and then loaded)
      ^             |                              |
      +-------------+ forwarded, cancelled, failed +--> stored, when a backward pass that keeps its graph is over

A part has a strong reference to its memory until the store is over. When the last graph that saved it lets it go, what
it holds goes to a queue that the cache empties at its next call: finalizers run anywhere, on any thread, so they do no
more than that.

A storage at one version of its contents has one record, however many tensors share it. The record hangs on the storage,
so that it is never found by an address that is used again, and only weakly: it lives as long as a graph needs it. A
view of a small part of a large storage must not send the whole storage. Views that are saved one after another are
looked at together: if they cover half of the storage, it is sent whole; else each of them is copied and sent alone, and
comes back dense.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from loadmaster.executor.placement.cache.backends.protocol import Stored, Transfer
from loadmaster.executor.torch_private.autograd import version_of

COVERED = 0.5  # of a storage, from which on it is sent whole
_NAME = "_loadmaster_records"


@dataclass(frozen=True)
class Layout:
    """Layout of a tensor in its storage: type, shape, strides and offset."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        """Read the layout of a tensor."""
        return cls(tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements of the tensor."""
        return self.size.numel() * self.dtype.itemsize

    def on(self, memory: Tensor) -> Tensor:
        """Make a tensor of this layout on the storage of another one."""
        empty = torch.empty(0, dtype=self.dtype, device=memory.device)
        return empty.set_(memory.untyped_storage(), self.offset, self.size, self.stride)


def all_bytes(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor, uint8 [n]."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


class Checked:
    """A saved tensor that stays as it is, and its version: autograd checks no version behind hooks."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        # A tensor that is an output of the node that saves it would hold the node that holds it.
        self._tensor = tensor if tensor.grad_fn is None else tensor.detach()
        self._version = _version(tensor)

    def unchanged(self) -> bool:
        """Return whether nobody has written to the tensor since it was saved."""
        return _version(self._tensor) == self._version

    def tensor(self) -> Tensor:
        """Return the saved tensor; raises RuntimeError if it was modified in place."""
        if not self.unchanged():
            raise modified(Layout.of(self._tensor), (self._version, _version(self._tensor)))
        return self._tensor


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else version_of(tensor)


def modified(layout: Layout, versions: tuple[int, int] | None) -> RuntimeError:
    """Make the error that PyTorch raises where nothing is offloaded."""
    what = f"{str(layout.dtype).removeprefix('torch.')} {list(layout.size)}"
    how = "is at another version than when it was saved"
    if versions is not None:
        how = f"is at version {versions[1]}; expected version {versions[0]} instead"
    return RuntimeError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: [{what}] "
        f"{how}. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True)."
    )


@dataclass(eq=False)
class Remains:
    """Memory and copies of a part that nobody needs any more."""

    source: Tensor | None
    stored: Stored | None
    load: Transfer | None
    target: Tensor | None

    def over(self) -> bool:
        """Return whether no copy reads or writes what is held here; a store that has not begun never will. Without a
        source the store is over, or the stream that its memory is of was told to wait."""
        if self.source is not None and self.stored is not None and not self.stored.over():
            return self.stored.cancel()
        return self.load is None or self.load.over()


class Part:
    """One stretch of saved memory, uint8 [n]; see the head of the file. All methods are called under the cache's lock.

    ``checked`` is the tensor whose version says whether the memory is as it was; None for a copy of our own. Copies
    that are under way when the part dies are left to ``remains``.

    Attributes:
        stream: the one that the memory it comes back to belongs to.
        arrived: a stream that uses it was told to wait for what comes back.
        wanted: the backward pass is about to need it; it stays when the store is over.
        passed: the backward pass has been there.
        ahead: the tape that counts it among the parts that come back before they are needed.
    """

    def __init__(self, source: Tensor, checked: Checked | None, remains: deque[Remains]) -> None:
        self.size_bytes, self.device = source.numel(), source.device
        self.source: Tensor | None = source
        self.stored: Stored | None = None
        self.load: Transfer | None = None
        self.target: Tensor | None = None
        self.stream: torch.cuda.Stream | None = None
        self.arrived = self.wanted = self.passed = False
        self.ahead: object = None
        self._ruined = False  # modified while it was stored
        self._checked, self.remains = checked, remains

    def __del__(self) -> None:
        self._let_go(self.source if self.storing else None, self.stored)

    @property
    def storing(self) -> bool:
        """True if a store was asked for and the part's memory is still held."""
        return self.stored is not None and self.source is not None

    @property
    def away(self) -> bool:
        """True if the part is only in the backend, and nothing brings it back."""
        return self.source is None and self.load is None and not self._ruined

    def commit(self) -> None:
        """Let go of the memory when the store is over, unless it failed or the memory is wanted."""
        assert self.stored is not None
        if self.wanted or self.stored.failure() is not None:
            self._keep()
            return
        self._ruined = self._checked is not None and not self._checked.unchanged()
        self.source = self._checked = None

    def forward(self) -> bool:
        """Use the memory before its store is over; return whether the store could be cancelled."""
        assert self.stored is not None
        self.wanted = True
        cancelled = self.stored.cancel()
        if cancelled:
            self._keep()
        return cancelled

    def again(self) -> None:
        """Forget the backward pass, and what it brought back: another one may come."""
        self.passed, self.ahead = False, None
        if self.load is not None:
            self._let_go(None, None)
            self.load, self.target, self.arrived = None, None, False

    def memory(self, layout: Layout) -> Tensor:
        """Return the memory that holds the part on the device; raises RuntimeError if it was modified in place."""
        if self._ruined:
            raise modified(layout, None)
        if self._checked is not None:
            self._checked.tensor()
        held = self.source if self.source is not None else self.target
        assert held is not None
        return held

    def _keep(self) -> None:
        self._let_go(None, self.stored)
        self.stored = None

    def _let_go(self, source: Tensor | None, stored: Stored | None) -> None:
        """Leave to the cache what a copy may still read or write."""
        load, target = (None, None) if self.arrived else (self.load, self.target)
        if stored is not None or load is not None:
            self.remains.append(Remains(source, stored, load, target))


class Record:
    """Parts of one storage that graphs saved: ``views`` wait for a decision, by layout; ``whole`` holds the whole
    storage, if a part does; ``pieces`` hold copies of single views, with the layouts of the copies."""

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


def record_of(tensor: Tensor, cache: int) -> Record:
    """Find a cache's record of a tensor's storage at its version, or make a new one."""
    storage = tensor.untyped_storage()
    books: weakref.WeakValueDictionary[tuple[int, int], Record]
    books = storage.__dict__.setdefault(_NAME, weakref.WeakValueDictionary())
    key = (cache, version_of(tensor))
    record = books.get(key)
    if record is None:
        record = books[key] = Record(storage.nbytes())
    return record
