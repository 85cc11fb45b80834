"""Foresight of what an operator will allocate for its results: before it runs, it is tried on tensors without memory.

It is tried once for each signature; then what it really allocated is remembered.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.placement.operands import tensors_in
from loadmaster.executor.torch_private.autograd import storage_key
from loadmaster.executor.torch_private.fake_tensors import FakeTensorMode
from loadmaster.executor.torch_private.operators import pytree

Signature = Hashable
_HASHABLE = (int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Foresight:
    """Bytes of the new storages that a call makes, by its signature."""

    def __init__(self) -> None:
        self._known: dict[Signature, int] = {}
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    def signature(
        self, key: Hashable, given: Sequence[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Signature:
        """Signature of a call, equal for calls that allocate the same.

        Args:
            key: the operator, and shape and type of each tensor.
            given: the tensors.
        """
        others = _others(args)
        if kwargs:
            others += [*kwargs, *_others(tuple(kwargs.values()))]
        return (key, tuple([tensor.stride() for tensor in given]), tuple(others))

    def bytes_of(self, signature: Signature, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Bytes that the call will allocate; 0 where that depends on values."""
        found = self._known.get(signature)
        if found is None:
            found = self._known[signature] = self._tried(func, args, kwargs)
        return found

    def learn(self, signature: Signature, size_bytes: int) -> None:
        """Remember the bytes that such a call did allocate."""
        self._known[signature] = size_bytes

    def _tried(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        given: set[int] = set()
        if any(isinstance(leaf, torch.UntypedStorage) for leaf in args):
            return 0

        def fake(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            made = torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device=leaf.device)
            given.add(storage_key(made.untyped_storage()))
            return made

        try:
            with self._mode:
                args, kwargs = pytree.tree_map(fake, (tuple(args), dict(kwargs)))
                result = func(*args, **kwargs)
            made = {storage_key(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors_in(result)}
        except Exception:  # noqa: BLE001 - whatever an operator raises without values, the call itself will say
            return 0
        return sum(size for key, size in made.items() if key not in given)


def _others(values: Sequence[Any]) -> list[Hashable]:
    """Arguments that are not tensors, with the places of tensors. The value of a float decides no size."""
    found: list[Hashable] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(Tensor)
        elif isinstance(value, (list, tuple)):
            found += ["[", *_others(value), "]"]
        elif isinstance(value, float):
            found.append(float)
        else:
            found.append(value if isinstance(value, _HASHABLE) else repr(value))
    return found
