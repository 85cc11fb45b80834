"""Tensors that an operator reads and tensors that it writes, from its schema.

A mutable argument is written, and read too, unless the operator overwrites all of its storage: ``copy_``, ``zero_`` and
their like, and what is named as ``out``. A result on a storage of its own is written whole. An operator that writes
nothing and whose results are on storages of its arguments is a view: no kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loadmaster.executor.steps.layouts import fills
from loadmaster.executor.torch_private.operators import schema_if_any

aten = torch.ops.aten

# A storage of so few bytes holds a number: a loss, an optimizer's count of steps. Numbers take hardly any memory, and
# whether they are on the device or on the host differs from one optimizer to the next.
NUMBER_BYTES = 16

# In-place operators that overwrite their argument without reading it.
_OVERWRITING = frozenset(
    {
        "bernoulli_",
        "cauchy_",
        "copy_",
        "exponential_",
        "fill_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "zero_",
        "_foreach_copy_",
        "_foreach_zero_",
    }
)

# Arguments that are written though the schema does not say so: running statistics.
_UNSTATED: Mapping[str, tuple[int, ...]] = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4)
)


# Operators that ask for a tensor's metadata, not for its values.
_METADATA = ("dim", "is_contiguous", "is_non_overlapping_and_dense", "is_same_size", "is_strides_like_format", "layout")
_METADATA_PREFIXES = ("sym_", "size", "stride")


# Views though the schema does not say so.
_UNSTATED_VIEWS = ("_unsafe_view",)


class Operands(NamedTuple):
    """The tensors that an operator reads and those that it writes; one that is read and written is in both."""

    reads: list[Tensor]
    writes: list[Tensor]


@dataclass(frozen=True)
class _Mutable:
    """Properties of an operator by its schema: arguments that it writes, by position and name, and those of ``out``."""

    positions: frozenset[int]
    names: frozenset[str]
    out: frozenset[str]
    overwrites: bool
    shape_only: bool = False
    asks_only: bool = False
    is_view: bool = False

    def __bool__(self) -> bool:
        return bool(self.positions or self.names)


@cache
def _mutable(func: Any) -> _Mutable:
    schema = schema_if_any(func)
    if schema is None:
        return _Mutable(frozenset(), frozenset(), frozenset(), False)
    written = [
        (place, argument)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    name = schema.name.rpartition("::")[2]
    return _Mutable(
        frozenset(place for place, _ in written) | frozenset(_UNSTATED.get(name, ())),
        frozenset(argument.name for _, argument in written),
        frozenset(argument.name for _, argument in written if argument.is_out),
        name in _OVERWRITING,
        # New tensors in the shape of another one.
        not written and (name.startswith(("empty", "new_")) or name.endswith("_like")),
        func.namespace == "prim" or name in _METADATA or name.startswith(_METADATA_PREFIXES),
        name in _UNSTATED_VIEWS
        or (not written and bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)),
    )


def tensors_in(value: object) -> list[Tensor]:
    """Tensors in an argument or a result: alone, or in lists."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, (list, tuple)):
        for one in value:
            if isinstance(one, Tensor):
                found.append(one)
            elif isinstance(one, (list, tuple)):
                found += tensors_in(one)
    return found


def writes_nothing(func: Any) -> bool:
    """Return whether an operator writes none of its arguments, by its schema."""
    return not _mutable(func)


def asks_only(func: Any) -> bool:
    """Return whether an operator only asks for shape, device and the like."""
    return _mutable(func).asks_only


def reads_all(func: Any) -> bool:
    """Return whether an operator reads every tensor that it is given, and writes none."""
    mutable = _mutable(func)
    return not (mutable.positions or mutable.names or mutable.shape_only)


def is_view(func: Any) -> bool:
    """Return whether an operator is a view: its results are on the storage of an argument, and nothing is written."""
    return _mutable(func).is_view


def storage_bytes(tensor: Tensor) -> int:
    """Size of a tensor's storage, bytes."""
    return tensor.untyped_storage().nbytes()


def operands(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], size_of: Callable[[Tensor], int] = storage_bytes
) -> Operands:
    """Collect the tensors that an operator reads and writes among its arguments.

    Args:
        size_of: bytes of a tensor's storage, for callers that keep storages elsewhere.
    """
    mutable = _mutable(func)
    found = Operands([], [])
    if mutable.shape_only:
        return found
    for place, value in enumerate(args):
        written = place in mutable.positions
        for tensor in tensors_in(value):
            _add(found, tensor, written, size_of if mutable.overwrites else None)
    for name, value in kwargs.items():
        written = name in mutable.names
        for tensor in tensors_in(value):
            _add(found, tensor, written, size_of if mutable.overwrites or name in mutable.out else None)
    return found


def _add(found: Operands, tensor: Tensor, written: bool, size_of: Callable[[Tensor], int] | None) -> None:
    """Add a tensor to the operands; ``size_of`` is given where the operator overwrites it without reading."""
    if written:
        found.writes.append(tensor)
        if size_of is not None and fills_storage(tensor, size_of(tensor)):
            return
    found.reads.append(tensor)


def fills_storage(tensor: Tensor, size_bytes: int) -> bool:
    """Return whether writing the tensor overwrites every byte of its storage, which is of that size."""
    if tensor.numel() * tensor.element_size() != size_bytes:
        return False
    return tensor.is_contiguous() or fills(tensor.shape, tensor.stride())


def allocates_only(func: Any) -> bool:
    """Return whether an operator runs no kernel: ``empty`` and its like."""
    return str(func).removeprefix("aten.").startswith(("empty", "new_empty"))
