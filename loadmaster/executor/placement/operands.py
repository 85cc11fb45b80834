"""Tensors that an operator reads and tensors that it writes, from its schema.

A mutable argument is written, and read too, unless the operator overwrites all of its storage: ``copy_``, ``zero_`` and
their like, and ``out``. A result on a storage of its own is written whole. An operator that writes nothing and whose
results are on storages of its arguments is a view: no kernel runs.

Optimizers update all parameters by one operator (``_foreach_addcdiv_``, ``_fused_adamw_``), whose working set is the
state of the whole model. It works element by element, so it can be split and run for one parameter after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loadmaster.executor.steps.layouts import fills
from loadmaster.executor.torch_private.operators import OpOverload, TorchDispatchMode, schema_if_any, schema_of

aten = torch.ops.aten

# A storage of so few bytes holds a number: a loss, an optimizer's count of steps. Numbers take hardly any memory, and
# whether they are on the device or on the host differs from one optimizer to the next.
NUMBER_BYTES = 16

# In-place operators that overwrite their argument without reading it.
_OVERWRITING = frozenset(
    {
        *("copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"),
        *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"),
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
_ONE_BY_ONE = ("_foreach_", "_fused_", "_amp_foreach_")
# These compute one value of their lists, not one for each tensor.
_WHOLE = ("_fused_dropout", "_fused_moving_avg_obs_fq_helper", "_fused_sdp_choice", "_fused_rms_norm")


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
    """Collect the tensors that an operator reads and writes; ``size_of`` is for callers that move storages away."""
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


@cache
def _is_over_lists(func: Any) -> bool:
    if not isinstance(func, OpOverload):
        return False
    name = schema_of(func).name.rpartition("::")[2]
    if not name.startswith(_ONE_BY_ONE) or name.startswith(_WHOLE):
        return False
    arguments = schema_of(func).arguments
    return bool(arguments) and str(arguments[0].type) == "List[Tensor]"


def parts_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of the calls that the operator is split into; empty where it is not split."""
    if not args or not _is_over_lists(func):
        return []
    count = len(args[0])
    if count < 2:
        return []

    def part(value: Any, n: int) -> Any:
        # Lists as long as the first one have an entry for each parameter; others (betas) are of all.
        return [value[n]] if isinstance(value, (list, tuple)) and len(value) == count else value

    return [
        (tuple(part(value, n) for value in args), {name: part(value, n) for name, value in kwargs.items()})
        for n in range(count)
    ]


def joined(results: Sequence[Any]) -> Any:
    """Join the results of an operator's parts: lists one after the other, None where the parts return None."""
    if all(result is None for result in results):
        return None
    if all(isinstance(result, tuple) for result in results):  # several lists
        return tuple(_in_a_row(lists) for lists in zip(*results, strict=True))
    return _in_a_row(results)


def _in_a_row(lists: Sequence[Any]) -> list[Any]:
    return [one for many in lists for one in (many if isinstance(many, (list, tuple)) else (many,))]


class OneByOne(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that runs operators on lists for one tensor of each list after the other."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator, or its parts, by :meth:`run`; what only asks for shapes and the like is not seen there."""
        kwargs = kwargs or {}
        if asks_only(func):
            return func(*args, **kwargs)
        parts = parts_of(func, args, kwargs)
        return joined([self.run(func, *part) for part in parts]) if parts else self.run(func, args, kwargs)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator, or a part of one."""
        raise NotImplementedError
