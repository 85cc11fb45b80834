"""Tracing as capture does it: with the passes of the memory kind."""

from __future__ import annotations

from functools import partial

from loadmaster.executor.memory.implementations.passes import run_passes
from loadmaster.executor.steps import tracing

trace = partial(tracing.trace, passes=run_passes)
