"""Small concatenations of many tensors on a GPU: a kernel for eight of them, not for each.

Inductor puts up to 8 tensors together in one kernel. Of more it has each one written to its place by itself, which is
best for what can be made there. Parts of a product cannot: a loop over 32 positions that stacks them launches 32
kernels for a thousand elements each (Mamba), and 4 where they are nested in eights:

    cat([a0, ..., a31])  becomes  cat([cat([a0, ..., a7]), ..., cat([a24, ..., a31])])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, call
from loadmaster.executor.steps.step_graph import tensor_bytes

TOGETHER = 8  # Inductor's limit for tensors that take more than a copy
SMALL_BYTES = 8 << 20  # what is written twice, where the parts are not put together as they are made


def nest_concatenations(graph: fx.Graph) -> None:
    """Nest small concatenations on GPUs of more than 8 tensors, so that each one has 8 at most."""
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        made = node.meta["val"]
        if made.device.type == "cuda" and tensor_bytes(made) <= SMALL_BYTES:
            with graph.inserting_before(node):
                node.update_arg(0, _nested(graph, node))


def _nested(graph: fx.Graph, node: fx.Node) -> Sequence[Any]:
    """Arguments of the concatenation, nested so that they are at most 8."""
    parts = cast(Sequence[Any], node.args[0])
    while len(parts) > TOGETHER:
        eights = [parts[start : start + TOGETHER] for start in range(0, len(parts), TOGETHER)]
        parts = [call(graph, node.target, eight, *node.args[1:], **node.kwargs) for eight in eights]
    return parts
