"""Planned calls that go on while the caller does: on the CPU in a thread of the group's own, on a GPU on a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from datetime import timedelta

import torch
import torch.distributed as dist

Job = Callable[[], None]


class PlannedWork(dist.Work):
    """What a call returns: wait for it, or take its future (DDP does)."""

    def __init__(self, filled: Sequence[torch.Tensor], future: torch.futures.Future[list[torch.Tensor]] | None) -> None:
        """No future: it is on the current stream of a GPU already, and whoever comes after it there comes after it."""
        super().__init__()
        self._filled, self._future = filled, future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is done; on a GPU the current stream waits, not the CPU. The engine itself minds the time."""
        if self._future is not None:
            self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Whether it is done, or on the current stream."""
        return self._future is None or self._future.done()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that the call fills."""
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._filled[0].device])
            self._future.set_result(list(self._filled))
        return self._future


class Works:
    """Runs jobs one after another, in the order given."""

    def __init__(self, name: str) -> None:
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix=name)
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def start(
        self, job: Job, tensors: Sequence[torch.Tensor], filled: Sequence[torch.Tensor], later: bool
    ) -> dist.Work:
        """Start a job.

        Args:
            tensors: all that it touches.
            filled: what its future holds.
            later: on a GPU: on a stream of its own, so that what follows on the current one need not wait.
        """
        device = tensors[0].device
        if device.type == "cpu":
            return self._in_thread(job, filled)
        if not later:
            job()
            return PlannedWork(filled, None)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[device])
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            job()
            for tensor in tensors:
                tensor.record_stream(stream)
            future.set_result(list(filled))
        return PlannedWork(filled, future)

    def close(self) -> None:
        """Let what was started end."""
        self._thread.shutdown(wait=True)

    def _in_thread(self, job: Job, filled: Sequence[torch.Tensor]) -> dist.Work:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def done(over: futures.Future[None]) -> None:
            error = over.exception()
            if error is None:
                future.set_result(list(filled))
            else:
                future.set_exception(error)  # type: ignore[arg-type]

        self._thread.submit(job).add_done_callback(done)
        return PlannedWork(filled, future)
