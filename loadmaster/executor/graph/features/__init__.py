"""Features of nodes in host memory, read by the GPU in place: tables larger than the GPU's memory.

:func:`unified` and :func:`unified_file` make the table, :class:`HotRows` keeps what is read most on the GPU, and
:class:`FeatureLoader` brings batches to a training loop.
"""

from __future__ import annotations

from loadmaster.executor.graph.features.hot_rows import HotRows
from loadmaster.executor.graph.features.hotness import (
    hottest,
    out_degrees,
    predicted_hit_rate,
    reverse_pagerank,
    rows_within,
    sampled_frequency,
)
from loadmaster.executor.graph.features.loader import Batch, FeatureLoader
from loadmaster.executor.graph.features.making import unified, unified_empty, unified_file
from loadmaster.executor.graph.features.unified_tensor import UnifiedTensor

__all__ = [
    "Batch",
    "FeatureLoader",
    "HotRows",
    "UnifiedTensor",
    "hottest",
    "out_degrees",
    "predicted_hit_rate",
    "reverse_pagerank",
    "rows_within",
    "sampled_frequency",
    "unified",
    "unified_empty",
    "unified_file",
]
