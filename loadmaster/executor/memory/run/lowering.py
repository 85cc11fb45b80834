"""Segments lowered for Inductor: of equal ones, as the layers of a network are, one is lowered and compiled.

Equal segments read values of the same shapes, types and strides, of which the same ones share memory, and do the same
to them.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from loadmaster.executor.memory.implementations.decompositions import decompositions
from loadmaster.executor.memory.implementations.emitting import aten, call
from loadmaster.executor.memory.run.channels_last import ChannelsLast
from loadmaster.executor.memory.run.segments import Segment, described, described_tensors
from loadmaster.executor.steps.step_graph import tensor_bytes
from loadmaster.executor.torch_private.autograd import storage_key
from loadmaster.executor.torch_private.fake_tensors import detect_fake_mode
from loadmaster.executor.torch_private.inductor import select_decomp_table
from loadmaster.executor.torch_private.tracing import make_fx

TOGETHER = 8  # Inductor's limit for tensors that take more than a copy
SMALL_BYTES = 8 << 20  # what is written twice, where the parts are not put together as they are made


def lower(module: fx.GraphModule, inputs: Sequence[Any], *, channels_last: bool) -> fx.GraphModule:
    """The graph after Inductor's decompositions and those of our own operators; ``channels_last`` from the start, or
    from where a result is otherwise."""
    # Constants that decompositions create must be fake like the inputs.
    fake_mode = detect_fake_mode(inputs)
    with contextlib.nullcontext() if fake_mode is None else fake_mode:
        table = {**select_decomp_table(), **decompositions()}
        run = ChannelsLast(module, convolutions=channels_last).run
        lowered: fx.GraphModule = make_fx(run, decomposition_table=table)(*inputs)
    # Inductor's cache tells modules apart that differ in nothing but whether their code was written when they were
    # made. Here it always is, whoever calls.
    return fx.GraphModule(lowered, lowered.graph)


def nest_concatenations(graph: fx.Graph) -> None:
    """Nest small concatenations on GPUs of more than 8 tensors, so that each one has 8 at most.

    Inductor puts up to 8 tensors together in one kernel. Of more it has each one written to its place by itself, which
    is best for what can be made there. Parts of a product cannot: a loop over 32 positions that stacks them launches 32
    kernels for a thousand elements each (Mamba), and 4 where they are nested in eights:

        cat([a0, ..., a31])  becomes  cat([cat([a0, ..., a7]), ..., cat([a24, ..., a31])])
    """
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        made, parts = node.meta["val"], cast(Sequence[Any], node.args[0])
        if made.device.type != "cuda" or tensor_bytes(made) > SMALL_BYTES:
            continue
        with graph.inserting_before(node):
            while len(parts) > TOGETHER:
                eights = [parts[start : start + TOGETHER] for start in range(0, len(parts), TOGETHER)]
                parts = [call(graph, node.target, eight, *node.args[1:], **node.kwargs) for eight in eights]
            node.update_arg(0, parts)


def kind_of(segment: Segment, given: Sequence[Any], storages: Storages) -> Hashable:
    """Key of a segment that reads the fakes ``given``, the same for equal segments; one with constants of its own is
    equal to no other."""
    graph = segment.module.graph
    if graph.find_nodes(op="get_attr"):
        return id(segment)
    names = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    held = [storages.by_name[name] for name in segment.reads]
    shared = tuple(map(held.index, held))
    return described_tensors(given), shared, tuple(described(node, names.__getitem__) for node in graph.nodes)


@dataclass(frozen=True)
class Lowered:
    """A segment after all decompositions. ``owners`` has for each result the first of the inputs and results that has
    its storage: a place among both."""

    module: fx.GraphModule
    owners: tuple[int, ...]
    _results: tuple[Any, ...]

    @classmethod
    def of(cls, module: fx.GraphModule, given: Sequence[Any]) -> Lowered:
        """A graph that was lowered for these fakes."""
        made = module.graph.output_node()
        results = tuple(node.meta["val"] for node in cast(Sequence[fx.Node], made.args[0]))
        # The segments that follow are lowered for exactly these strides.
        made.meta["user_visible_output_idxs"] = list(range(len(results)))
        held = [_storage(value) for value in (*given, *results)]
        return cls(module, tuple(held.index(_storage(value)) for value in results), results)

    def results(self) -> list[Any]:
        """Fakes of the results of an equal segment, for a tracer new ones each time. Shared memory does not show."""
        fake_mode = detect_fake_mode(self._results)
        with contextlib.nullcontext() if fake_mode is None else fake_mode:
            return [_another(value) if isinstance(value, Tensor) else value for value in self._results]

    def copied(self) -> fx.GraphModule:
        """A copy of the graph, for whoever compiles it and changes it thereby."""
        return fx.GraphModule(self.module, copy.deepcopy(self.module.graph))


class Storages:
    """Storages of a graph's values, in ``by_name``: equal where values share memory. ``fakes`` are the inputs."""

    def __init__(self, fakes: Mapping[str, Any]) -> None:
        self.by_name: dict[str, Hashable] = {name: _storage(value) for name, value in fakes.items()}
        self._holders = Counter(self.by_name.values())

    def add(self, segment: Segment, lowered: Lowered) -> None:
        held = [self.by_name[name] for name in segment.reads]
        for name, owner in zip(segment.makes, lowered.owners, strict=True):
            held.append(held[owner] if owner < len(held) else (name, "storage"))
            self.by_name[name] = held[-1]
            self._holders[held[-1]] += 1

    def is_alone(self, name: str) -> bool:
        """Return whether no other value shares the value's memory."""
        return self._holders[self.by_name[name]] == 1


def _another(value: Tensor) -> Tensor:
    held = torch.empty(-(-value.untyped_storage().nbytes() // value.itemsize), dtype=value.dtype, device=value.device)
    return held.as_strided(value.shape, value.stride(), value.storage_offset())


def _storage(value: Any) -> Hashable:
    return storage_key(value.untyped_storage()) if isinstance(value, Tensor) else id(value)
