"""Keys and payloads as users give them (numpy arrays, lists, tensors), and as the cores take them (uint64)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.executor.index.core_protocol import Words

Integers = NDArray[np.int64] | NDArray[np.uint64]
Given = Any  # a numpy array, a sequence of integers, or a tensor of PyTorch on the CPU

_SIGN = 1 << 63


@dataclass(frozen=True)
class Column:
    """One side of an index, its keys or its payloads: signed or not. The cores order keys as unsigned. With the sign
    bit flipped, signed keys have the order of integers there."""

    field: str
    signed: bool

    @classmethod
    def of(cls, field: str, values: Given) -> Column:
        """Make the column of values: an array's is signed as its dtype is, a list's if its integers fit. InputError:
        they are not one-dimensional integers."""
        if _is_list(values):
            return cls(field, not any(isinstance(v, int | np.integer) and v >= _SIGN for v in values))
        return cls(field, _array(field, values).dtype.kind == "i")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the arrays that users see."""
        return np.dtype(np.int64 if self.signed else np.uint64)

    @property
    def _flip(self) -> int:
        return _SIGN if self.signed and self.field == "keys" else 0

    def take(self, values: Given) -> Words:
        """Convert values to the cores' words; InputError: not integers in one dimension, or some do not fit."""
        array = self._from_list(values) if _is_list(values) else self._from_array(_array(self.field, values))
        words: Words = np.require(array, requirements=("C", "A")).view(np.uint64)
        return words ^ np.uint64(self._flip) if self._flip else words

    def give(self, words: Words) -> Integers:
        """Convert words to integers as users see them."""
        return (words ^ np.uint64(self._flip) if self._flip else words).view(self.dtype)

    def take_one(self, value: int) -> int:
        """One integer as the cores take it; InputError: it is not an integer, or does not fit."""
        self._expect_fits(self.field, value)
        return (int(value) & ((1 << 64) - 1)) ^ self._flip

    def give_one(self, word: int) -> int:
        """One integer as users see it."""
        word ^= self._flip
        return word - (1 << 64) if self.signed and word >= _SIGN else word

    def _expect_fits(self, field: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(field, value, "is no integer", f"Give integers of {self.dtype}.")
        if not np.iinfo(self.dtype).min <= value <= np.iinfo(self.dtype).max:
            other = "uint64" if self.signed else "int64"
            remedy = f"Make the index from {other} {self.field}, or hash the values to 64 bits."
            raise InputError(field, int(value), f"does not fit: {self.field} of this index are {self.dtype}", remedy)

    def _from_list(self, values: Sequence[int]) -> Integers:
        array = np.array(values, dtype=None if len(values) else self.dtype)
        if array.dtype.kind in "iu" and array.ndim == 1:
            return self._from_array(array)
        for n, value in enumerate(values):
            self._expect_fits(f"{self.field}[{n}]", value)
        return np.array(values, dtype=self.dtype)

    def _from_array(self, array: NDArray[Any]) -> Integers:
        if array.dtype.kind == ("i" if self.signed else "u") or array.size == 0:
            return array.astype(self.dtype, copy=False)
        n = int(array.argmax() if self.signed else array.argmin())
        self._expect_fits(f"{self.field}[{n}]", array[n])
        return array.astype(self.dtype)


def as_given(given: Given, array: NDArray[Any]) -> Any:
    """Return a result as a tensor to whoever gave tensors, and as it is to all others."""
    if not _is_tensor(given):
        return array
    # PyTorch knows few operators on uint64.
    return sys.modules["torch"].from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array)


def _is_tensor(values: object) -> bool:
    # Whoever has a tensor has imported torch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def _is_list(values: object) -> bool:
    return isinstance(values, list | tuple | range)


def _array(field: str, values: Given) -> NDArray[Any]:
    if _is_tensor(values):
        if values.device.type != "cpu":
            raise InputError(field, str(values.device), "are not on the CPU", f"Give {field}.cpu().")
        values = values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise InputError(field, str(array.dtype), "are no integers", "Give an array of int64 or uint64.")
    if array.ndim != 1:
        raise InputError(field, array.shape, "have no single dimension", "Give a flat array, as from .reshape(-1).")
    return array
