"""Both passes of a layer as CUDA graphs: where kernels are short, one launch instead of dozens.

The first calls run kernel by kernel and warm everything up; the next one is captured. A replay reads features from
buffers of its own, into which they are copied, and parameters in place. Its results are in buffers that the next replay
overwrites, so callers get copies, and a replay waits for its turn: while the backward pass of a call is still to come,
other calls run kernel by kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from loadmaster.executor.graph.compiled.run import Run, backward_pass, call, forward_pass
from loadmaster.models.graph.spaces import WEIGHT_SPACES

T = TypeVar("T")
WARM_CALLS = 2
MOST_CAPTURES = 3  # parameters that move more often are not worth capturing
# Rows of edges times numbers in each: 20 microseconds at 3 TB/s in float32, about what a launch costs from Python.
SHORT_NUMBERS = 1 << 24


def is_short(run: Run) -> bool:
    """Return whether launches take longer than most of the kernels that they launch."""
    widest = max(t.numbers for t in run.program.types if t.space not in WEIGHT_SPACES)
    return run.indices.rows("edge") * widest <= SHORT_NUMBERS


class CudaGraphs:
    """Captures functions as CUDA graphs on one device, in one memory pool; they run in the current stream's order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._last = torch.cuda.current_stream(device)

    @staticmethod
    def is_under_way() -> bool:
        """Return whether the caller is capturing the current stream, so that what runs becomes part of its graph."""
        return torch.cuda.is_current_stream_capturing()

    def warm_up(self, function: Callable[[], object]) -> None:
        """Run a function on the stream that captures."""
        now = torch.cuda.current_stream(self.device)
        self._side.wait_stream(now)
        with torch.no_grad(), torch.cuda.stream(self._side):
            function()
        now.wait_stream(self._side)

    def capture(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Capture a function; return what it made, in buffers, and a call that runs its kernels on them again."""
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        how: dict[str, Any] = {"pool": self._pool, "stream": self._side, "capture_error_mode": "thread_local"}
        with torch.no_grad(), torch.cuda.graph(graph, **how):
            made = function()
        now.wait_stream(self._side)
        return made, graph.replay

    def wait(self) -> None:
        """Wait for the stream of the last replay, if the current one is another: replays share buffers."""
        now = torch.cuda.current_stream(self.device)
        if now != self._last:
            now.wait_stream(self._last)
            self._last = now


class GraphLaunches:
    """Calls of one run, captured when they have warmed up."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._graphs = CudaGraphs(run.indices.device)
        self._calls, self._captures = 0, 0
        self._captured: Captured | None = None

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the layer's outputs, as :func:`~loadmaster.executor.graph.compiled.run.call` does."""
        captured = self._for(given)
        if captured is None:
            return call(self.run, given)
        if not self.run.passes.gradients:
            return tuple(x.clone() for x in captured.forward(given))
        found: tuple[Tensor, ...] = _Replay.apply(captured, *given)  # type: ignore[no-untyped-call, unused-ignore]
        return found

    def _for(self, given: Sequence[Tensor]) -> Captured | None:
        """Return the captured passes that serve this call; None: it runs kernel by kernel."""
        self._calls += 1
        if self._calls <= WARM_CALLS or self._graphs.is_under_way():
            return None
        if self._captured is not None and self._captured.is_taken:
            return None
        if self._captured is None or not self._captured.fits(given):
            self._captured = None
            if self._captures == MOST_CAPTURES:
                return None
            self._captures += 1
            with torch.inference_mode(False):  # later calls, of any mode, write into its buffers
                self._captured = Captured(self.run, given, self._graphs)
        return self._captured


class Turn:
    """Time from a replay of the forward pass to the end of its backward pass, or until nobody can ask for that."""

    is_over = False


class Captured:
    """Both passes of a run, captured, and their buffers."""

    def __init__(self, run: Run, given: Sequence[Tensor], graphs: CudaGraphs) -> None:
        self.run, self.features = run, len(run.program.given("feature"))
        self.dtypes = [x.dtype for x in given]
        self._graphs = graphs
        self._turn: weakref.ref[Turn] | None = None
        self._inputs = [x.detach().clone() if at < self.features else x.detach() for at, x in enumerate(given)]
        graphs.warm_up(self._both)
        (self._outputs, self._saved), self._replay_forward = graphs.capture(self._forward)
        self._upstream = [torch.zeros_like(x) for x in self._outputs]
        self._gradients: list[Tensor | None] = []
        if run.passes.gradients:
            self._gradients, self._replay_backward = graphs.capture(self._backward)

    def _forward(self) -> tuple[list[Tensor], list[Tensor]]:
        return forward_pass(self.run, self._inputs)

    def _backward(self) -> list[Tensor | None]:
        # A copy of the list: what is saved stays as long as replays may read it.
        return backward_pass(self.run, [*self._saved], self._upstream, self.dtypes)

    def _both(self) -> None:
        outputs, saved = self._forward()
        if self.run.passes.gradients:
            zeros = [torch.zeros_like(x) for x in outputs]
            backward_pass(self.run, saved, zeros, self.dtypes)

    @property
    def is_taken(self) -> bool:
        """True if a backward pass may still come that reads what the last replay saved."""
        turn = None if self._turn is None else self._turn()
        return turn is not None and not turn.is_over

    def fits(self, given: Sequence[Tensor]) -> bool:
        """Return whether parameters are at the addresses, and all tensors of the dtypes, that were captured."""
        pairs = zip(self._inputs[self.features :], given[self.features :], strict=True)
        same_places = all(a.data_ptr() == b.data_ptr() for a, b in pairs)
        return same_places and self.dtypes == [x.dtype for x in given]

    def forward(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, in buffers that the next replay overwrites."""
        self._graphs.wait()
        for buffer, x in zip(self._inputs[: self.features], given, strict=False):
            buffer.copy_(x.detach())
        self._replay_forward()
        return self._outputs

    def backward(self, upstream: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients, in buffers that the next replay overwrites."""
        self._graphs.wait()
        for buffer, x in zip(self._upstream, upstream, strict=True):
            buffer.copy_(x)
        self._replay_backward()
        return self._gradients

    def take_turn(self) -> Turn:
        """Begin a turn, which holds off other calls as long as it lives and is not over."""
        turn = Turn()
        self._turn = weakref.ref(turn)
        return turn


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, captured: Captured, *given: Tensor) -> tuple[Tensor, ...]:
        outputs = tuple(x.clone() for x in captured.forward(given))
        ctx.captured, ctx.turn = captured, captured.take_turn()
        # Parameters are read in place: saved, so that autograd notices if they change before the backward pass.
        ctx.save_for_backward(*given[captured.features :], given[0].new_empty(0))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        ctx.saved_tensors  # noqa: B018 - raises where they changed, or were let go
        found = [None if x is None else x.clone() for x in ctx.captured.backward(upstream)]
        ctx.maybe_clear_saved_tensors()
        ctx.turn.is_over = _is_let_go(ctx)
        return (None, *found)


def _is_let_go(ctx: Any) -> bool:
    """Return whether the backward pass cannot run again: the caller did not ask to retain the graph."""
    try:
        ctx.saved_tensors  # noqa: B018 - raises where they were let go
    except RuntimeError:
        return True
    return False
