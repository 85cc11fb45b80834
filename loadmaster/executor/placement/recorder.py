"""Which operators a training step runs, and which storages each of them reads and writes.

A block is a storage: views are no operators and no blocks of their own. Storages are told apart by identity, never by
address, which PyTorch uses again as soon as one dies. What an operator changes in place it reads and writes; what it
makes, and what it fills whole, it only writes: what was there before is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.module_tracker import ModuleTracker

from loadmaster.executor.costs import CostModel

aten = torch.ops.aten

# In place, and nothing of what was there is left where they write to all of a storage.
_FILLS = frozenset(
    {
        aten.zero_.default,
        aten.fill_.Scalar,
        aten.fill_.Tensor,
        aten.copy_.default,
        aten.uniform_.default,
        aten.normal_.default,
        aten.bernoulli_.float,
        aten.bernoulli_.Tensor,
    }
)


# They only take memory: a block counts from when it is written.
_EMPTY = frozenset({aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided})


@dataclass
class Seen:
    """A storage.

    Attributes:
        alive: holds its identity, so that no other storage gets it while this is recorded.
        made_by: what made it, in words; None of what was there before.
    """

    size_bytes: int
    alive: StorageWeakRef
    made_by: str | None


@dataclass(frozen=True)
class Ran:
    """An operator: what it is, what it costs, and the storages that it reads and writes, by number."""

    op: str
    time_us: float
    workspace_bytes: int
    reads: frozenset[int]
    writes: frozenset[int]
    module: str | None


@dataclass
class Recorder(TorchDispatchMode):
    """Writes down what runs under it while :attr:`on`.

    Attributes:
        costs: of operators, from tensors with or without values.
        operators, storages: what ran, and what was used.
    """

    costs: CostModel
    on: bool = False
    operators: list[Ran] = field(default_factory=list)
    storages: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers: dict[int, int] = {}
        self.modules = ModuleTracker()

    def number(self, tensor: Tensor, made_by: str | None = None) -> int:
        """The storage of a tensor."""
        storage = tensor.untyped_storage()
        alive = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        found = self._numbers.get(alive.cdata)
        if found is None:
            found = self._numbers[alive.cdata] = len(self.storages)
            self.storages.append(Seen(storage.nbytes(), alive, made_by))
        return found

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        if self.on and isinstance(func, torch._ops.OpOverload):
            self._write_down(func, args, kwargs, out)
        return out

    def _write_down(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        reads, writes = set(), set()
        used = set()
        for argument, value in _arguments(func, args, kwargs):
            changes = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(value):
                number = self.number(tensor)
                used.add(number)
                if changes:
                    writes.add(number)
                if not (changes and func in _FILLS and _is_whole(tensor)):
                    reads.add(number)
        module = self._module()
        made_by = ", ".join(part for part in (module, func.overloadpacket.__name__) if part)
        made = {self.number(tensor, made_by) for tensor in _tensors(out)} - used
        if (not made and not writes) or func.overloadpacket in _EMPTY:
            return  # a view, nothing that is kept, or nothing that runs
        time_us, workspace_bytes = self._costs(func, args, kwargs, out)
        self.operators.append(
            Ran(
                str(func),
                time_us,
                workspace_bytes,
                frozenset(reads - made),
                frozenset(writes | made),
                module,
            )
        )

    def _module(self) -> str | None:
        """The innermost module that runs, by its path in the model, which is ``model`` in the step."""
        inside = [name.partition(".model.")[2] for name in self.modules.parents]
        return max(inside, key=len, default="") or None

    def _costs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[float, int]:
        graph = fx.Graph()

        def node_of(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            node = graph.placeholder("tensor")
            node.meta["val"] = value
            return node

        node = graph.call_function(func, tree_map(node_of, args), tree_map(node_of, kwargs))
        node.meta["val"] = out
        return self.costs.node_us(node), max(self.costs.workspace_bytes(node), 0)


def _arguments(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The schema's arguments with what was given for them."""
    schema = func._schema.arguments
    found = list(zip(schema, args, strict=False))
    found += [(argument, kwargs[argument.name]) for argument in schema[len(args) :] if argument.name in kwargs]
    return found


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _is_whole(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
