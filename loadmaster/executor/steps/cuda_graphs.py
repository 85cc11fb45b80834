"""CUDA graphs of a step's two graphs, where the user asks for what ``torch.compile(mode="reduce-overhead")`` does.

Each is recorded once and replayed from then on, so that a step takes as long as its kernels and not as long as their
launches. PyTorch's own trees of CUDA graphs do it: both graphs share one pool of memory, in which the backward graph
frees what the forward graph has saved. Results are in that pool: read a loss and gradients before the next step begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.tracing import Compiler
from loadmaster.executor.steps.transfers import fetch, send
from loadmaster.executor.torch_private.inductor import (
    count_tangents,
    cudagraphify_impl,
    find_input_mutations,
    get_first_incompatible_cudagraph_node,
    get_manager,
    get_placeholder_info,
    get_stack_traces,
)
from loadmaster.executor.torch_private.tracing import TracingContext, boxed

logger = logging.getLogger(__name__)


class CudaGraphs:
    """Compiler of one step that turns its compiled forward graph and its compiled backward graph into CUDA graphs.
    Where a graph cannot be recorded, the log says why, and it runs as compiled."""

    def __init__(self, compile_forward: Compiler, compile_backward: Compiler) -> None:
        self._compile_forward, self._compile_backward = compile_forward, compile_backward
        self._device: int | None = None
        """Index of the device that replays the forward graph."""

    def forward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile the forward graph: parameters and buffers stay in place, the batch is copied in at each step."""
        context = TracingContext.try_get()
        assert context is not None and context.fw_metadata is not None, "inside AOTAutograd"
        static = list(context.fw_metadata.static_input_indices)
        why = why_not(module, static)
        if why is None:
            self._device = _devices(module).pop().index
        return self._graphed(module, inputs, static, why, is_backward=False)

    def backward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile the backward graph: what was saved for it stays where the forward graph has made it."""
        if self._device is None:
            return self._compile_backward(module, inputs)
        static = list(range(count_tangents(module)))
        return self._graphed(module, inputs, static, why_not(module, static), is_backward=True)

    def _graphed(
        self,
        module: fx.GraphModule,
        inputs: Sequence[Any],
        static: Sequence[int],
        why: str | None,
        *,
        is_backward: bool,
    ) -> Callable[..., Any]:
        # Before it is compiled, which changes the graph.
        placeholders, stacks = tuple(get_placeholder_info(module.graph)), get_stack_traces(module)
        written = tuple(sorted(find_input_mutations(module.graph)))
        run = (self._compile_backward if is_backward else self._compile_forward)(module, inputs)
        if why is not None:
            logger.warning("the %s pass runs without CUDA graphs: %s", "backward" if is_backward else "forward", why)
            return self._after_forward(run) if is_backward else run
        replayed = cudagraphify_impl(
            run,
            list(inputs),
            static,
            device_index=self._device,
            is_backward=is_backward,
            is_inference=False,
            stack_traces=stacks,
            placeholders=placeholders,
            mutated_input_idxs=written,
        )
        return boxed(replayed)

    def _after_forward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a compiled backward pass so that it tells PyTorch of its start: the next forward pass is a new step."""
        assert self._device is not None
        device = self._device

        def running(arguments: list[Any]) -> Any:
            manager = get_manager(device, create_if_none_exists=False)
            if manager is not None:
                manager.set_to_running_backward()
            return run(arguments)

        return boxed(running)


def why_not(module: fx.GraphModule, static: Collection[int]) -> str | None:
    """Return why a graph whose inputs at ``static`` places stay in place cannot be a CUDA graph; None where it can."""
    devices = _devices(module)
    if {device.type for device in devices} != {"cuda"} or len(devices) > 1:
        return f"it has tensors on {', '.join(sorted(map(str, devices)))}"
    if any(module.graph.find_nodes(op="call_function", target=copy) for copy in (send, fetch)):
        return "the plan sends results to the host"
    node = get_first_incompatible_cudagraph_node(module)
    if node is not None:
        return f"{node.target} cannot be recorded"
    written = find_input_mutations(module.graph) - set(static)
    return f"it writes over {len(written)} of its inputs" if written else None


def _devices(module: fx.GraphModule) -> set[torch.device]:
    return {tensor.device for node in module.graph.nodes for tensor in tensors(node.meta.get("val"))}
