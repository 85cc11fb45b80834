"""Share of this rank along an axis of unequal shares, as local tensor of a ``DTensor``, which knows equal ones only.

It knows its offset in the whole, and tells it to ``torch.distributed.checkpoint``. Elementwise operators and norms run
on it. Operators that need the whole are refused: ``DTensor`` would gather it as if shares were equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.operators import make_wrapper_subclass, schema_of

aten = torch.ops.aten
_LIST_OPERATORS = ("_foreach_", "_fused_", "_amp_foreach_")
_NORMS = (aten.linalg_vector_norm.default, aten._foreach_norm.Scalar)
_MAKE_ANOTHER = frozenset(
    {
        aten.detach.default,
        aten.alias.default,
        aten.clone.default,
        aten._to_copy.default,
        aten.copy_.default,
        aten.fill_.Scalar,
        aten.zero_.default,
        aten.empty_like.default,
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
    }
)


class UnevenShare(Tensor):
    """Share of a tensor, with its place in the whole.

    Args:
        values: of this rank.
        offsets: of the first of them in the whole.
        whole: the shape of the whole.
    """

    own: Tensor
    offsets: torch.Size
    whole: torch.Size

    @staticmethod
    def __new__(cls, values: Tensor, offsets: Sequence[int], whole: Sequence[int]) -> UnevenShare:
        shape, stride = values.shape, values.stride()
        found: UnevenShare = make_wrapper_subclass(cls, shape, stride, dtype=values.dtype, device=values.device)
        found.own, found.offsets, found.whole = values, torch.Size(offsets), torch.Size(whole)
        return found

    def like(self, values: Tensor) -> UnevenShare:
        """Share of other values in the same place of the whole."""
        return UnevenShare(values, self.offsets, self.whole)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"UnevenShare({self.own}, offsets={list(self.offsets)}, whole={list(self.whole)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator on this rank's values.

        Raises:
            InputError: it needs more than those.
        """
        if not _is_local(func, args):
            raise _needs_the_whole(func)
        made = func(*map(_values, args), **{name: _values(value) for name, value in (kwargs or {}).items()})
        if func in _NORMS or made is None:
            return made
        if schema_of(func).is_mutable and not isinstance(made, (list, tuple)):
            return args[0]
        first = next(value for value in args if _holds_share(value))
        pairs = zip(first, made, strict=True) if isinstance(made, (list, tuple)) else [(first, made)]
        found = []
        for one, new in pairs:
            if isinstance(one, UnevenShare) and new.shape != one.shape:
                raise _needs_the_whole(func)
            found.append(one.like(new) if isinstance(one, UnevenShare) else new)
        return found if isinstance(made, (list, tuple)) else found[0]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(self.offsets, self.shape)]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        (chunk,) = self.__create_chunk_list__()
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.own), self.whole)
        return [WriteItem(MetadataIndex(name, self.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __get_tensor_shard__(self, _: object) -> Tensor:
        return self.own


def _is_local(func: Any, args: Sequence[Any]) -> bool:
    """Return whether an operator needs this rank's elements alone: it is elementwise, or a norm of all elements."""
    name = func.name().partition("::")[2]
    if func == aten.linalg_vector_norm.default:
        return not any(args[2:3])
    if func == aten.view.default:
        return tuple(args[1]) == tuple(args[0].shape)
    return torch.Tag.pointwise in func.tags or name.startswith(_LIST_OPERATORS) or func in _MAKE_ANOTHER


def _needs_the_whole(func: Any) -> InputError:
    remedy = "Take step.state_dict() for whole values, and an optimizer that updates each element by itself."
    return InputError("share", func.name(), "needs the whole tensor, of which ranks have unequal shares", remedy)


def _values(given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [_values(one) for one in given]
    return given.own if isinstance(given, UnevenShare) else given


def _holds_share(given: object) -> bool:
    if isinstance(given, (list, tuple)):
        return any(isinstance(one, UnevenShare) for one in given)
    return isinstance(given, UnevenShare)
