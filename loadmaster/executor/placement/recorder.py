"""Recording what one training step does to memory, operator by operator: forward, backward and optimizer.

A dispatch mode sees every operator. Operators on lists are called for one tensor of each list after the other, as the
pager runs them. Views, and operators that touch only other devices or numbers (:data:`~operands.NUMBER_BYTES`), are not
operators of the step. Fake tensors are enough: nothing is asked of their values. Storages are known for as long as they
live, not by address: an address is used again once a storage dies.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.costs.calls import Call
from loadmaster.executor.placement.operands import NUMBER_BYTES, OneByOne, operands, tensors_in, writes_nothing
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.places import NOWHERE, Place
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.torch_private.autograd import current_node, storage_key
from loadmaster.models.placement.problem import Role

_Record = TypeVar("_Record")


class StorageTable(Generic[_Record]):
    """A record for each storage that is known, for as long as it lives; ``died`` is called with it then. A storage has
    one Python object as long as anything holds it, be it autograd alone; so a weak reference to that object ends when
    the memory is freed, and not before."""

    def __init__(self, died: Callable[[_Record], None]) -> None:
        self._records: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Record]] = {}
        self._died = died

    def get(self, storage: torch.UntypedStorage) -> _Record | None:
        """Return the record of a storage; None if the storage is not known."""
        found = self._records.get(storage_key(storage))
        return None if found is None else found[1]

    def add(self, storage: torch.UntypedStorage, record: _Record) -> _Record:
        """Keep a record of a storage until it dies."""
        key = storage_key(storage)

        def freed(_: object) -> None:
            found = self._records.pop(key, None)
            if found is not None:
                self._died(found[1])

        self._records[key] = (weakref.ref(storage, freed), record)
        return record

    def living(self) -> Iterator[tuple[torch.UntypedStorage, _Record]]:
        """Iterate over the known storages and their records, in the order in which they were added."""
        for reference, record in list(self._records.values()):
            storage = reference()
            if storage is not None:
                yield storage, record

    def clear(self) -> None:
        """Forget all storages, without calling ``died``."""
        self._records.clear()


@dataclass(eq=False)
class RecordedStorage:
    """A storage that the recorded step uses. ``born`` is the operator that made it, None if it was there before;
    ``died`` is the number of operators that had run when its memory was freed, None if it lived on."""

    index: int
    size_bytes: int
    name: str
    role: Role = "activation"
    born: int | None = None
    died: int | None = None


@dataclass(frozen=True, eq=False)
class RecordedOperator:
    """An operator, the storages that it reads and writes by index, and its call; None where nobody asked for costs."""

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
    """Notes of the operators that ran, which make up a :class:`Recording`. Tensors count that ``is_on_device`` accepts;
    ``place`` gives the present place in the model; ``with_calls`` keeps the arguments of operators."""

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


class Recorder(OneByOne):  # type: ignore[no-untyped-call]
    """Dispatch mode that notes the operators that run while it is on."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the operator, and note what it did."""
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


def passes(step: Step, batch: Batch, optimizer: torch.optim.Optimizer | None, micro_batches: int = 1) -> None:
    """Drop the old gradients, then run forward and backward for each micro-batch. Raises InputError if there is no
    scalar loss, or nothing that needs a gradient."""
    if optimizer is None:
        step.zero_grad()
    else:
        optimizer.zero_grad()
    for _ in range(micro_batches):
        loss = step(*batch.args, **batch.kwargs)
        if loss.numel() != 1:
            remedy = "Give a loss function, or a model that returns its loss."
            raise InputError("loss", tuple(loss.shape), "is no scalar", remedy)
        if not loss.requires_grad:
            raise InputError("model", type(step.model).__name__, "has no gradient", "Let a parameter require one.")
        loss.backward()
        del loss
    torch.clear_autocast_cache()  # as at the end of the caller's autocast


def update(optimizer: torch.optim.Optimizer | None) -> None:
    """Run the optimizer's step, one parameter after the other."""
    if optimizer is not None:
        with one_by_one(optimizer):
            optimizer.step()


@contextlib.contextmanager
def one_by_one(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the optimizer update one parameter after the other; a fused one's operator is split (:mod:`.operands`)."""
    before = [(group, group["foreach"]) for group in optimizer.param_groups if "foreach" in group]
    for group, _ in before:
        if not group.get("fused"):
            group["foreach"] = False
    try:
        yield
    finally:
        for group, foreach in before:
            group["foreach"] = foreach


def name_resident(notes: Notes, model: nn.Module, batch: Batch) -> None:
    """Name the storages that are there before the step: parameters, buffers and the batch."""
    for name, value in batch.named_leaves():
        for tensor in tensors(value):
            notes.name(tensor, f"input {name}", "input")
    for name, buffer in model.named_buffers():
        notes.name(buffer, name, "state")
    for name, parameter in model.named_parameters():
        notes.name(parameter, name, "parameter")


def name_gradients(notes: Notes, model: nn.Module) -> None:
    """Name the storages that are gradients."""
    for name, parameter in model.named_parameters():
        notes.name(parameter.grad, f"gradient of {name}", "gradient")


def name_state(notes: Notes, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Name the storages of the optimizer's state."""
    if optimizer is None:
        return
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and parameter in names:
                notes.name(value, f"{key} of {names[parameter]}", "state")
