"""A plan's memory as a snapshot for https://pytorch.org/memory_viz, which opens measured ones of the same form.

Format: what ``torch.cuda.memory._snapshot()`` returns, pickled. One segment holds everything; what is resident through
the whole step is a block from the start, the rest are events that allocate and free. Results carry the name of the
operator that made them. What an operator holds in addition to results (gradients, workspace, copies on their way) is
one block that is made again whenever its size changes.
"""

from __future__ import annotations

import pickle
from bisect import insort
from typing import Any

from loadmaster.api.report.memory.view import MemoryView

_PROTOCOL = 4  # what the viewer reads
_FIRST_ADDRESS = 1 << 40


class _Heap:
    """Blocks in one address space, each in the lowest gap that holds it, and the events that led there."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.blocks: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.top = _FIRST_ADDRESS
        self._order: list[tuple[int, int]] = []

    def allocate(self, size_bytes: int, name: str, what: str, time_us: float, *, recorded: bool = True) -> int:
        """Allocate a new block; returns its address."""
        address = _FIRST_ADDRESS
        for start, size in self._order:
            if start - address >= size_bytes:
                break
            address = start + size
        frames = [{"filename": what, "line": 0, "name": name}]
        insort(self._order, (address, size_bytes))
        self.blocks[address] = (size_bytes, frames)
        self.top = max(self.top, address + size_bytes)
        if recorded:
            self._record("alloc", address, time_us)
        return address

    def free(self, address: int, time_us: float) -> None:
        """Free a block, and record that."""
        self._record("free_requested", address, time_us)
        self._record("free_completed", address, time_us)
        size, _ = self.blocks.pop(address)
        self._order.remove((address, size))

    def _record(self, action: str, address: int, time_us: float) -> None:
        size, frames = self.blocks[address]
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": int(time_us)}
        self.events.append({**event, "frames": frames})

    def segment(self) -> dict[str, Any]:
        """The segment at the end of the step: blocks and the gaps between them."""
        blocks: list[dict[str, Any]] = []
        address = _FIRST_ADDRESS
        for start, size in self._order:
            if start > address:
                blocks.append(_gap(address, start))
            _, frames = self.blocks[start]
            block = {"address": start, "size": size, "requested_size": size, "state": "active_allocated"}
            blocks.append({**block, "frames": frames})
            address = start + size
        if self.top > address:
            blocks.append(_gap(address, self.top))
        used = sum(size for size, _ in self.blocks.values())
        return {
            "address": _FIRST_ADDRESS,
            "total_size": self.top - _FIRST_ADDRESS,
            "allocated_size": used,
            "active_size": used,
            "stream": 0,
            "device": 0,
            "segment_type": "large",
            "frames": [],
            "blocks": blocks,
        }


def _gap(start: int, end: int) -> dict[str, Any]:
    return {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}


def memory_snapshot(view: MemoryView) -> dict[str, Any]:
    """The snapshot of one planned step, in the form of ``torch.cuda.memory._snapshot()``."""
    heap = _Heap()
    events = view.check.events
    alive = [0] * len(events)
    made: dict[int, list[tuple[int, str, int]]] = {}
    for tensor in view.tensors:
        for first, last in tensor.alive if tensor.size_bytes else ():
            made.setdefault(first, []).append((last, tensor.made_by, tensor.size_bytes))
            for place in range(first, last + 1):
                alive[place] += tensor.size_bytes
    rest = [max(0, e.resident_bytes - size) for e, size in zip(events, alive, strict=True)]
    always = min(rest)
    if always:
        heap.allocate(always, "parameters, buffers, inputs, state", "resident", 0.0, recorded=False)
    dying: dict[int, list[int]] = {}
    beside: tuple[int, int] | None = None
    for place, event in enumerate(events):
        for address in dying.pop(place - 1, ()):
            heap.free(address, event.start_us)
        wanted = rest[place] - always
        if beside is not None and beside[1] != wanted:
            heap.free(beside[0], event.start_us)
            beside = None
        for last, name, size in made.get(place, ()):
            dying.setdefault(last, []).append(heap.allocate(size, name, event.what, event.start_us))
        if beside is None and wanted:
            beside = (heap.allocate(wanted, "gradients, workspace, copies", event.words, event.start_us), wanted)
    return {
        "segments": [heap.segment()],
        "device_traces": [heap.events],
        "allocator_settings": {},
        "external_annotations": [],
    }


def snapshot_bytes(view: MemoryView) -> bytes:
    """The file that the viewer opens."""
    return pickle.dumps(memory_snapshot(view), protocol=_PROTOCOL)
