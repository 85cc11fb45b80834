"""The tensor cache that users enter: hooks on what autograd saves, micro-batches, figures.

    with TensorCache(model, to="host") as cache:
        loss = model(x).sum()
        loss.backward()
    print(cache.stats())

In the forward pass every large saved tensor is sent away, once however many operators save it, except what the model
holds anyway. In the backward pass tensors come back in the reverse order they were saved in, ahead of their use by a
window of bytes. What is needed before its store is over is used from where it is. Nothing is sent in a backward pass:
what a checkpoint computes again is needed at once.

The first forward passes are timed, and from then on only as much is sent as comes back in time
(:mod:`loadmaster.executor.placement.cache.adaptive`), unless ``keep`` says otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from os import PathLike, fspath, sep
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.placement.cache import functorch
from loadmaster.executor.placement.cache.adaptive import Plan, plan_for, plan_to_keep
from loadmaster.executor.placement.cache.backends.files import Files
from loadmaster.executor.placement.cache.backends.host import HostMemory
from loadmaster.executor.placement.cache.backends.protocol import Backend, Counters, rates
from loadmaster.executor.placement.cache.backends.spilling import Spilling
from loadmaster.executor.placement.cache.parts import Checked, Layout, Part, Record, all_bytes, record_of
from loadmaster.executor.placement.cache.selection import Selection
from loadmaster.executor.placement.cache.stats import CacheStats, Tally
from loadmaster.executor.placement.cache.tape import Stopwatch, Tape
from loadmaster.executor.placement.cache.traffic import Traffic, closed
from loadmaster.executor.steps.measure import mark
from loadmaster.executor.torch_private.autograd import after_backward, current_backward_pass
from loadmaster.models.units import bytes_of

Place = str | PathLike[str] | Sequence[str | PathLike[str]] | Backend


def opener(to: Place) -> Callable[[], Backend]:
    """Return the function that opens the backend, also after it was closed; InputError if ``to`` is no place."""
    if to == "host":
        return HostMemory
    folders: list[str] | None = None
    if isinstance(to, str | PathLike):
        folders = [fspath(to)]
    elif isinstance(to, Sequence) and to and all(isinstance(folder, str | PathLike) for folder in to):
        folders = [fspath(folder) for folder in to]
    spills = folders is not None and len(folders) > 1 and folders[0] == "host"
    if folders is not None:
        folders = folders[1:] if spills else folders
        for folder in folders:
            if sep not in folder and not Path(folder).is_dir():
                raise _no_place(to, f"{folder!r} is neither 'host' nor a folder")
        return lambda: Spilling(HostMemory(), Files(folders)) if spills else Files(folders)
    if all(callable(getattr(to, name, None)) for name in ("store", "load", "free", "counters", "close")):
        return lambda: cast(Backend, to)
    raise _no_place(to, "is no place for tensors")


def _no_place(to: object, problem: str) -> InputError:
    remedy = "Give 'host', a folder, several folders, 'host' and folders, or a backend object."
    return InputError("to", to, problem, remedy)


RELIED_ON = 0.9  # of what the link was seen to move: compute takes some of it, and the next pass may be quicker
TIMED_PASSES = 3  # the first ones have warm-up and waits in them that the next ones have not


class _Saved:
    """Handle that a graph holds instead of a saved tensor."""

    __slots__ = ("layout", "record", "tape", "use")

    def __init__(self, record: Record, layout: Layout, tape: Tape, use: int) -> None:
        self.record, self.layout, self.tape, self.use = record, layout, tape, use


class _Home:
    """The backend while it is open: closed with the cache, at the latest when that is gone."""

    def __init__(self, opened: Callable[[], Backend], given: bool) -> None:
        self._opener, self._given = opened, given
        self.traffic: Traffic | None = None

    def open(self, window_bytes: int | None, tally: Tally) -> Traffic:
        if self.traffic is None:
            self.traffic = Traffic(self._opener(), window_bytes, tally)
        return self.traffic

    def close(self) -> None:
        """Close the backend, unless it is an object of the user's."""
        traffic, self.traffic = self.traffic, None
        if traffic is not None:
            traffic.abandon()
            if not self._given:
                traffic.backend.close()


class TensorCache:
    """A context manager under which autograd's saved tensors are sent away and brought back.

    Enter it around the forward pass; the backward pass may run inside or after it. Enter it as often as you like: what
    it found out, its memory and its files last until :meth:`close`, or until an exception leaves it.

    Args:
        model: whose parameters and buffers stay where they are; several as a list.
        to: ``"host"`` for host memory, a folder or several for files striped over them, ``["host", folder, ...]`` for
            files that take what host memory has no room for, or a backend object.
        keep: how much of the end of each forward pass stays on the device: bytes or ``"2GiB"``, 0 to send everything;
            ``"auto"`` finds how much must stay for the step to take no longer.
        min_bytes: tensors in storages smaller than that stay.
        window: bytes on their way at most, each way; ``"auto"`` takes what is moved in 10 ms. Stores beyond it are
            waited for, so it bounds what the device holds of them.

    Raises:
        InputError: an argument that cannot be used.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        to: Place = "host",
        *,
        keep: int | str = "auto",
        min_bytes: int | str = "1MiB",
        window: int | str = "auto",
    ) -> None:
        models = (model,) if isinstance(model, nn.Module) else tuple(model)
        self._selection = Selection(models, bytes_of(min_bytes, "min_bytes"))
        self._keep_bytes = None if keep == "auto" else bytes_of(keep, "keep")
        self._window_bytes = None if window == "auto" else bytes_of(window, "window")
        given = not isinstance(to, str | Sequence) and hasattr(to, "store")
        self._home = _Home(opener(to), given)
        self._lock = threading.RLock()
        self._tally = Tally()
        self._tapes: dict[Hashable, Tape] = {}
        self._micro_batch: Hashable = None
        self._undecided: tuple[weakref.ref[Record], Tape] | None = None
        self._plan: Plan | None = None  # of the last forward pass
        self._backward_passes: set[int] = set()
        self._last_counters = Counters()
        weakref.finalize(self, self._home.close)

    def __enter__(self) -> Self:
        with self._lock:
            self._selection.mark_held()
            self._home.open(self._window_bytes, self._tally)
        functorch.push((self._pack, self._unpack))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        functorch.pop()
        with self._lock:
            if kind is not None:
                self.close()
                return
            with torch.no_grad():
                self._decide()
            self._raise_failure()

    @contextlib.contextmanager
    def microbatch(self, name: Hashable) -> Iterator[None]:
        """Name the micro-batch whose forward or backward pass this is, where those of several are interleaved.

        On the way into its backward pass, tensors begin to come back.
        """
        with self._lock, torch.no_grad():
            self._decide()
            before, self._micro_batch = self._micro_batch, name
            tape, traffic = self._tapes.get(name), self._home.traffic
            if tape is not None and traffic is not None and not tape.begun and len(tape):
                self._bring_ahead(traffic, tape, len(tape))
        try:
            yield
        finally:
            with self._lock, torch.no_grad():
                self._decide()
                self._micro_batch = before

    def stats(self) -> CacheStats:
        """Return the figures of what was done so far."""
        with self._lock:
            traffic = self._home.traffic
            if traffic is not None:
                traffic.land()
                self._last_counters = traffic.backend.counters()
            return self._stats_of(self._last_counters)

    def close(self) -> None:
        """Give back host memory, files and threads. A graph that still needs them raises; entering opens them again."""
        with self._lock:
            self.stats()  # keeps the counters
            self._home.close()
            self._tapes.clear()
            self._backward_passes.clear()
            self._undecided = None

    def _pack(self, tensor: Tensor) -> object:
        traffic = self._home.traffic
        if traffic is None or current_backward_pass() != -1 or not self._selection.takes(tensor):
            return Checked(tensor)
        with self._lock, torch.no_grad():
            traffic.land()
            record, layout = record_of(tensor, self._selection.token), Layout.of(tensor)
            if self._undecided is not None and self._undecided[0]() is not record:
                self._decide()
            tape = self._tape(traffic)
            use = tape.add(record, layout)
            if record.found(layout) is None:
                if record.add_view(layout, tensor) and not record.pieces:
                    record.whole = Part(all_bytes(tensor), Checked(tensor), traffic.remains)
                    record.views.clear()
                    self._undecided = None
                    self._send(traffic, tape, record.whole)
                else:
                    self._undecided = weakref.ref(record), tape
            return _Saved(record, layout, tape, use)

    def _unpack(self, saved: object) -> Tensor:
        if isinstance(saved, Checked):
            return saved.tensor()
        assert isinstance(saved, _Saved)
        with self._lock, torch.no_grad():
            traffic = self._home.traffic
            found = saved.record.found(saved.layout)
            if traffic is not None:
                traffic.hold_to_window(saved.tape)
                self._begin_backward(saved.tape)
            if found is None:
                self._undecided = None
                return saved.record.views[saved.layout].tensor()
            part, inside = found
            if part.away and (traffic is None or part.remains is not traffic.remains):
                raise closed()
            if traffic is not None:
                self._need(traffic, saved.tape, saved.use, part)
        if traffic is not None:
            traffic.arrive(part)
        with torch.no_grad():
            return inside.on(part.memory(inside))

    def _need(self, traffic: Traffic, tape: Tape, use: int, part: Part) -> None:
        """Have the part that the backward pass needs here, and those that come next."""
        if part.away:
            traffic.bring(part, tape)
            self._tally.add("on_demand", part.size_bytes)
        elif part.storing:
            traffic.forward(part)
        if part.ahead is not None:
            assert isinstance(part.ahead, Tape)
            part.ahead.ahead_bytes -= part.size_bytes
            part.ahead = None
        part.passed = True
        self._bring_ahead(traffic, tape, use)

    def _bring_ahead(self, traffic: Traffic, tape: Tape, use: int) -> None:
        window_bytes = traffic.window_bytes(writing=False)
        # Without the memory to be ahead, each is brought back when it is needed.
        with contextlib.suppress(torch.OutOfMemoryError):
            for part in itertools.chain(tape.near(use, window_bytes), tape.far(use, window_bytes)):
                if part.storing:
                    traffic.forward(part)
                elif part.away:
                    traffic.bring(part, tape)

    def _begin_backward(self, tape: Tape) -> None:
        if not tape.begun:
            tape.begun = True
            if tape.watch is not None:
                tape.watch.ended(mark(self._selection.device))
        task = current_backward_pass()
        if task != -1 and task not in self._backward_passes:
            self._backward_passes.add(task)
            after_backward(partial(self._after_backward, task))

    def _after_backward(self, task: int) -> None:
        with self._lock:
            self._backward_passes.discard(task)
            if self._backward_passes:
                return
            for tape in self._tapes.values():
                if tape.begun:
                    tape.rewind()
            if self._home.traffic is not None:
                self._home.traffic.release()
            self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the error of a failed store, once. Gradients are right: what could not be stored stayed."""
        traffic = self._home.traffic
        if traffic is not None and traffic.failure is not None:
            failure, traffic.failure = traffic.failure, None
            raise failure

    def _tape(self, traffic: Traffic) -> Tape:
        """Return this forward pass's tape: a new one, once the last one's backward pass began, or its graph is gone."""
        tape = self._tapes.get(self._micro_batch)
        if tape is None or tape.begun or not tape.alive():
            self._backward_passes.clear()
            plan, timed = (None, 0) if tape is None else self._learned(traffic, tape)
            watch = Stopwatch() if self._keep_bytes is None and timed < TIMED_PASSES else None
            tape = self._tapes[self._micro_batch] = Tape(plan, timed, watch)
            self._plan = plan
        return tape

    def _learned(self, traffic: Traffic, tape: Tape) -> tuple[Plan | None, int]:
        """The plan for the forward passes after this one, and how many were timed for it."""
        if self._keep_bytes is not None:
            return plan_to_keep(tape.sizes, self._keep_bytes), 0
        profile = tape.watch.profile() if tape.watch is not None else None
        found = rates(traffic.backend.counters())
        if profile is not None and found is not None:
            window_bytes = traffic.window_bytes(writing=True)
            return plan_for(profile, *(RELIED_ON * rate for rate in found), window_bytes=window_bytes), tape.timed + 1
        other = tape.plan is not None and not tape.plan.fits(sum(tape.sizes))
        return tape.plan, 0 if other else tape.timed

    def _decide(self) -> None:
        """Send copies of the views that were waiting for others of their storage."""
        undecided, traffic, self._undecided = self._undecided, self._home.traffic, None
        record = undecided[0]() if undecided is not None else None
        if undecided is None or record is None or traffic is None:
            return
        for layout, view in list(record.views.items()):
            if not view.unchanged():
                continue  # stays, and raises where it is needed
            copy = view.tensor().detach().clone()
            part = Part(all_bytes(copy), None, traffic.remains)
            record.pieces[layout] = part, Layout.of(copy)
            del record.views[layout]
            if part.size_bytes >= self._selection.min_bytes:
                self._send(traffic, undecided[1], part)

    def _send(self, traffic: Traffic, tape: Tape, part: Part) -> None:
        number = tape.met(part)
        if tape.watch is not None:
            tape.watch.saved(part.size_bytes, mark(self._selection.device))
        if traffic.failure is not None or (tape.plan is not None and number >= tape.plan.sent):
            self._tally.add("kept", part.size_bytes)
        else:
            traffic.send(part, tape)
        backlog = tape.plan.backlog if tape.plan is not None else ()
        expected_bytes = backlog[min(number, len(backlog) - 1)] if backlog else 0
        traffic.hold_to_window(tape, expected_bytes)

    def _stats_of(self, done: Counters) -> CacheStats:
        sent = None if self._plan is None else (min(self._plan.sent, self._plan.tensors), self._plan.tensors)
        return CacheStats(
            **self._tally.fields(),
            host_bytes=done.peak_bytes,
            written_bytes=done.written_bytes,
            read_bytes=done.read_bytes,
            write_gbps=done.written_bytes / done.write_s / 1e9 if done.write_s > 0 else None,
            read_gbps=done.read_bytes / done.read_s / 1e9 if done.read_s > 0 else None,
            sent=sent,
            notes=done.notes,
        )
