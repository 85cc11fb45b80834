"""Backends that run the two graphs: eagerly, in their own order, or through Inductor.

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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, cast
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.compiler import config as compiler_config

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.memory.implementations.emitting import aten
from loadmaster.executor.memory.run.channels_last import (
    has_channels_last_gradients,
    is_channels_last,
    runs_channels_last,
)
from loadmaster.executor.memory.run.lowering import Lowered, Storages, kind_of, lower, nest_concatenations
from loadmaster.executor.memory.run.segments import Runner, chain, cut
from loadmaster.executor.steps.launches import launch_directly, noting_modules
from loadmaster.executor.steps.tracing import Half
from loadmaster.executor.torch_private.fake_tensors import detect_fake_mode
from loadmaster.executor.torch_private.functorch import functorch_config
from loadmaster.executor.torch_private.inductor import (
    WAIT_FOR_KERNELS,
    AsyncCompile,
    V,
    cache_dir,
    compile_fx_inner,
    count_tangents,
    inductor_config,
    inductor_memory,
    inductor_wrapper,
    replace_random_passes,
)
from loadmaster.executor.torch_private.tracing import BoxedCodeGen, TracingContext, boxed


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


Backend = Literal["inductor", "eager"]
_PRIMAL = "primals_"  # how AOTAutograd calls inputs, counted from 1


def eager(module: fx.GraphModule, _inputs: Sequence[Any], _half: Half = "forward") -> Runner:
    """Run the graph node by node in its order.

    The arguments come as one list that is emptied on entry, and every name dies at its last use: a saved activation is
    freed as soon as the backward pass has read it for the last time. PyTorch's fake kernels lay out some results
    otherwise than its real ones, as a loss's gradient of what is transposed: a view of those is a copy.
    """
    for node in module.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
    module.graph.set_codegen(BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    return boxed(run)


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn what Inductor and its compilers raise into an :class:`InputError`: the model is not to blame."""
    try:
        yield
    except (LoadmasterError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise InputError(
            "backend",
            "inductor",
            f"could not compile the planned step: {type(error).__name__}: {first_line}",
            "Install the compiler that it lacks (of C++ on a CPU, of C for Triton on a GPU). If a file of its cache is "
            f'broken, delete {cache_dir()}. Or choose backend="eager".',
        ) from error


@_clear_errors()
def inductor(
    module: fx.GraphModule, inputs: Sequence[Any], half: Half = "forward", *, last_first: bool = False
) -> Runner:
    """Compile the graph with Inductor segment by segment, its own reordering for memory off.

    Left to itself Inductor lays out channels last whatever has four dimensions and leads to a convolution, even if
    permuted on the way: rows of a LayerNorm, which nobody can read along then. So the layouts of what segments make are
    those that they are lowered with. With ``last_first`` the last segment is compiled first, of a backward graph:
    another process begins with the first one.
    """
    new = _new_each_time(module, half)
    if half == "forward":
        return _run_by_inductor(module, inputs, _compile, new=new, channels_last=runs_channels_last(module))
    # The forward pass left images so, or nothing does.
    channels_last = any(is_channels_last(t) for t in inputs if isinstance(t, Tensor))
    return _run_by_inductor(
        module, inputs, _compile, _saved(module), new=new, channels_last=channels_last, last_first=last_first
    )


def lowered_only(module: fx.GraphModule, inputs: Sequence[Any]) -> Runner:
    """Lower a graph as :func:`inductor` does, for what is compiled after it; the runner that it returns cannot run."""
    return _run_by_inductor(module, inputs, lambda lowered, *_: lowered, channels_last=runs_channels_last(module))


def _saved(module: fx.GraphModule) -> frozenset[str]:
    """Inputs of a backward graph that the forward graph has made for it alone: nobody reads them afterwards."""
    metadata = TracingContext.get().fw_metadata
    assert metadata is not None, "inside AOTAutograd"
    places = {*(metadata.bw_donated_idxs or ())}
    return frozenset(n.name for place, n in enumerate(module.graph.find_nodes(op="placeholder")) if place in places)


def _new_each_time(module: fx.GraphModule, half: Half) -> frozenset[str]:
    """Inputs of a graph that may be anywhere in memory in each step: the batch, of the backward graph tangents, too."""
    names = [n.name for n in module.graph.find_nodes(op="placeholder")]
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    static = getattr(metadata, "static_input_indices", ())
    if half == "forward":
        return frozenset(names) - {names[place] for place in static}
    # What is saved of the batch is the tensor that the user gave, under its name in the joint graph.
    parameters = {f"{_PRIMAL}{place + 1}" for place in static}
    batch = frozenset(n for n in names if n.startswith(_PRIMAL)) - parameters
    return batch.union(names[count_tangents(module) :])


class _Call(NamedTuple):
    """Segments that run the same code, for a graph of this ``kind``: it may write over the inputs at the places
    ``donated``; those at ``aligned`` begin where a memory access may begin, as everything does that is made here."""

    kind: Hashable
    donated: tuple[int, ...]
    aligned: tuple[int, ...]


@built_together()
def _run_by_inductor(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    compile: Callable[..., Runner],
    saved: frozenset[str] = frozenset(),
    *,
    new: frozenset[str] = frozenset(),
    channels_last: bool,
    last_first: bool = False,
) -> Runner:
    fakes = dict(zip((n.name for n in module.graph.find_nodes(op="placeholder")), inputs, strict=True))
    storages = Storages(fakes)
    not_ours, elsewhere = frozenset(fakes) - saved, {storages.by_name[name] for name in new}
    segments = cut(module)
    known: dict[Hashable, Lowered] = {}
    calls: list[_Call] = []
    alike: dict[_Call, Sequence[Any]] = {}  # what the first of them is given
    for segment in segments:
        given = [fakes[name] for name in segment.reads]
        kind = kind_of(segment, given, storages)
        if kind not in known:
            known[kind] = Lowered.of(lower(segment.module, given, channels_last=channels_last), given)
        fakes.update(zip(segment.makes, known[kind].results(), strict=True))
        storages.add(segment, known[kind])
        # It may write over what is made by segments before it, or for this graph alone, and read by none after it.
        last_read = segment.frees - not_ours
        places = list(enumerate(segment.reads))
        donated = tuple(p for p, name in places if name in last_read and storages.is_alone(name))
        aligned = tuple(p for p, name in places if storages.by_name[name] not in elsewhere)
        calls.append(_Call(kind, donated, aligned))
        alike.setdefault(calls[-1], given)
    compiled = {}
    for call, reads in reversed(alike.items()) if last_first else alike.items():
        # What a segment returns is not what the graph returns.
        with TracingContext.report_output_strides():
            compiled[call] = compile(known[call.kind].copied(), reads, call.donated, call.aligned)
    report_strides(module, fakes)
    return chain(module, segments, [compiled[call] for call in calls])


def report_strides(module: fx.GraphModule, fakes: Mapping[str, Any] | None = None) -> None:
    """Tell AOTAutograd the strides of a forward graph's results, for which the backward graph is compiled: those of
    these ``fakes`` by name, or of those that the graph was traced with."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        for node in cast(Sequence[Any], module.graph.output_node().args[0]):
            traced = node.meta.get("val") if isinstance(node, fx.Node) else None
            fake = fakes[node.name] if fakes is not None and isinstance(node, fx.Node) else traced
            context.output_strides.append(fake.stride() if isinstance(fake, Tensor) else None)


def _compile(module: fx.GraphModule, inputs: Sequence[Any], donated: Sequence[int], aligned: Sequence[int]) -> Runner:
    shapes = _shapes_of(module)  # compiling changes the graph
    with V.set_fake_mode(detect_fake_mode(inputs)):
        replace_random_passes(module)  # Inductor has its own random numbers, and code for no others
        nest_concatenations(module.graph)
    module.recompile()  # see :func:`lower`
    options = {"reorder_for_peak_memory": False, "reorder_for_locality": False}
    if has_channels_last_gradients(module):
        options["force_layout_optimization"] = inductor_config.layout_optimization
    modules: list[ModuleType] = []
    with inductor_config.patch(options), _donating(donated), buffers_reused(), noting_modules(modules):
        # Inductor asks which inputs it may write over where it takes a graph for a backward graph.
        runner: Runner = compile_fx_inner(module, list(inputs), static_input_idxs=aligned, is_backward=bool(donated))
    return WithDimensions(runner, shapes, modules)


class WithDimensions:
    """The runner of a graph, whose results have the dimensions that the graph says.

    Inductor of PyTorch 2.11 makes the sum over rows of a normalization's backward in one kernel with its sums along
    rows, and drops the dimensions of size one that the sum was to keep: [896] for [1, 1, 896]. PyTorch 2.13 gives them
    back (pytorch/pytorch#177782). Where the view that takes them away follows in the same graph nobody notices; where a
    graph is cut between the two, the next segment refuses what it is given.

    ``shapes`` are those of the results by place that have dimensions to lose, ``modules`` those that Inductor wrote for
    the graph. ``direct`` computes the results, from the first call on, without what only that call needs.
    """

    def __init__(self, compiled: Runner, shapes: Mapping[int, torch.Size], modules: Sequence[ModuleType]) -> None:
        self._compiled = compiled
        self._shapes = shapes
        self._modules = modules
        self.direct: Runner = self._first
        self._boxed_call = True

    def __call__(self, arguments: list[Any]) -> Any:
        return self.direct(arguments)

    def _first(self, arguments: list[Any]) -> Any:
        made = self._compiled(arguments)
        # The same code drops the same dimensions each time.
        lost = {place: shape for place, shape in self._shapes.items() if made[place].dim() != len(shape)}
        # Inductor's wrapper ends the tuning of kernels, which their first call does.
        code = getattr(self._compiled, "current_callable", None) or self._compiled

        def viewed(results: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(result.view(lost[n]) if n in lost else result for n, result in enumerate(results))

        self.direct = (lambda given: viewed(code(given))) if lost else code
        launch_directly(self._modules)
        return viewed(made)


def _shapes_of(module: fx.GraphModule) -> dict[int, torch.Size]:
    results = cast(Sequence[Any], module.graph.output_node().args[0])
    fakes = {place: n.meta.get("val") for place, n in enumerate(results) if isinstance(n, fx.Node)}
    return {place: fake.shape for place, fake in fakes.items() if isinstance(fake, Tensor) and fake.dim() > 1}


@contextlib.contextmanager
def both_halves() -> Iterator[None]:
    """Have AOTAutograd compile the backward graph with the forward graph, not when it first runs: while the one is
    lowered, kernels of the other one are built."""
    with functorch_config.patch(force_non_lazy_backward_lowering=True), built_together():
        yield


@contextlib.contextmanager
def _donating(places: Sequence[int]) -> Iterator[None]:
    """Let Inductor write over the inputs at these places, instead of those of the whole backward graph. Its caches know
    a graph, not what it may write over: the places enter their keys."""
    if not places:
        yield
        return
    metadata = TracingContext.get().fw_metadata
    assert metadata is not None
    whole, metadata.bw_donated_idxs = metadata.bw_donated_idxs, list(places)
    tag = f"{compiler_config.cache_key_tag} writes over {places}"
    try:
        with compiler_config.patch(cache_key_tag=tag):  # type: ignore[attr-defined]
            yield
    finally:
        metadata.bw_donated_idxs = whole


COMPILERS: dict[Backend, Callable[[fx.GraphModule, Sequence[Any], Half], Runner]] = {
    "inductor": inductor,
    "eager": eager,
}


def expect_backend(backend: str) -> None:
    """Raise an InputError for a backend that is not in :data:`COMPILERS`, naming those that are."""
    if backend not in COMPILERS:
        raise InputError("backend", backend, "is unknown", f"Choose one of: {', '.join(COMPILERS)}.")
