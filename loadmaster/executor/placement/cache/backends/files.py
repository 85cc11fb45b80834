"""Files as the place for tensors, striped over folders: threads copy aligned chunks through pinned host memory.

A tensor is cut into chunks of one size, which go to the folders in turn. Several folders gain something only if each is
a disk. A thread has one block of pinned memory for its chunk, so host memory does not depend on the tensors. There are
two sets of threads, as in SSDTrain (section 5.3.4), so that no load stands in line behind stores.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
import time
from collections.abc import Sequence
from functools import cache, partial
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.placement.cache.backends.protocol import Counters, Stored, Transfer
from loadmaster.executor.placement.cache.backends.workers import Group, Workers
from loadmaster.executor.steps.pinned import HostPool
from loadmaster.executor.steps.spill_file import ALIGNMENT_BYTES, SpillFile

CHUNK_BYTES = 8 << 20
THREADS = 4  # each way and folder
_DRIVER = Path("/proc/driver/nvidia-fs/version")


class _Job(Group):
    """A copy of a whole tensor, by chunks; ``slots`` has each chunk's file and the slot in it, once that is written."""

    def __init__(self, size_bytes: int, workers: Workers, chunks: int, first_file: int) -> None:
        super().__init__(chunks, workers)
        self.size_bytes, self.first_file = size_bytes, first_file
        self.slots: list[tuple[SpillFile, int] | None] = [None] * chunks


class _Meter:
    """Bytes of copies one way, and for how long at least one was under way."""

    def __init__(self) -> None:
        self.size_bytes, self.seconds = 0, 0.0
        self._active, self._since_s, self._lock = 0, 0.0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._active:
                self._since_s = time.perf_counter()
            self._active += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._active -= 1
            if not self._active:
                self.seconds += time.perf_counter() - self._since_s

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.size_bytes += size_bytes


class Files:
    """Backend that keeps tensors in files without names, striped over folders, one a disk; each gets a file. For each
    folder, ``threads`` store and as many load. They copy ``chunk_bytes`` at a time, a multiple of 4096. Raises
    InputError for other values, and if a folder is not there, or nothing can be written to it."""

    waits_on_device = False

    def __init__(
        self, folders: Sequence[str | PathLike[str]], *, threads: int = THREADS, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        if not folders or threads < 1 or chunk_bytes % ALIGNMENT_BYTES or not chunk_bytes:
            remedy = f"Give a folder at least, a thread at least, and chunks of a multiple of {ALIGNMENT_BYTES} bytes."
            raise InputError("to", (list(map(str, folders)), threads, chunk_bytes), "cannot be used", remedy)
        self.chunk_bytes = chunk_bytes
        self._files: list[SpillFile] = []
        try:
            for folder in folders:
                self._files.append(SpillFile(Path(folder), chunk_bytes))
        except InputError:
            self._close_files()
            raise
        count = threads * len(self._files)
        self._pool = HostPool(
            pinned=torch.cuda.is_available(),
            slab_bytes=chunk_bytes,
            alignment_bytes=ALIGNMENT_BYTES,
        )
        self._stores, self._loads = Workers(count, "tensor-cache-store"), Workers(count, "tensor-cache-load")
        self._out, self._in = _Meter(), _Meter()
        self._mine = threading.local()
        self._turn = 0

    def store(self, source: Tensor) -> Stored | None:
        job = self._job(source.numel(), self._stores)
        made = _event_of(source)
        for n in range(len(job.slots)):
            self._stores.submit(job, partial(self._store_chunk, job, n, source, made))
        self._turn += len(job.slots)
        return job

    def load(self, stored: Stored, target: Tensor) -> Transfer:
        assert isinstance(stored, _Job)
        job = self._job(stored.size_bytes, self._loads)
        allocated = _event_of(target)
        for n in range(len(stored.slots)):
            self._loads.submit(job, partial(self._load_chunk, stored, n, target, allocated))
        return job

    def free(self, stored: Stored) -> None:
        assert isinstance(stored, _Job)
        for taken in stored.slots:
            if taken is not None:
                taken[0].give_back(taken[1])
        stored.slots.clear()

    def counters(self) -> Counters:
        buffered = [str(file.folder) for file in self._files if not file.direct]
        notes = {"gpu_direct": gpu_direct()}
        if buffered:
            notes["page_cache"] = f"{', '.join(buffered)}: the file system refuses O_DIRECT, so the page cache is used"
        return Counters(
            self._out.size_bytes, self._in.size_bytes, self._out.seconds, self._in.seconds, self._pool.held_bytes, notes
        )

    def close(self) -> None:
        self._stores.close()
        self._loads.close()
        self._close_files()

    def _close_files(self) -> None:
        for file in self._files:
            file.close()

    def _job(self, size_bytes: int, workers: Workers) -> _Job:
        return _Job(size_bytes, workers, -(-size_bytes // self.chunk_bytes), self._turn)

    def _store_chunk(self, job: _Job, n: int, source: Tensor, made: torch.cuda.Event | None) -> None:
        file = self._files[(job.first_file + n) % len(self._files)]
        piece = source[n * self.chunk_bytes : (n + 1) * self.chunk_bytes]
        block = self._block(piece.numel())
        with self._out:
            _copy(block[: piece.numel()], piece, made)
            slot = file.take()
            job.slots[n] = (file, slot)
            file.write(slot, block)
        self._out.add(piece.numel())

    def _load_chunk(self, stored: _Job, n: int, target: Tensor, allocated: torch.cuda.Event | None) -> None:
        taken = stored.slots[n]
        assert taken is not None
        piece = target[n * self.chunk_bytes : (n + 1) * self.chunk_bytes]
        block = self._block(piece.numel())
        with self._in:
            taken[0].read(taken[1], block)
            _copy(piece, block[: piece.numel()], allocated)
        self._in.add(piece.numel())

    def _block(self, size_bytes: int) -> Tensor:
        """This thread's block of pinned memory, as long as these bytes in whole pages."""
        if not hasattr(self._mine, "block"):
            self._mine.block = self._pool.take(self.chunk_bytes)
        block: Tensor = self._mine.block
        return block[: -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES]


_streams = threading.local()


def _stream_of_this_thread(device: torch.device) -> torch.cuda.Stream:
    known: dict[torch.device, torch.cuda.Stream] = _streams.__dict__.setdefault("known", {})
    if device not in known:
        known[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return known[device]


def _event_of(tensor: Tensor) -> torch.cuda.Event | None:
    """Event after which the current stream has made a tensor, or may give its memory away; None in host memory."""
    return torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None


def _copy(target: Tensor, source: Tensor, after: torch.cuda.Event | None) -> None:
    """Copy between host and device on a stream of this thread's own, and wait for it on this thread."""
    if after is None:
        # Unlike PyTorch's copy, on this thread alone.
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.numel())
        return
    device = source.device if source.is_cuda else target.device
    stream = _stream_of_this_thread(device)
    with torch.cuda.stream(stream):
        stream.wait_event(after)
        target.copy_(source, non_blocking=True)
        over = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        over.record(stream)
        over.synchronize()


@cache
def gpu_direct() -> str:
    """Say why tensors do not go to disk by GPUDirect Storage, which copies without host memory, in a sentence."""
    if not torch.cuda.is_available():
        return "no: there is no CUDA device"
    if not _DRIVER.exists():
        return f"no: the nvidia-fs driver is not loaded ({_DRIVER}), and cuFile would copy through host memory too"
    packages = [name for name in ("torch.cuda.gds", "kvikio") if importlib.util.find_spec(name) is not None]
    if not packages:
        return "no: neither torch.cuda.gds nor kvikio is installed"
    return f"no, though this host has it ({', '.join(packages)}): files are copied through pinned host memory"
