"""Stands for CUDA where there is none: who asked for which memory, and when it was given back."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import pytest

from loadmaster.executor.graph.features import host_memory


class Registry:
    """CUDA's runtime: registers memory, or does not."""

    class cudaError:
        success = 0

    def __init__(self, status: int) -> None:
        self.status, self.registered, self.given_back = status, [], []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host_memory.torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(host_memory.torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(host_memory.torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(host_memory.torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(host_memory, "_take_last_error", lambda device: None)

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        self.registered.append((address, size_bytes, flags))
        return self.status

    def cudaHostUnregister(self, address: int) -> None:
        self.given_back.append(address)

    def cudaGetErrorString(self, status: int) -> str:
        return "out of memory"


class Driver:
    """CUDA's driver: managed memory that is the process's own. One call may fail."""

    def __init__(self, failing: str = "", concurrent: int = 1) -> None:
        self.failing, self.concurrent = failing, concurrent
        self.memory: dict[int, Any] = {}
        self.calls: list[tuple[Any, ...]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Registry(2).install(monkeypatch)
        monkeypatch.setattr(host_memory, "_driver", lambda: self)

    def _done(self, *call: Any) -> int:
        self.calls.append(call)
        return 2 if call[0] == self.failing else 0

    def cuDeviceGet(self, ordinal: Any, number: int) -> int:
        ordinal._obj.value = number
        return self._done("cuDeviceGet", number)

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = self.concurrent
        return self._done("cuDeviceGetAttribute", attribute, device.value)

    def cuMemAllocManaged(self, address: Any, size_bytes: Any, flags: int) -> int:
        block = (ctypes.c_char * size_bytes.value)()
        address._obj.value = ctypes.addressof(block)
        self.memory[address._obj.value] = block
        return self._done("cuMemAllocManaged", size_bytes.value, flags)

    def cuMemAdvise(self, address: Any, size_bytes: Any, advice: int, device: Any) -> int:
        return self._done("cuMemAdvise", size_bytes.value, advice, getattr(device, "value", device))

    def cuMemFree_v2(self, address: Any) -> int:
        del self.memory[address.value]
        return self._done("cuMemFree_v2")

    def cuPointerGetAttribute(self, value: Any, attribute: int, address: Any) -> int:
        begins = (begin <= address.value < begin + len(block) for begin, block in self.memory.items())
        return 0 if attribute == 3 and any(begins) else 1

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"out of memory"
        return 0
