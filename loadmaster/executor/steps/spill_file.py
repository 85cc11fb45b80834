"""One file without a name, cut into slots of one size, read and written past the page cache where that is possible.

The file is unlinked from its first moment (``O_TMPFILE``, or unlinked once it is open), so that no end of the process
leaves it behind. Where the file system refuses ``O_DIRECT`` it goes through the page cache, and says so.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from torch import Tensor

from loadmaster.errors import InputError

ALIGNMENT_BYTES = 4096  # of addresses, lengths and places in a file, for any disk
_SLOTS_AT_ONCE = 16  # a file grows by that many: writes into room that is there already run side by side
_REMEDIES = {
    errno.ENOSPC: "Free space there, give TensorCache other folders, or let it keep more (keep).",
    errno.EDQUOT: "Raise the quota, give TensorCache other folders, or let it keep more (keep).",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f), or give TensorCache other folders.",
    errno.EACCES: "Give a folder that this process may write to.",
    errno.EPERM: "Give a folder that this process may write to.",
    errno.EROFS: "Give a folder that this process may write to.",
    errno.ENOENT: "Make the folder, or give one that exists.",
    errno.ENOTDIR: "Give a folder.",
    errno.EIO: "Look at the disk's health, or give TensorCache other folders.",
}


class SpillFile:
    """Slots of ``slot_bytes``, a multiple of ``ALIGNMENT_BYTES``, in one file without a name. Raises InputError if
    there is no such folder, or nothing can be written there."""

    def __init__(self, folder: Path, slot_bytes: int) -> None:
        self.folder, self.slot_bytes = folder, slot_bytes
        try:
            self._descriptor, self.direct = _open(folder)
        except OSError as error:
            raise self._refused(error, "opened for writing", 0) from error
        self._slots, self._free = 0, list[int]()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Take a free slot; the file grows if it has none. Raises InputError if it cannot."""
        with self._lock:
            if not self._free:
                self._grow()
            return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Give a slot back, so that its bytes may be written over."""
        with self._lock:
            self._free.append(slot)

    def write(self, slot: int, block: Tensor) -> None:
        """Write the first bytes of a slot: uint8 [n], aligned, n a multiple of ``ALIGNMENT_BYTES``. Raises InputError
        if not all of them could be written."""
        view, place, done = _bytes_of(block), slot * self.slot_bytes, 0
        while done < len(view):
            try:
                written = os.pwrite(self._descriptor, view[done:], place + done)
            except OSError as error:
                raise self._refused(error, "written", len(view)) from error
            if not written:
                raise self._refused(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "written", len(view))
            done += written

    def read(self, slot: int, block: Tensor) -> None:
        """Read a slot's first bytes, which were written, into a block; raises InputError if not all are there."""
        view, place, done = _bytes_of(block), slot * self.slot_bytes, 0
        while done < len(view):
            try:
                got = os.preadv(self._descriptor, [view[done:]], place + done)
            except OSError as error:
                raise self._refused(error, "read back", len(view)) from error
            if not got:
                problem = "a file of the tensor cache ends before what was written to it"
                remedy = "Something cut the file while it was in use: keep other programs away from it."
                raise InputError(str(self.folder), f"{done} of {len(view)} bytes", problem, remedy)
            done += got

    def close(self) -> None:
        """Close the file, which gives its space back to the file system."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _grow(self) -> None:
        for slots in (_SLOTS_AT_ONCE, 1):
            try:
                os.posix_fallocate(self._descriptor, self._slots * self.slot_bytes, slots * self.slot_bytes)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT) and slots > 1:
                    continue
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise self._refused(error, "grown", slots * self.slot_bytes) from error
            self._free.extend(reversed(range(self._slots, self._slots + slots)))
            self._slots += slots
            return

    def _refused(self, error: OSError, what: str, size_bytes: int) -> InputError:
        remedy = _REMEDIES.get(error.errno or 0, "Give TensorCache other folders, or host memory (to='host').")
        wanted = f"{size_bytes} bytes" if size_bytes else "a file"
        return InputError(str(self.folder), wanted, f"cannot be {what}: {error.strerror}", remedy)


def _bytes_of(block: Tensor) -> memoryview:
    memory: Any = block.numpy()
    return memoryview(memory)


def _open(folder: Path) -> tuple[int, bool]:
    """Open a file without a name; return its descriptor, and whether it goes past the page cache."""
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        try:
            return _nameless(folder, direct), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return _nameless(folder, 0), False


def _nameless(folder: Path, flags: int) -> int:
    flags |= os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(folder, flags | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT) or not folder.is_dir():
                raise
    descriptor, name = tempfile.mkstemp(prefix="loadmaster-", dir=folder)
    try:
        return os.open(name, flags, 0o600)
    finally:
        os.close(descriptor)
        os.unlink(name)
