"""Buffers of a segment reused, as Inductor does it where it may reorder a graph.

Inductor writes a result into a buffer of its size that nobody reads any more, instead of asking the allocator for one,
unless holding on to the buffer until then raises the peak of its graph. It knows the sizes of buffers, and with them
the peak, from its own reordering for memory alone. A planned graph is not reordered: by itself no size is known, every
buffer seems to raise the peak, and a step asks the allocator far more often than torch.compile's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from loadmaster.executor.torch_private.inductor import V, inductor_memory, inductor_wrapper


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
