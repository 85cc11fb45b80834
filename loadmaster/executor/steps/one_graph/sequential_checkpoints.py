"""``torch.utils.checkpoint.checkpoint_sequential`` in a graph: Dynamo traces ``checkpoint``, and refuses this one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


@cache
def trace_sequential_checkpoints() -> None:
    """Let Dynamo trace an equal function in place of ``checkpoint_sequential``, for all that this process compiles."""
    with contextlib.suppress(ValueError):  # somebody has done so
        torch.compiler.substitute_in_graph(checkpoint_sequential)(_checkpoint_sequential)


def _checkpoint_sequential(
    functions: Sequence[Callable[..., Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    layers = list(functions.children() if isinstance(functions, nn.Sequential) else functions)

    def run(layers: Sequence[Callable[..., Any]], x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    each = len(layers) // segments
    reentrant = True if use_reentrant is None else use_reentrant
    for first in range(0, each * (segments - 1), each):
        input = checkpoint(run, layers[first : first + each], input, use_reentrant=reentrant, **kwargs)
    return run(layers[each * (segments - 1) :], input)
