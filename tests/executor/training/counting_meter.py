"""Meters of the CPU, which count operators and the memory of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from loadmaster.executor.torch_private.operators import TorchDispatchMode
from loadmaster.executor.training.meter import Mark


class Copies:
    """Copies that take no time."""

    def __init__(self, gbps: float) -> None:
        self._gbps = gbps

    def go(self) -> None:
        """Copy nothing."""

    def gbps(self) -> float:
        """The rate."""
        return self._gbps


class CountingMeter(TorchDispatchMode):
    """Meter of the CPU: an operator takes a microsecond, a product or attention a hundred, and bytes are those of the
    storages that operators made and that live, and of those given. What host memory was made of is the caller's."""

    def __init__(self, given: list[Tensor], limit_bytes: int = 1 << 40) -> None:
        super().__init__()
        self.device, self.limit_bytes = torch.device("cpu"), limit_bytes
        self._count, self._most = 0, 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in given:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._count += 100 if any(word in func.name() for word in ("mm", "attention")) else 1
        # What a view is of, or an operator writes to, was there.
        if not any(of.alias_info for of in func._schema.returns):
            for one in result if isinstance(result, tuple | list) else [result]:
                if isinstance(one, Tensor) and not one.is_meta:
                    self._note(one)
        self._most = max(self._most, self.size_bytes)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    @property
    def size_bytes(self) -> int:
        """Bytes that live."""
        self._storages = {key: of for key, of in self._storages.items() if not of[0].expired()}
        return sum(size for _, size in self._storages.values())

    def mark(self, *, counts_bytes: bool = True) -> Mark:
        """Count."""
        if not counts_bytes:
            return Mark(self._count, 0, 0)
        found = Mark(self._count, self.size_bytes, max(self._most, self.size_bytes))
        self._most = found.size_bytes
        return found

    def us(self, start: Mark, end: Mark) -> float:
        """Operators between two marks."""
        return float(end.at - start.at)

    def link(self, *, to_host: bool) -> Copies:
        """One way is faster."""
        return Copies(40.0 if to_host else 50.0)
