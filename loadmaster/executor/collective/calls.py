"""Calls of a process group in the terms of a plan, read from their tensors and options, and their work.

Planned calls go on while the caller does: on the CPU in a thread of the group's own, on a GPU on a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from loadmaster.models.collective.problem import Collective

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that somebody asked for.

    Attributes:
        output, input: None: not on this rank.
        size_bytes: of the largest buffer of a rank.
        filled: what the call's future holds.
        later: the caller goes on without it.
        after: once the output is there.
        shared: in memory that all ranks share, where the inner group has nothing like it.
    """

    collective: Collective
    output: torch.Tensor | None
    input: torch.Tensor | None
    size_bytes: int
    filled: Tensors
    later: bool
    op: object = dist.ReduceOp.SUM
    root: int | None = None
    after: Callable[[], None] | None = None
    shared: bool = False

    @property
    def tensor(self) -> torch.Tensor:
        """A tensor of the call that is on this rank."""
        found = self.output if self.output is not None else self.input
        assert found is not None
        return found


def later_of(opts: Any) -> bool:
    """Return whether the caller goes on without waiting, as options of C++ have it unless told otherwise."""
    return bool(getattr(opts, "asyncOp", True))


def op_of(opts: Any) -> object:
    """Return the operator of a sum, SUM where the options name none."""
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def even(tensors: Tensors, one: torch.Tensor) -> bool:
    """Return whether all tensors are as long as one: sizes are the same on every rank, shapes need not be."""
    return all(t.numel() == one.numel() and t.dtype == one.dtype for t in tensors)


def stacked(tensors: Tensors) -> torch.Tensor:
    """Stack tensors into one, each flattened to a row."""
    return torch.stack([tensor.reshape(-1) for tensor in tensors])


def spreading(together: torch.Tensor | None, outputs: Tensors) -> Callable[[], None]:
    """Make a function that copies the rows of a tensor to the outputs where they belong."""

    def spread() -> None:
        if together is not None:
            for output, piece in zip(outputs, together.unbind(), strict=True):
                output.copy_(piece.view(output.shape))

    return spread


def laid_out(tensor: torch.Tensor | None, more_bytes: int) -> tuple[torch.Tensor | None, Callable[[], None] | None]:
    """Lay a tensor out flat, so many bytes of zeros behind it; return it, and how to bring what comes there back."""
    if tensor is None:
        return None, None
    if not more_bytes and tensor.is_contiguous():
        return tensor.view(-1), None
    home, count = tensor, tensor.numel()
    flat = home.new_zeros(count + more_bytes // home.element_size())
    flat[:count].copy_(home.reshape(-1))

    def bring_back() -> None:
        home.copy_(flat[:count].view(home.shape))

    return flat, bring_back


Job = Callable[[], None]


class PlannedWork(dist.Work):
    """Handle that a call returns: wait for it, or take its future (DDP does)."""

    def synchronize(self) -> None:
        """Wait for the job, as :meth:`wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait for the job, as :meth:`wait` does."""
        self.wait()


class ThreadWork(PlannedWork):
    """A job in the thread: done when its results are there."""

    def __init__(self, filled: Sequence[torch.Tensor], over: futures.Future[None]) -> None:
        super().__init__()
        self._filled, self._over = filled, over

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the job is done; its error is raised here. TimeoutError: not done within ``timeout``; none, or
        none above zero: no limit but the engine's own."""
        seconds = timeout.total_seconds() if timeout is not None else 0
        self._over.result(seconds if seconds > 0 else None)
        return True

    def is_completed(self) -> bool:
        """Return whether the job is done."""
        return self._over.done()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that the call fills."""
        begun: torch.futures.Future[None] = torch.futures.Future()

        def filled(_: torch.futures.Future[None]) -> list[torch.Tensor]:
            # Raised in a callback, an error is one for C++ too: one set from Python is a value there.
            self._over.result()
            return list(self._filled)

        future: torch.futures.Future[list[torch.Tensor]] = begun.then(filled)
        self._over.add_done_callback(lambda _: begun.set_result(None))
        return future


class StreamWork(PlannedWork):
    """A job on a stream of a GPU: waiting for it holds the current stream up, not the CPU."""

    def __init__(self, filled: Sequence[torch.Tensor], stream: torch.cuda.Stream | None = None) -> None:
        """Make the work of a job on a stream; None: on the current one, where whatever follows comes after it."""
        super().__init__()
        self._filled, self._stream = filled, stream
        self._event = None if stream is None else stream.record_event()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let what follows on the current stream come after the job. The engine itself minds the time."""
        if self._event is not None:
            self._event.wait(torch.cuda.current_stream(self._filled[0].device))
        return True

    def is_completed(self) -> bool:
        """Return whether the GPU is done with the job, or the job is on the current stream."""
        return self._event is None or self._event.query()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors that the call fills."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[self._filled[0].device])
        with torch.cuda.stream(self._stream):
            future.set_result(list(self._filled))
        return future


class WorkQueue:
    """Runs jobs one after another, in the order given."""

    def __init__(self, name: str) -> None:
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix=name)
        self._last: futures.Future[None] | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def start(
        self, job: Job, tensors: Sequence[torch.Tensor], filled: Sequence[torch.Tensor], later: bool
    ) -> PlannedWork:
        """Start a job and return its work. ``tensors`` are all that it touches, ``filled`` what its future holds.
        ``later`` on a GPU: on a stream of its own, so that what follows on the current one need not wait."""
        device = tensors[0].device
        if device.type == "cpu":
            # A mode is a thread's own, and what it forbids to do to tensors goes by it.
            inference = torch.is_inference_mode_enabled()

            def in_mode() -> None:
                with torch.inference_mode(inference):
                    job()

            self._last = self._thread.submit(in_mode)
            return ThreadWork(filled, self._last)
        if not later:
            job()
            return StreamWork(filled)
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            job()
            for tensor in tensors:
                tensor.record_stream(stream)
        return StreamWork(filled, stream)

    def drain(self) -> None:
        """Let what was started end: on the CPU now, on a GPU before what follows on the current stream."""
        if self._last is not None:
            futures.wait([self._last])
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)

    def close(self) -> None:
        """Let what was started end, and start nothing more."""
        self._thread.shutdown(wait=True)
