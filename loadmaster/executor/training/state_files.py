"""Optimizer states in files: groups take turns in buffers of host memory, and a thread writes and reads behind them.

A plan has the groups in the order of their updates. Once a group is updated, the thread writes its state and then
reads, into the same buffer, the next one in that order that is in no buffer. One that is in no buffer when it is asked
for, since others had no gradient, is read then. A state has one place in the file, which has room for all of them from
the start: a disk that is too full says so before any step.
"""

from __future__ import annotations

import copy
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.steps.pinned import HostPool
from loadmaster.executor.steps.spill_file import ALIGNMENT_BYTES, SpillFile

CHUNK_BYTES = 8 << 20
THREADS = 4  # a disk is at its fastest with some reads or writes under way
_REMEDY = "Free space there, or give another folder: fit(..., disk=...)."


def expect_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder for files. InputError: there is none."""
    if folder is None:
        remedy = "Give the folder for them: fit(..., disk=...)."
        raise InputError("disk", None, "is missing: the plan has optimizer states in files", remedy)
    if not Path(folder).is_dir():
        raise InputError("disk", str(folder), "is no folder", "Make it, or give one that exists, on a local disk.")
    return Path(folder)


class ChunkedFile:
    """File without a name for bytes in chunks, which some threads write and read side by side, past the page cache
    where the file system lets them (``direct``). InputError: there is no such folder, or it cannot be written."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self._file = SpillFile(self.folder, CHUNK_BYTES)
        except InputError as error:
            raise _told(error) from error
        self._threads = ThreadPoolExecutor(THREADS, "state files")
        self._pool = HostPool(pinned=False, slab_bytes=1, alignment_bytes=ALIGNMENT_BYTES)

    @property
    def direct(self) -> bool:
        """True where bytes go past the page cache."""
        return self._file.direct

    def buffer(self, size_bytes: int) -> Tensor:
        """Allocate host memory that can be written and read, at least that long."""
        return self._pool.take(_aligned(size_bytes))

    def place(self, size_bytes: int) -> list[int]:
        """Take room for so many bytes. InputError: there is none."""
        try:
            return [self._file.take() for _ in range(-(-size_bytes // CHUNK_BYTES))]
        except InputError as error:
            raise _told(error) from error

    def write(self, place: list[int], source: Tensor) -> None:
        """Write a buffer's first bytes, as many as there is room for. InputError: they could not be written."""
        self._each(self._file.write, place, source)

    def read(self, place: list[int], target: Tensor) -> None:
        """Read into a buffer's first bytes. InputError: they could not be read."""
        self._each(self._file.read, place, target)

    def _each(self, move: Callable[[int, Tensor], None], place: list[int], buffer: Tensor) -> None:
        chunks = torch.split(buffer[: len(place) * CHUNK_BYTES], CHUNK_BYTES)
        try:
            for done in [self._threads.submit(move, *each) for each in zip(place, chunks, strict=True)]:
                done.result()
        except InputError as error:
            raise _told(error) from error

    def close(self) -> None:
        """End the threads, and give the room back."""
        self._threads.shutdown()
        self._file.close()


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _told(error: InputError) -> InputError:
    """Say of a file of the tensor cache what helps a file of states."""
    return InputError("disk", f"{error.field}, {error.value}", error.problem, _REMEDY)


class _Staged(NamedTuple):
    """Buffer of a group, and the end of all that the thread does with it."""

    buffer: Tensor
    ready: Future[None]


class StateFiles:
    """States of groups in files. One thread at a time takes states and gives them back.

    Args:
        folder: for a file without a name.
        sizes_bytes: of each group's state, in the order of updates.
        buffers: number of states that are in host memory at the same time.
    """

    def __init__(self, folder: str | os.PathLike[str], sizes_bytes: Mapping[int, int], buffers: int) -> None:
        self._file, self._sizes = ChunkedFile(folder), dict(sizes_bytes)
        self._order, self._written = list(sizes_bytes), set[int]()
        self._thread = ThreadPoolExecutor(1, "state files")
        self.failure: InputError | None = None
        self._unwritten: dict[int, Tensor] = {}
        try:
            self._places = {group: self._file.place(size) for group, size in sizes_bytes.items()}
        except BaseException:
            self.close()
            raise
        largest, nothing = max(sizes_bytes.values()), Future[None]()
        nothing.set_result(None)
        self._staged = {group: _Staged(self._file.buffer(largest), nothing) for group in self._order[: max(buffers, 1)]}

    @property
    def folder(self) -> Path:
        """Folder of the file."""
        return self._file.folder

    def take(self, group: int) -> Tensor:
        """Wait for a group's state; before it is given back a first time, its bytes mean nothing. InputError: it could
        not be read, or the state before it in its buffer could not be written."""
        if group not in self._staged:
            # The one whose turn comes last makes room. What is in it is in the file, too.
            behind = self._following(group)[::-1]
            last = next(other for other in behind if other in self._staged)
            buffer, ready = self._staged.pop(last)
            ready.result()
            self._staged[group] = _Staged(buffer, self._thread.submit(self._read, group, buffer))
        buffer, ready = self._staged[group]
        ready.result()
        return buffer

    def give_back(self, group: int) -> None:
        """Have a changed state written, and the next one read into its buffer."""
        buffer, _ = self._staged.pop(group)
        following = next((other for other in self._following(group) if other not in self._staged), group)
        self._staged[following] = _Staged(buffer, self._thread.submit(self._exchange, group, following, buffer))

    def _following(self, group: int) -> list[int]:
        """List the other groups, from the one that is updated next."""
        at = self._order.index(group)
        return [*self._order[at + 1 :], *self._order[:at]]

    def _exchange(self, group: int, following: int, buffer: Tensor) -> None:
        # Once the disk has failed, what buffers hold is nowhere else: nothing is read into them any more.
        self._unwritten[group] = buffer
        try:
            if self.failure is not None:
                raise copy.copy(self.failure) from self.failure
            self._file.write(self._places[group], buffer)
            self._written.add(group)
            del self._unwritten[group]
            if following != group:
                self._read(following, buffer)
        except InputError as error:
            self.failure = error
            raise

    def _read(self, group: int, buffer: Tensor) -> None:
        if group in self._written:
            self._file.read(self._places[group], buffer)

    def finish(self) -> None:
        """Wait until all is written, or has failed."""
        self._thread.submit(lambda: None).result()

    def copied(self, group: int) -> Tensor:
        """Copy a state that was given back to a file of its own, without a name, and map that into memory: it takes
        none that could not be had for something else. InputError: it cannot be read, or a copy has no room."""
        self.finish()
        size = self._sizes[group]
        target = _mapped(self.folder, size)
        if group in self._unwritten:
            return target.copy_(self._unwritten[group][:size])
        block = self._file.buffer(CHUNK_BYTES)
        for chunk, slot in zip(torch.split(target, CHUNK_BYTES), self._places[group], strict=True):
            self._file.read([slot], block[: _aligned(chunk.numel())])
            chunk.copy_(block[: chunk.numel()])
        return target

    def close(self) -> None:
        """End the threads after what they have to do, and give the room back."""
        self._thread.shutdown()
        self._file.close()


def _mapped(folder: Path, size_bytes: int) -> Tensor:
    try:
        with tempfile.TemporaryFile(prefix="loadmaster-", dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
            return torch.frombuffer(mmap.mmap(file.fileno(), size_bytes), dtype=torch.uint8)
    except OSError as error:
        problem = f"has no room for a copy of the optimizer's state: {error.strerror}"
        raise InputError("disk", str(folder), problem, _REMEDY) from error
