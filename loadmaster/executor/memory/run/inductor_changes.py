"""Changes of Inductor while it compiles segments: buffers are reused, and kernels of all segments built together.

Inductor writes a result into a buffer of its size that nobody reads any more, instead of asking the allocator for one,
unless holding on to the buffer until then raises the peak of its graph. It knows the sizes of buffers, and with them
the peak, from its own reordering for memory alone. A planned graph is not reordered: by itself no size is known, every
buffer seems to raise the peak, and a step asks the allocator far more often than torch.compile's.

Inductor writes the code of a graph, hands its kernels to a pool of processes, and waits for them before it returns. A
graph in segments would wait after each, while this process has nothing to do: nearly half of such a compilation. Here
the waiting comes after the last segment. Until then a segment's module has futures where its kernels will be.
Inductor's cache keeps such a graph without its kernels' binaries, which are not there yet; Triton's own cache has them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from loadmaster.executor.torch_private.inductor import (
    WAIT_FOR_KERNELS,
    AsyncCompile,
    V,
    inductor_memory,
    inductor_wrapper,
)


@contextlib.contextmanager
def buffers_reused() -> Iterator[None]:
    """Let graphs that Inductor compiles in the context reuse their buffers, though it does not reorder them."""
    estimate: Any = inductor_wrapper.EfficientPeakEstimate
    original = estimate.__init__

    def knowing_sizes(self: Any) -> None:
        scheduler = V.graph.scheduler
        inductor_memory.assign_memory_planning_info_for_scheduler_buffers(scheduler.nodes, scheduler.name_to_buf)
        original(self)

    with patch.object(estimate, "__init__", knowing_sizes):
        yield


@contextlib.contextmanager
def built_together() -> Iterator[None]:
    """Wait for the kernels of everything that this thread compiles inside when all is compiled; of nested ones the
    outermost waits. Where PyTorch has no such step, each graph waits for its own."""
    original = getattr(AsyncCompile, WAIT_FOR_KERNELS, None)
    if original is None:
        yield
        return
    here, waiting = threading.get_ident(), []

    def later(builds: AsyncCompile, scope: dict[str, Any]) -> None:
        if threading.get_ident() == here:
            waiting.append((builds, scope))
        else:
            original(builds, scope)

    with patch.object(AsyncCompile, WAIT_FOR_KERNELS, later):
        yield
    for builds, scope in waiting:
        original(builds, scope)
