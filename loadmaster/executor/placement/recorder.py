"""Recording what one training step does to memory, operator by operator: forward, backward and optimizer.

A dispatch mode sees every operator. Operators on lists are called for one tensor of each list after the other, as the
pager runs them. Views, and operators that touch only other devices or numbers (:data:`~operands.NUMBER_BYTES`), are not
operators of the step. Fake tensors are enough: nothing is asked of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.costs.calls import Call
from loadmaster.executor.placement.operands import (
    NUMBER_BYTES,
    asks_only,
    operands,
    tensors_in,
    writes_nothing,
)
from loadmaster.executor.placement.splitting import joined, parts_of
from loadmaster.executor.placement.storages import StorageTable
from loadmaster.executor.steps.places import NOWHERE, Place
from loadmaster.executor.torch_private.autograd import current_node, storage_key
from loadmaster.executor.torch_private.operators import TorchDispatchMode
from loadmaster.models.placement.problem import Role


@dataclass(eq=False)
class RecordedStorage:
    """A storage that the recorded step uses.

    Attributes:
        name, role: what it is, as far as is known by now.
        born: the operator that made it; None where it was there before.
        died: how many operators had run when its memory was freed; None where it lived on.
    """

    index: int
    size_bytes: int
    name: str
    role: Role = "activation"
    born: int | None = None
    died: int | None = None


@dataclass(frozen=True, eq=False)
class RecordedOperator:
    """An operator, and the storages that it reads and writes by their indices.

    Attributes:
        call: with what it was called; None where nobody asked for costs.
    """

    op: str
    reads: frozenset[int]
    writes: frozenset[int]
    place: Place
    call: Call | None

    @property
    def uses(self) -> frozenset[int]:
        """Storages that must be on the device while the operator runs."""
        return self.reads | self.writes


@dataclass
class Recording:
    """Operators and storages of one recorded step."""

    operators: list[RecordedOperator] = field(default_factory=list)
    storages: list[RecordedStorage] = field(default_factory=list)


class Notes:
    """Notes of the operators that ran, which make up a :class:`Recording`.

    Args:
        is_on_device: tells the tensors whose storages count.
        place: gives the place in the model that calls the present operator.
        with_calls: whether operators are recorded with their arguments.
    """

    def __init__(
        self,
        is_on_device: Callable[[Tensor], bool],
        place: Callable[[], Place] = lambda: NOWHERE,
        *,
        with_calls: bool = False,
    ) -> None:
        self.recording = Recording()
        self._is_on_device, self._place, self._with_calls = is_on_device, place, with_calls
        self._table = StorageTable[RecordedStorage](self._freed)

    def name(self, tensor: Tensor | None, name: str, role: Role) -> None:
        """Give a tensor's storage a name and a role; nothing happens where it is not memory of the device."""
        if tensor is None or tensor.layout != torch.strided:
            return
        # One that is known may be elsewhere by now.
        stored = self._table.get(tensor.untyped_storage())
        if stored is None and self._counts(tensor):
            stored = self._stored(tensor)
        if stored is not None:
            stored.name, stored.role = name, role

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> RecordedOperator | None:
        """Record an operator that ran; None of one that is not an operator of the step."""
        read, written = operands(func, args, kwargs)
        reads, writes = self._indices(read), self._indices(written)
        self._indices(tensors_in((*args, *kwargs.values())))  # what is given is not born
        born = self._births(func, result)
        if not born and writes_nothing(func) and _is_view(result, args, kwargs):
            return None
        if not (reads or writes or born):
            return None
        call = Call.of(func, args, kwargs, result) if self._with_calls else None
        found = RecordedOperator(str(func), reads - born, writes | born, self._place(), call)
        self.recording.operators.append(found)
        return found

    def index(self, tensor: Tensor) -> int | None:
        """Index of a tensor's storage; None where it does not count or is not known."""
        return self.number(tensor.untyped_storage())

    def number(self, storage: torch.UntypedStorage) -> int | None:
        """Index of a storage; None where it is not known."""
        found = self._table.get(storage)
        return None if found is None else found.index

    def _indices(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        return frozenset(self._stored(t).index for t in tensors if self._counts(t))

    def _counts(self, tensor: Tensor) -> bool:
        return (
            tensor.layout == torch.strided
            and self._is_on_device(tensor)
            and tensor.untyped_storage().nbytes() > NUMBER_BYTES
        )

    def _stored(self, tensor: Tensor, name: str = "input", role: Role = "input") -> RecordedStorage:
        storage = tensor.untyped_storage()
        found = self._table.get(storage)
        if found is None:
            found = RecordedStorage(len(self.recording.storages), storage.nbytes(), name, role)
            self.recording.storages.append(found)
            self._table.add(storage, found)
        return found

    def _freed(self, stored: RecordedStorage) -> None:
        stored.died = len(self.recording.operators)

    def _births(self, func: Any, result: object) -> frozenset[int]:
        """Record the result's storages that are new, and return their indices."""
        made = []
        for tensor in tensors_in(result):
            if self._counts(tensor) and self._table.get(tensor.untyped_storage()) is None:
                place = self._place().module
                op = str(func).removeprefix("aten.").removesuffix(".default")
                name = op if place is None else f"{place}: {op}"
                if current_node() is not None:
                    name += " in backward"
                stored = self._stored(tensor, name, "activation")
                stored.born = len(self.recording.operators)
                made.append(stored.index)
        return frozenset(made)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that notes the operators that run while it is on."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.notes = notes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator, or its parts, and note what it did."""
        kwargs = kwargs or {}
        if asks_only(func):
            return func(*args, **kwargs)
        parts = parts_of(func, args, kwargs)
        if parts:
            return joined([self._run(func, *part) for part in parts])
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        self.notes.note(func, args, kwargs, result)
        return result


def _is_view(result: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether all results are on storages of the arguments."""
    given = {
        storage_key(t.untyped_storage()) for t in tensors_in((*args, *kwargs.values())) if t.layout == torch.strided
    }
    made = [storage_key(t.untyped_storage()) for t in tensors_in(result) if t.layout == torch.strided]
    return bool(made) and all(storage in given for storage in made)
