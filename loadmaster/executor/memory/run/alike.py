"""Equal segments, of which one is lowered and compiled: the layers of a network.

They read values of the same shapes, types and strides, of which the same ones share memory, and do the same to them.
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

from loadmaster.executor.memory.run.repeats import described, described_tensors
from loadmaster.executor.memory.run.segments import Segment
from loadmaster.executor.torch_private.autograd import storage_key
from loadmaster.executor.torch_private.fake_tensors import detect_fake_mode


def kind_of(segment: Segment, given: Sequence[Any], storages: Storages) -> Hashable:
    """Key of a segment, the same for equal segments; one with constants of its own is equal to no other.

    Args:
        given: fakes of what it reads.
    """
    graph = segment.module.graph
    if graph.find_nodes(op="get_attr"):
        return id(segment)
    names = {node: f"%{place}" for place, node in enumerate(graph.nodes)}
    held = [storages.by_name[name] for name in segment.reads]
    shared = tuple(map(held.index, held))
    return described_tensors(given), shared, tuple(described(node, names.__getitem__) for node in graph.nodes)


@dataclass(frozen=True)
class Lowered:
    """A segment after all decompositions.

    Attributes:
        owners: for each result, the first of the inputs and results that has its storage: a place among both.
    """

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
    """Storages of a graph's values, which tell what values share memory.

    Args:
        fakes: the graph's inputs by name.

    Attributes:
        by_name: what stands for a value's storage; equal where values share one.
    """

    def __init__(self, fakes: Mapping[str, Any]) -> None:
        self.by_name: dict[str, Hashable] = {name: _storage(value) for name, value in fakes.items()}
        self._holders = Counter(self.by_name.values())

    def add(self, segment: Segment, lowered: Lowered) -> None:
        """Note the results of a segment."""
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
