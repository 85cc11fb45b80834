"""Tracer of a training step into its joint graph, through torch.compile and AOTAutograd.

One path for capture and for apply: the same decompositions (none), the same passes, which the caller names, so that a
plan made from the one fits the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal, cast, get_args

import torch
from torch import fx, nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.drawn_once import compile_drawing_once
from loadmaster.executor.steps.launches import launch_directly, noting_modules
from loadmaster.executor.steps.one_graph.dynamo_changes import (
    TRACED_OTHERWISE,
    detach_kept,
    lay_out_masks,
    refusing_gradients,
    trace_sequential_checkpoints,
)
from loadmaster.executor.steps.one_graph.graph_breaks import UntraceableError, as_one_graph, clear_errors, place_of
from loadmaster.executor.steps.one_graph.replaced_attributes import patched
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import StepGraph, tensors
from loadmaster.executor.torch_private.inductor import aot_autograd, compile_fx_inner

Mode = Literal["default", "reduce-overhead"]
Half = Literal["forward", "backward"]
Before = Callable[[Half], None]
"""Callback that runs before the forward graph is compiled, and before the backward graph is."""
Passes = Callable[[fx.GraphModule], fx.GraphModule]
Partition = Callable[[StepGraph], tuple[fx.GraphModule, fx.GraphModule]]
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""Compiler of a graph and example inputs, or a backend of torch.compile."""


def expect_mode(mode: str) -> None:
    """Refuse an unknown mode of compilation, by an InputError that names the known ones."""
    if mode not in get_args(Mode):
        raise InputError("mode", mode, "is unknown", f"Choose one of: {', '.join(get_args(Mode))}.")


def backend_of(partition: Partition, passes: Passes, forward: Compiler, backward: Compiler) -> Compiler:
    """Make a backend of torch.compile with the given partition and compilers; arguments as for :func:`compiled`."""

    def split(module: fx.GraphModule, _inputs: object, *, num_fwd_outputs: int, **_: Any) -> Any:
        expect_static_shapes(module.graph)
        step_graph = StepGraph.split(passes(module), num_fwd_outputs)
        expect_gradients(step_graph)
        return partition(step_graph)

    backend: Compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=forward,
        partition_fn=split,
        keep_inference_input_mutations=True,  # in training, too: running statistics are updated inside the graph
    )
    return backend


def compiled(
    partition: Partition,
    compilers: Callable[[], tuple[Compiler, Compiler]],
    passes: Passes,
    noted: Callable[[fx.GraphModule], None] | None = None,
    during: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Callable[..., torch.Tensor]:
    """Make ``call(step, *args, **kwargs)``, which runs under torch.compile with the given partition and compilers.

    Nothing runs before the first call. Equal steps (the blocks of a transformer) share what is compiled.

    Args:
        partition: cuts the joint graph into the forward and the backward graph.
        compilers: gives, for each step that becomes a graph, that of the forward and that of the backward graph.
        passes: changes of the joint graph before it is cut.
        noted: is called with Dynamo's graph, in which only attention masks are laid out yet.
        during: context in which Dynamo's graph is compiled.
    """

    def noting(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        lay_out_masks(module)
        if noted is not None:
            noted(module)
        kept = detach_kept(module)
        with during():
            return refusing_gradients(backend_of(partition, passes, *compilers())(module, inputs), kept)

    trace_sequential_checkpoints()
    call = torch.compile(_own_call(), backend=noting, fullgraph=True, dynamic=False)

    def traceable(step: Step, *args: Any, **kwargs: Any) -> torch.Tensor:
        with step.library_attributes, patched(*TRACED_OTHERWISE):
            return call(step, *args, **kwargs)

    return traceable


def given_tensors(module: fx.GraphModule) -> list[torch.Tensor | None]:
    """Tensors that the primals of Dynamo's graph stand for, in order; None for other inputs."""
    passed = [node.meta.get("grapharg") for node in module.graph.find_nodes(op="placeholder")]
    given = [None if argument is None else argument.example for argument in passed]
    return [value if isinstance(value, torch.Tensor) else None for value in given]


class _TracedError(Exception):
    """Exception that ends a trace as soon as the joint graph exists. It never leaves this module."""

    def __init__(self, graph: StepGraph) -> None:
        super().__init__("traced")
        self.graph = graph


def trace(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    passes: Passes,
    expect: Callable[[StepGraph], None] | None = None,
    noted: Callable[[fx.GraphModule], None] | None = None,
) -> StepGraph:
    """Trace the joint graph of one training step. Nothing of the step runs.

    ``passes`` and ``noted`` are as for :func:`compiled`; ``expect`` raises for a graph that does not belong to a step,
    by default :func:`expect_scalar_loss`.

    Raises:
        InputError: the step cannot be traced as one graph, needs no gradient, or returns no scalar loss.
    """
    step = Step(model, loss, expects_loss=expect is None)
    taken = step.batch(batch)
    step.expect_call(taken)

    def partition(graph: StepGraph) -> tuple[fx.GraphModule, fx.GraphModule]:
        (expect or expect_scalar_loss)(graph)
        raise _TracedError(graph)

    try:
        with torch.enable_grad(), as_one_graph(), clear_errors(passing=_TracedError):
            call = compiled(partition, lambda: (left, left), passes, noted)
            returned: object = call(step, *taken.args, **taken.kwargs)
    except _TracedError as traced:
        return traced.graph
    if not isinstance(returned, torch.Tensor) and loss is not None:
        remedy = "Return the loss as a scalar tensor, without .item()."
        raise InputError("loss", returned, f"returned {type(returned).__name__}, no tensor", remedy)
    remedy = "Give it a parameter that requires one."
    raise InputError("model", type(model).__name__, "has no gradient to compute", remedy)


def left(module: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiler that returns the module as it is."""
    return module


def compiled_plainly(
    mode: Mode = "default", before: Before = lambda _half: None, inner: Callable[..., Any] = compile_fx_inner
) -> Callable[..., torch.Tensor]:
    """Make ``call(step, *args, **kwargs)``, which runs under torch.compile in this mode, without a plan.

    It differs from plain torch.compile in attention's masks, in random numbers, each of which is drawn once, and in
    kernels, which are launched directly from the second step on. Each has a backend of its own, whose halves ``inner``
    compiles: after a graph break, Dynamo reuses code that it compiled for another caller with the same backend, under
    that caller's settings.
    """
    patches = {"triton.cudagraphs": True} if mode == "reduce-overhead" else None
    modules: list[ModuleType] = []

    def half_of_it(module: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        before("backward" if settings.get("is_backward") else "forward")
        with noting_modules(modules):
            return inner(module, inputs, **settings)

    def inductor(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        lay_out_masks(module)
        with noting_modules(modules):  # AOTAutograd's cache has both halves, or compiles the backward graph later
            return compile_drawing_once(module, inputs, half_of_it, patches)

    compiled = torch.compile(_own_call(), backend=inductor)

    def call(step: Step, *args: Any, **kwargs: Any) -> torch.Tensor:
        launch_directly(modules)  # those of steps before, both halves of which have run
        modules.clear()
        with step.library_attributes:
            return compiled(step, *args, **kwargs)

    return call


def _own_call() -> Callable[..., torch.Tensor]:
    # torch.compile keeps its caches per code object: every plan gets one of its own, so that plans for
    # one model never count as recompilations of each other.
    def call(step: Step, *args: Any, **kwargs: Any) -> torch.Tensor:
        return cast(torch.Tensor, step(*args, **kwargs))

    call.__code__ = call.__code__.replace(co_firstlineno=call.__code__.co_firstlineno)
    return call


def expect_static_shapes(graph: fx.Graph) -> None:
    """Refuse a graph in which the bytes of a tensor depend on the data, which no plan can count, by an InputError that
    names the operator and the user's line."""
    for node in graph.nodes:
        for tensor in tensors(node.meta.get("val")):
            if tensor.layout is not torch.strided:
                problem = f"makes a tensor that is not dense{place_of(node)}"
                remedy = "Use dense tensors and gradients, as of Embedding(..., sparse=False)."
                raise UntraceableError("model", str(node.target), problem, remedy)
            if not all(isinstance(size, int) for size in tensor.shape):
                problem = f"makes a shape that depends on the data{place_of(node)}"
                remedy = "Use an operator whose result has a fixed shape, such as a mask."
                raise UntraceableError("model", str(node.target), problem, remedy)


def expect_scalar_loss(step_graph: StepGraph) -> None:
    """Refuse a step whose loss is anything but one computed scalar, by an InputError that names the shape found."""
    loss = step_graph.loss
    shapes = [tuple(t.shape) for t in tensors(loss.meta.get("val"))] if isinstance(loss, fx.Node) else []
    if len(step_graph.tangents) != 1 or len(shapes) != 1 or any(d != 1 for d in shapes[0]):
        remedy = "Return the loss alone, as a scalar."
        raise InputError("loss", shapes, "the step does not return one scalar loss", remedy)
    if step_graph.producer(step_graph.roots[loss]).op != "call_function":
        raise InputError("loss", str(loss), "the loss is an input of the step", "Compute the loss from the model.")


def expect_gradients(step_graph: StepGraph) -> None:
    """Refuse, by an InputError, steps without gradients, and meta, where PyTorch derives none for some operators."""
    devices = {t.device.type for n in step_graph.primals for t in tensors(n.meta.get("val"))}
    if "meta" in devices:
        remedy = "Move what is on meta to the device that trains; only capture takes a model without values."
        raise InputError("model", "meta", "has no values to train with", remedy)
    if not any(isinstance(n, fx.Node) for n in step_graph.backward_outputs):
        raise InputError("model", step_graph.backward_outputs[:3], "has no gradient to compute", "Check requires_grad.")
