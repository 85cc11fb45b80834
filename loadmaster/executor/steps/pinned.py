"""Pinned host memory for offloaded results: allocated once, used again in every step.

Pinning takes time, so blocks are cut from slabs that live as long as the pool, and a block returns to its pool when the
last tensor on it dies. PyTorch's own cache of pinned memory rounds every request up to a power of two; these blocks are
as long as they must be.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import weakref
from dataclasses import dataclass
from functools import cache

import torch

from loadmaster.errors import InputError
from loadmaster.executor.steps.host_link import available_host_bytes

SLAB_BYTES = 1 << 28
_ALIGNMENT_BYTES = 512


@dataclass
class _Slab:
    memory: torch.Tensor
    used_bytes: int = 0


class HostPool:
    """Pool of blocks of host memory, by size; ``pinned`` needs a CUDA device.

    Whoever copies into a block that was in use before must do so in an order that lets earlier copies from it finish
    first: one pool serves one copy stream. Blocks are cut from ``slab_bytes`` at a time; a larger block gets a slab of
    its own. Their addresses are multiples of ``alignment_bytes``, a power of two; reads and writes past the page cache
    need 4096.
    """

    def __init__(
        self, *, pinned: bool = True, slab_bytes: int = SLAB_BYTES, alignment_bytes: int = _ALIGNMENT_BYTES
    ) -> None:
        self.pinned, self.slab_bytes, self.alignment_bytes = pinned, slab_bytes, alignment_bytes
        self._slabs: list[_Slab] = []
        self._free: dict[int, list[int]] = {}
        self._lent: set[int] = set()
        self._lock = threading.RLock()  # a block can come back while another one is being cut, on the same thread

    @property
    def held_bytes(self) -> int:
        """Bytes of all slabs, free blocks included."""
        return sum(s.memory.numel() for s in self._slabs)

    def take(self, size_bytes: int) -> torch.Tensor:
        """Lend a block, uint8 [size_bytes], uninitialized, which returns to the pool by itself when nobody holds it any
        more. Raises InputError if so much host memory cannot be had."""
        if size_bytes == 0:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        with self._lock:
            free = self._free.get(size_bytes)
            address = free.pop() if free else self._cut(size_bytes)
            self._lent.add(address)
        block = (ctypes.c_char * size_bytes).from_address(address)
        weakref.finalize(block, self._give_back, address, size_bytes).atexit = False
        return torch.frombuffer(block, dtype=torch.uint8)

    def fits(self, size_bytes: int, more_bytes: int) -> bool:
        """Return whether a block can be had with at most so many bytes of new slabs."""
        with self._lock:
            if self._free.get(size_bytes):
                return True
            length = self._length(size_bytes)
            used = [slab.used_bytes if self._lent else 0 for slab in self._slabs]
            if any(u + length <= slab.memory.numel() for u, slab in zip(used, self._slabs, strict=True)):
                return True
            return max(self.slab_bytes, length) <= more_bytes

    def _give_back(self, address: int, size_bytes: int) -> None:
        with self._lock:
            self._lent.discard(address)
            self._free.setdefault(size_bytes, []).append(address)

    def _cut(self, size_bytes: int) -> int:
        length = self._length(size_bytes)
        if not self._lent:
            # Another plan's blocks: nobody uses them, so cut the slabs again.
            self._free.clear()
            for slab in self._slabs:
                slab.used_bytes = 0
        for slab in self._slabs:
            if slab.used_bytes + length <= slab.memory.numel():
                break
        else:
            slab = _Slab(self._aligned(max(self.slab_bytes, length)))
            self._slabs.append(slab)
        address = slab.memory.data_ptr() + slab.used_bytes
        slab.used_bytes += length
        return address

    def _length(self, size_bytes: int) -> int:
        return -(-size_bytes // self.alignment_bytes) * self.alignment_bytes

    def _aligned(self, size_bytes: int) -> torch.Tensor:
        """Pin a slab that begins at a multiple of the alignment, if that is more than blocks have anyway."""
        memory = self._pin(size_bytes)
        if self.alignment_bytes > _ALIGNMENT_BYTES and memory.data_ptr() % self.alignment_bytes:
            memory = self._pin(size_bytes + self.alignment_bytes)  # pinned memory never comes here
            skipped = -memory.data_ptr() % self.alignment_bytes
            memory = memory[skipped : skipped + size_bytes]
        return memory

    def _pin(self, size_bytes: int) -> torch.Tensor:
        if not self.pinned:
            return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
        try:
            return _page_locked(size_bytes)
        except RuntimeError as error:
            raise InputError(
                "host memory",
                f"{size_bytes} bytes beside {self.held_bytes}",
                f"cannot be pinned for offloaded results: {str(error).splitlines()[0]}",
                "Plan with a smaller capacity_bytes of the host link, or let the process lock more memory (ulimit -l).",
            ) from error


def _page_locked(size_bytes: int) -> torch.Tensor:
    """Memory that a CUDA device copies to and from by itself, uint8 [size_bytes]. RuntimeError: there is not so much.

    CUDA's own allocation clears its pages in one thread, at about a second for a gibibyte. Here all threads do.
    """
    left_bytes = available_host_bytes()
    if size_bytes > left_bytes:
        raise RuntimeError(f"the host has {left_bytes} bytes left")
    pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel may have none
        pages.madvise(mmap.MADV_HUGEPAGE)
    # Or else a fork, as of a DataLoader's workers, may leave the device other pages than this process.
    pages.madvise(mmap.MADV_DONTFORK)
    array = (ctypes.c_char * size_bytes).from_buffer(pages)
    memory = torch.frombuffer(array, dtype=torch.uint8)
    memory[:: mmap.PAGESIZE] = 0
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call, unused-ignore]
    torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), size_bytes, 0))
    weakref.finalize(array, _unlock, memory.data_ptr(), pages).atexit = False
    return memory


def _unlock(address: int, _: mmap.mmap) -> None:
    """Let go of page-locked memory, once all copies are over; its pages are held until then."""
    torch.cuda.synchronize()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call, unused-ignore]
    torch.cuda.check_error(runtime.cudaHostUnregister(address))


@cache
def pool_of(device_index: int) -> HostPool:
    """Return the pool that the copies of one CUDA device use."""
    return HostPool()
