"""Kernels of all segments built side by side, while the segments are lowered one after another.

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

from loadmaster.executor.torch_private.inductor import WAIT_FOR_KERNELS, AsyncCompile


@contextlib.contextmanager
def built_together() -> Iterator[None]:
    """Wait for the kernels of everything that this thread compiles inside when all is compiled.

    Inside another one, the other one waits.

    Where PyTorch has no such step, each graph waits for its own.
    """
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
