"""The compiled index: finds or makes the shared library once, and calls it through ctypes, which releases the GIL."""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from loadmaster.executor.compiled_library import kept_library
from loadmaster.executor.index import building
from loadmaster.executor.index.core_protocol import Facts, Flags, OverLimitError, Words
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray

_LOG = logging.getLogger(__name__)
_BUILDING = threading.Lock()

# As in core/index.h.
_STRUCTURES = ("gapped-array", "fragmented-log", "sorted-array", "hash-table")
_OK, _NO_MEMORY, _OVER_LIMIT, _BAD_CONFIG = 0, 1, 2, 7


class _Config(ctypes.Structure):
    _fields_ = (
        ("structure", ctypes.c_int32),
        ("most_searches", ctypes.c_double),
        ("most_shifts", ctypes.c_double),
        ("insert_share", ctypes.c_double),
        ("fragment_keys", ctypes.c_int32),
        ("most_fragments", ctypes.c_int32),
        ("first_fragments", ctypes.c_int32),
        ("most_bytes", ctypes.c_int64),
    )


_COUNTS = (
    *("keys", "bytes", "leaves", "fragments", "depth"),
    *("structural_changes", "longest_change_ns", "largest_change_keys"),
    *("huge_page_bytes", "lookups", "inserts", "erases", "scans"),
)


class _Facts(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int64) for name in _COUNTS), ("leaves_of", ctypes.c_int64 * len(_STRUCTURES)))


_ARRAY, _COUNT, _INDEX, _KEY = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint64
_SIGNATURES: Mapping[str, tuple[object, ...]] = {
    "lm_create": (ctypes.POINTER(_Config), _ARRAY, _ARRAY, _COUNT, ctypes.POINTER(_INDEX)),
    "lm_lookup": (_INDEX, _ARRAY, _COUNT, _ARRAY, _ARRAY),
    "lm_insert": (_INDEX, _ARRAY, _ARRAY, _COUNT, ctypes.c_int, _ARRAY, ctypes.POINTER(_COUNT)),
    "lm_erase": (_INDEX, _ARRAY, _COUNT, _ARRAY, ctypes.POINTER(_COUNT)),
    "lm_range": (_INDEX, _KEY, _KEY, _COUNT, _ARRAY, _ARRAY, ctypes.POINTER(_COUNT)),
    "lm_dump": (_INDEX, _ARRAY, _ARRAY),
    "lm_reconfigure": (_INDEX, ctypes.POINTER(_Config), _COUNT, ctypes.POINTER(_COUNT)),
    "lm_facts_of": (_INDEX, ctypes.POINTER(_Facts)),
    "lm_destroy": (_INDEX,),
    "lm_fail_allocation": (ctypes.c_int64,),
}


@functools.cache
def _loaded() -> ctypes.CDLL | None:
    shipped = building.SOURCES / building.LIBRARY_NAME
    try:
        return _declared(shipped if shipped.exists() else None)
    except (building.BuildError, OSError) as error:
        _LOG.warning("the index runs in numpy, several times slower than compiled: %s", error)
        return None


def library() -> ctypes.CDLL | None:
    """The shared library that came with the package, or one made here and kept in the user's cache folder. None: there
    is neither, which the log says once; then ``NumpyCore`` stands in."""
    with _BUILDING:
        return _loaded()


def _declared(path: Path | None) -> ctypes.CDLL:
    if path is not None:
        found = ctypes.CDLL(str(path))
    else:
        with kept_library("index", building.fingerprint(), building.LIBRARY_NAME, _compile) as kept:
            found = ctypes.CDLL(str(kept))
    for name, arguments in _SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes = arguments
        function.restype = None if name in ("lm_destroy", "lm_fail_allocation") else ctypes.c_int
    return found


def _compile(target: Path) -> None:
    _LOG.info("compiling the index, once")
    building.compile_library(target)


class NativeCore:
    """An index of the compiled library. See ``Core``."""

    def __init__(
        self,
        functions: ctypes.CDLL,
        configuration: Configuration,
        keys: Words,
        payloads: Words,
        limit_bytes: int | None,
    ) -> None:
        """Make an index of ascending keys without duplicates. OverLimitError: they take more than ``limit_bytes``.
        MemoryError: there is not enough."""
        self._functions, self._limit_bytes = functions, limit_bytes
        self._index = _INDEX()
        self._inserted_twice = 0
        status = self._make(_config(configuration, limit_bytes), keys, payloads)
        if status == _OVER_LIMIT:
            # How much it would have to be, only a core without a limit can say.
            _expect(self._make(_config(configuration, None), keys, payloads))
            raise OverLimitError(self.facts().size_bytes)
        _expect(status)

    def _make(self, config: _Config, keys: Words, payloads: Words) -> int:
        made = self._functions.lm_create(
            ctypes.byref(config), keys.ctypes.data, payloads.ctypes.data, len(keys), ctypes.byref(self._index)
        )
        return int(made)

    def __del__(self) -> None:
        if self._index:
            self._functions.lm_destroy(self._index)

    def lookup(self, keys: Words) -> tuple[Words, Flags]:
        payloads, found = np.empty(len(keys), np.uint64), np.empty(len(keys), np.bool_)
        _expect(
            self._functions.lm_lookup(self._index, keys.ctypes.data, len(keys), payloads.ctypes.data, found.ctypes.data)
        )
        return payloads, found

    def find(self, key: int) -> int | None:
        wanted, payload, found = ctypes.c_uint64(key), ctypes.c_uint64(), ctypes.c_uint8()
        by = ctypes.byref
        _expect(self._functions.lm_lookup(self._index, by(wanted), 1, by(payload), by(found)))
        return payload.value if found.value else None

    def insert(self, keys: Words, payloads: Words, *, upsert: bool) -> Flags:
        present = self._insert(keys, payloads, upsert=False)
        if upsert and present.any():
            # First what needs memory, then what cannot fail: payloads of keys that are there by now.
            self._insert(np.ascontiguousarray(keys[present]), np.ascontiguousarray(payloads[present]), upsert=True)
            self._inserted_twice += int(np.count_nonzero(present))
        return present

    def _insert(self, keys: Words, payloads: Words, *, upsert: bool) -> Flags:
        present, done = np.empty(len(keys), np.bool_), _COUNT()
        status = self._functions.lm_insert(
            self._index, keys.ctypes.data, payloads.ctypes.data, len(keys), upsert, present.ctypes.data,
            ctypes.byref(done),
        )  # fmt: skip
        if status != _OK:
            came = keys[: done.value][~present[: done.value]]
            self.delete(np.ascontiguousarray(came))
        _expect(status)
        return present

    def delete(self, keys: Words) -> Flags:
        found, done = np.empty(len(keys), np.bool_), _COUNT()
        _expect(
            self._functions.lm_erase(self._index, keys.ctypes.data, len(keys), found.ctypes.data, ctypes.byref(done))
        )
        return found

    def range(self, first: int, last: int, most: int) -> tuple[Words, Words]:
        keys, payloads, count = np.empty(most, np.uint64), np.empty(most, np.uint64), _COUNT()
        _expect(
            self._functions.lm_range(
                self._index, first, last, most, keys.ctypes.data, payloads.ctypes.data, ctypes.byref(count)
            )
        )
        return keys[: count.value], payloads[: count.value]

    def dump(self) -> tuple[Words, Words]:
        count = self.facts().keys
        keys, payloads = np.empty(count, np.uint64), np.empty(count, np.uint64)
        _expect(self._functions.lm_dump(self._index, keys.ctypes.data, payloads.ctypes.data))
        return keys, payloads

    def reconfigure(self, configuration: Configuration, leaves: int) -> int | None:
        left = _COUNT()
        config = _config(configuration, self._limit_bytes)
        status = self._functions.lm_reconfigure(self._index, ctypes.byref(config), leaves, ctypes.byref(left))
        if status == _BAD_CONFIG:
            return None
        _expect(status)
        return left.value

    def facts(self) -> Facts:
        read = _Facts()
        _expect(self._functions.lm_facts_of(self._index, ctypes.byref(read)))
        return Facts(
            keys=read.keys,
            size_bytes=read.bytes,
            leaves=read.leaves,
            fragments=read.fragments,
            depth=read.depth,
            structural_changes=read.structural_changes,
            longest_change_us=read.longest_change_ns / 1e3,
            largest_change_keys=read.largest_change_keys,
            huge_page_bytes=read.huge_page_bytes,
            lookups=read.lookups,
            inserts=read.inserts - self._inserted_twice,
            deletes=read.erases,
            ranges=read.scans,
            leaves_of={name: n for name, n in zip(_STRUCTURES, read.leaves_of, strict=True) if n},
            implementation="compiled",
        )


def _config(configuration: Configuration, limit_bytes: int | None) -> _Config:
    config = _Config(structure=_STRUCTURES.index(configuration.structure), most_bytes=limit_bytes or 0)
    # All are checked, also those of other structures.
    log = configuration if isinstance(configuration, FragmentedLog) else FragmentedLog()
    gapped = configuration if isinstance(configuration, GappedArray) else GappedArray()
    for name in ("fragment_keys", "most_fragments", "first_fragments"):
        setattr(config, name, getattr(log, name))
    config.most_searches, config.most_shifts = gapped.most_searches or 0.0, gapped.most_shifts or 0.0
    config.insert_share = gapped.insert_share
    return config


def _expect(status: int) -> None:
    if status == _NO_MEMORY:
        raise MemoryError("the index is as it was before: there is no memory for what was asked")
    if status == _OVER_LIMIT:
        raise OverLimitError
    if status != _OK:
        raise AssertionError(f"the core refuses what was checked before: status {status}")
