"""Host memory and files together: files have what host memory has no room for.

A backward pass needs last what was saved first. So that is what files get: their copies have the longest time to come
back. How much there will be is known from the pass before. The first pass fills host memory, then files.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from loadmaster.errors import LoadmasterError
from loadmaster.executor.placement.cache.backends.files import Files
from loadmaster.executor.placement.cache.backends.host import HostMemory
from loadmaster.executor.placement.cache.backends.protocol import Backend, Counters, Stored, Transfer


@dataclass(eq=False)
class _Place:
    """A tensor's copy in one of the backends."""

    backend: Backend
    stored: Stored
    size_bytes: int

    def over(self) -> bool:
        return self.stored.over()

    def wait(self) -> None:
        self.stored.wait()

    def failure(self) -> LoadmasterError | None:
        return self.stored.failure()

    def cancel(self) -> bool:
        return self.stored.cancel()


class Spilling:
    """Backend that keeps tensors in host memory, and in files what that has no room for."""

    waits_on_device = False

    def __init__(self, host: HostMemory, files: Files) -> None:
        self.host, self.files = host, files
        # Bytes that are stored now; and those that were in a pass: it begins where nothing is stored.
        self._stored_bytes = self._of_pass = self._of_last_pass = 0

    def store(self, source: Tensor) -> Stored | None:
        size_bytes = source.numel()
        if not self._stored_bytes:
            self._of_pass, self._of_last_pass = 0, self._of_pass
        is_early = self._of_pass < self._of_last_pass - self.host.capacity_bytes
        for backend in (self.files, self.host) if is_early else (self.host, self.files):
            stored = backend.store(source)
            if stored is not None:
                self._stored_bytes += size_bytes
                self._of_pass += size_bytes
                return _Place(backend, stored, size_bytes)
        return None

    def load(self, stored: Stored, target: Tensor) -> Transfer:
        assert isinstance(stored, _Place)
        return stored.backend.load(stored.stored, target)

    def free(self, stored: Stored) -> None:
        assert isinstance(stored, _Place)
        self._stored_bytes -= stored.size_bytes
        stored.backend.free(stored.stored)

    def counters(self) -> Counters:
        host, files = self.host.counters(), self.files.counters()
        # As if one of both copied at a time: the rate that both have at least.
        return Counters(
            host.written_bytes + files.written_bytes,
            host.read_bytes + files.read_bytes,
            host.write_s + files.write_s,
            host.read_s + files.read_s,
            host.peak_bytes + files.peak_bytes,
            files.notes | {"in_files": f"{files.written_bytes} of the bytes that were written"},
        )

    def close(self) -> None:
        self.host.close()
        self.files.close()
        self._stored_bytes = self._of_pass = self._of_last_pass = 0
