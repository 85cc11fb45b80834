"""The class ``Index``: 64-bit keys to 64-bit payloads, in batches, for any Python program."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeVar, overload

import numpy as np

from loadmaster.errors import InputError
from loadmaster.executor.index import files, native
from loadmaster.executor.index.core_protocol import GREATEST_KEY, Core, Facts, OverLimitError, Words
from loadmaster.executor.index.in_numpy import NumpyCore
from loadmaster.executor.index.native import NativeCore
from loadmaster.executor.index.words import Column, Given, Integers, as_given
from loadmaster.models.index.configuration import Configuration, FragmentedLog, SortedArray

_Default = TypeVar("_Default")

_CONFIGURATION = FragmentedLog()
_FIRST_PAGE_KEYS, _PAGE_KEYS = 1024, 65536


@dataclass(frozen=True)
class _Held:
    """Core and configuration, which readers take at once and a writer replaces at once.

    Attributes:
        earlier: facts of the core that this one took the place of.
    """

    core: Core
    configuration: Configuration
    earlier: Facts | None = None

    def facts(self) -> Facts:
        facts = self.core.facts()
        return facts if self.earlier is None else facts.after(self.earlier)


class Index:
    """An updatable index from 64-bit keys to 64-bit payloads.

    Any number of threads may read while one writes; a second writer waits. Readers do not see a batch as a single step:
    they see each key as it was before or after. A call that raises leaves the index as it was.

    Where this says array: a numpy array of integers, a list, or a tensor of PyTorch on the CPU. Tensors are answered
    with tensors (payloads as int64), all else with numpy arrays.

    Args:
        keys: array, each once. Signed ones have the order of signed integers.
        payloads: array, one for each key.
        configuration: what it is made of.
        limit_bytes: of its memory; None: no limit.
        presorted: keys are ascending, which saves sorting them.

    Raises:
        InputError: keys or payloads are not integers of 64 bits, their numbers differ, a key comes twice, keys are not
            sorted though ``presorted`` says so, or the limit is too low, with the least that would do.
        MemoryError: there is not enough.
    """

    def __init__(
        self,
        keys: Given,
        payloads: Given,
        configuration: Configuration = _CONFIGURATION,
        *,
        limit_bytes: int | None = None,
        presorted: bool = False,
    ) -> None:
        self._key_column, self._payload_column = Column.of("keys", keys), Column.of("payloads", payloads)
        words, values = self._pairs(keys, payloads)
        if not presorted:
            order = np.argsort(words)
            words, values = words[order], values[order]
        self._expect_ascending(words)
        self._start(words, values, configuration, limit_bytes)

    def _start(self, keys: Words, payloads: Words, configuration: Configuration, limit_bytes: int | None) -> None:
        if limit_bytes is not None and limit_bytes < 1:
            raise InputError("limit_bytes", limit_bytes, "is no limit", "Give a number above 0, or None.")
        self._limit_bytes = limit_bytes
        self._writing = threading.Lock()
        self._held = _Held(self._made(keys, payloads, configuration), configuration)

    @property
    def _core(self) -> Core:
        return self._held.core

    @property
    def configuration(self) -> Configuration:
        """Configuration of the index; after ``reconfigure``, that of new leaves."""
        return self._held.configuration

    @property
    def size_bytes(self) -> int:
        """Bytes of its memory, keys and payloads included."""
        return self._held.facts().size_bytes

    def facts(self) -> Facts:
        """Size, structure and counters of the index."""
        return self._held.facts()

    def __len__(self) -> int:
        return self._held.facts().keys

    def __repr__(self) -> str:
        facts = self.facts()
        structure = self.configuration.structure
        return f"<Index: {facts.keys} keys, {structure}, {facts.size_bytes} bytes, {facts.implementation}>"

    def lookup(self, keys: Given) -> tuple[Any, Any]:
        """Payloads, 0 where there is no such key, and which keys were found, as booleans. InputError: keys do not fit
        this index."""
        payloads, found = self._core.lookup(self._key_column.take(keys))
        return as_given(keys, self._payload_column.give(payloads)), as_given(keys, found)

    @overload
    def get(self, key: int) -> int | None: ...
    @overload
    def get(self, key: int, default: _Default) -> int | _Default: ...
    def get(self, key: int, default: object = None) -> object:
        """The payload of one key. InputError: the key does not fit this index."""
        word = self._core.find(self._key_column.take_one(key))
        return default if word is None else self._payload_column.give_one(word)

    def __getitem__(self, key: int) -> int:
        word = self._core.find(self._key_column.take_one(key))
        if word is None:
            raise KeyError(key)
        return self._payload_column.give_one(word)

    def __contains__(self, key: int) -> bool:
        return self._core.find(self._key_column.take_one(key)) is not None

    def insert(self, keys: Given, payloads: Given) -> Any:
        """Add the keys that are not there yet; return which these were. Of a key that comes twice, the first counts.
        InputError: keys or payloads do not fit this index, their numbers differ, the limit is reached, or it is a
        sorted array. MemoryError: there is not enough."""
        return self._write(keys, payloads, upsert=False)

    def upsert(self, keys: Given, payloads: Given) -> Any:
        """Add keys, or replace the payloads of those there; return which were new. The last of a key counts.
        InputError, MemoryError: as ``insert``."""
        return self._write(keys, payloads, upsert=True)

    def delete(self, keys: Given) -> Any:
        """Take keys out; return which were there. InputError: keys do not fit this index, or it is a sorted array."""
        words = self._key_column.take(keys)
        with self._writing:
            self._expect_writable()
            return as_given(keys, self._core.delete(words))

    def range(self, first: int, last: int, limit: int | None = None) -> tuple[Integers, Integers]:
        """Keys and payloads with first <= key <= last, ascending, as numpy arrays; ``limit`` of them at most.
        InputError: a bound does not fit this index, the limit is negative, or it is a hash table."""
        if limit is not None and limit < 0:
            raise InputError("limit", limit, "is no number of keys", "Give 0 or more, or None.")
        core = self._ordered("range")
        begin, end = self._key_column.take_one(first), self._key_column.take_one(last)
        pages = list(_pages(core, begin, end, limit))
        keys, payloads = (np.concatenate(parts) for parts in zip(*pages, strict=True))
        return self._key_column.give(keys), self._payload_column.give(payloads)

    def min(self) -> int:
        """The least key. InputError: there are none, or it is a hash table."""
        return self._key_column.give_one(_least(self._ordered("min")))

    def max(self) -> int:
        """The greatest key. InputError: there are none, or it is a hash table."""
        core = self._ordered("max")
        # The cores go upwards only: halve what may be above the greatest key known.
        known, end = _least(core), GREATEST_KEY
        while known < end:
            middle = known + (end - known + 1) // 2
            keys, _ = core.range(middle, end, 1)
            if len(keys):
                known = int(keys[0])
            else:
                end = middle - 1
        return self._key_column.give_one(known)

    def items(self) -> Iterator[tuple[int, int]]:
        """Keys with payloads, ascending. What is written meanwhile may be seen or not."""
        held = self._held
        if held.configuration.ordered:
            pages = _pages(held.core, 0, GREATEST_KEY, None)
        else:
            with self._writing:
                pages = iter([self._core.dump()])
        for keys, payloads in pages:
            yield from zip(
                self._key_column.give(keys).tolist(), self._payload_column.give(payloads).tolist(), strict=True
            )

    def __iter__(self) -> Iterator[int]:
        return (key for key, _ in self.items())

    def reconfigure(self, configuration: Configuration, leaves: int | None = None) -> int:
        """Change to another configuration; return how many leaves are still as before.

        Between gapped arrays and fragmented logs it goes leaf by leaf: up to ``leaves`` now (None: all), and new ones
        from now on. Call it again for the rest. To or from a sorted array or a hash table, the index is made again at
        once, next to the old one, which serves readers until then.

        Raises:
            InputError: the limit is too low, or ``leaves`` is negative.
            MemoryError: there is not enough.
        """
        if leaves is not None and leaves < 0:
            raise InputError("leaves", leaves, "is no number of leaves", "Give 0 or more, or None.")
        with self._writing:
            core, before = self._core, self.configuration
            try:
                left = core.reconfigure(configuration, np.iinfo(np.int64).max if leaves is None else leaves)
            except (OverLimitError, MemoryError) as error:
                core.reconfigure(before, 0)  # leaves that were changed serve as well under it
                if isinstance(error, MemoryError):
                    raise
                raise self._over_limit("changing its leaves") from None
            if left is None:
                made = self._made(*core.dump(), configuration)
                left, self._held = 0, _Held(made, configuration, self._held.facts())
            else:
                self._held = replace(self._held, configuration=configuration)
        return left

    def save(self, path: str | PathLike[str]) -> None:
        """Write the index to a file, whole or not at all. Writers wait meanwhile. InputError: the path cannot be
        written."""
        with self._writing:
            pairs = self._core.dump()
            saved = files.Saved(
                self.configuration, self._limit_bytes, self._key_column.signed, self._payload_column.signed, *pairs
            )
        files.write(path, saved)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Index:
        """Read what ``save`` wrote, with its configuration and its limit. InputError: the file cannot be read, is not a
        saved index, of another version, truncated or corrupted. MemoryError: there is not enough."""
        saved = files.read(path)
        made = cls.__new__(cls)
        made._key_column = Column("keys", saved.signed_keys)
        made._payload_column = Column("payloads", saved.signed_payloads)
        made._start(saved.keys, saved.payloads, saved.configuration, saved.limit_bytes)
        return made

    def _made(self, keys: Words, payloads: Words, configuration: Configuration) -> Core:
        functions, limit_bytes = native.library(), self._limit_bytes
        try:
            if functions is None:
                return NumpyCore(configuration, keys, payloads, limit_bytes)
            return NativeCore(functions, configuration, keys, payloads, limit_bytes)
        except OverLimitError as error:
            remedy = f"Give at least {error.needed_bytes}."
            if not isinstance(configuration, SortedArray):
                remedy = f"{remedy[:-1]}, or take a SortedArray, the smallest: {16 * len(keys)} and little more."
            problem = f"is too low for these {len(keys)} keys in a {configuration.structure}"
            raise InputError("limit_bytes", limit_bytes, problem, remedy) from None

    def _write(self, keys: Given, payloads: Given, *, upsert: bool) -> Any:
        words, values = self._pairs(keys, payloads)
        with self._writing:
            self._expect_writable()
            try:
                present = self._core.insert(words, values, upsert=upsert)
            except OverLimitError:
                raise self._over_limit(f"adding {len(words)} keys") from None
        return as_given(keys, ~present)

    def _pairs(self, keys: Given, payloads: Given) -> tuple[Words, Words]:
        words, values = self._key_column.take(keys), self._payload_column.take(payloads)
        if len(words) != len(values):
            remedy = f"Give one payload for each of the {len(words)} keys."
            raise InputError("payloads", len(values), "is another number than that of the keys", remedy)
        return words, values

    def _expect_ascending(self, words: Words) -> None:
        wrong = np.flatnonzero(words[1:] < words[:-1])
        if len(wrong):
            n = int(wrong[0]) + 1
            value = self._key_column.give_one(int(words[n]))
            remedy = "Sort them, or drop presorted=True."
            raise InputError(f"keys[{n}]", value, "is less than the key before it", remedy)
        same = np.flatnonzero(words[1:] == words[:-1])
        if len(same):
            key = words[same[0]]
            times = int(np.count_nonzero(words == key))
            problem = f"comes {times} times; {len(same)} keys in all repeat another"
            value = self._key_column.give_one(int(key))
            raise InputError("keys", value, problem, "Give each key once, or add the rest with upsert.")

    def _expect_writable(self) -> None:
        if not self.configuration.writable:
            remedy = "Change it first: index.reconfigure(GappedArray()) or another structure."
            raise InputError("configuration", self.configuration.structure, "cannot be written", remedy)

    def _ordered(self, call: str) -> Core:
        """Return the core; refuse one that keeps no order of keys."""
        held = self._held
        if not held.configuration.ordered:
            remedy = "Take another structure, or items(), which sorts all keys."
            raise InputError("configuration", held.configuration.structure, f"has no order for {call}()", remedy)
        return held.core

    def _over_limit(self, doing: str) -> InputError:
        remedy = "Give a higher limit_bytes, take a smaller configuration, or delete keys first."
        problem = f"would be passed by {doing}; it is at {self.size_bytes} bytes"
        return InputError("limit_bytes", self._limit_bytes, problem, remedy)


def _least(core: Core) -> int:
    keys, _ = core.range(0, GREATEST_KEY, 1)
    if not len(keys):
        raise InputError("index", 0, "has no keys", "Insert some first.")
    return int(keys[0])


def _pages(core: Core, begin: int, end: int, limit: int | None) -> Iterator[tuple[Words, Words]]:
    """Yield pages of the pairs between two keys, both included: at least one page, perhaps empty."""
    left, page_keys = limit, _FIRST_PAGE_KEYS
    while True:
        most = page_keys if left is None else builtins.min(left, page_keys)
        keys, payloads = core.range(begin, end, most)
        yield keys, payloads
        left = None if left is None else left - len(keys)
        if len(keys) < most or left == 0 or keys[-1] == end:
            return
        begin, page_keys = int(keys[-1]) + 1, _PAGE_KEYS
