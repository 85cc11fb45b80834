"""What an index refuses, with the words that say what to do, and what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.index import (
    Configuration,
    FragmentedLog,
    GappedArray,
    HashTable,
    Index,
    SortedArray,
    in_numpy,
    native,
)

ALL = [GappedArray(), FragmentedLog(), SortedArray(), HashTable()]
WRITABLE = [configuration for configuration in ALL if configuration.writable]


def named(configuration: Configuration) -> str:
    return configuration.structure


def small(configuration: Configuration = ALL[1], dtype: type = np.uint64) -> Index:
    return Index(np.array([10, 20, 30], dtype), np.array([1, 2, 3]), configuration)


def contents(index: Index) -> list[tuple[int, int]]:
    return list(index.items())


BAD_KEYS: list[tuple[Any, str]] = [
    (np.array([1.0, 2.0]), "float64.*array of int64 or uint64"),
    (np.array([1, None], object), "object"),
    (np.array([True, False]), "bool"),
    (np.array(["a"]), "<U1"),
    ([1, 2.5], r"keys\[1\].*2.5"),
    ([1, "x"], r"keys\[1\].*'x'"),
    ([1 << 64], "hash the values to 64 bits"),
    ([1, -(1 << 63) - 1], r"keys\[1\]"),
    ([-1, 1 << 63], "does not fit"),
    (np.zeros((2, 2), np.int64), "flat array"),
    (torch.tensor([1.5]), "float32"),
    (torch.empty(2, dtype=torch.int64, device="meta"), r"not on the CPU"),
]


@pytest.mark.parametrize(("keys", "words"), BAD_KEYS)
def test_what_are_no_keys_is_refused(implementation: str, keys: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Index(keys, [1] * len(keys))
    index = small()
    before = contents(index)
    for call in (index.lookup, index.delete, lambda k: index.insert(k, [1] * len(k)), lambda k: index.upsert(k, k)):
        with pytest.raises(InputError):
            call(keys)
    assert contents(index) == before


def test_keys_beyond_those_of_the_index_are_refused(implementation: str) -> None:
    unsigned, signed = small(), small(dtype=np.int64)
    for index, keys in (
        (unsigned, [4, -1]),
        (unsigned, np.array([4, -1])),
        (signed, np.array([4, 1 << 63], np.uint64)),
    ):
        with pytest.raises(InputError, match=r"keys\[1\]: does not fit"):
            index.insert(keys, [0, 0])
        with pytest.raises(InputError, match="does not fit"):
            index.lookup(keys)
        for one in (index.get, index.__getitem__, index.__contains__):
            with pytest.raises(InputError):
                one(int(keys[1]))
    with pytest.raises(InputError):
        unsigned.range(-1, 5)
    with pytest.raises(InputError, match="no integer"):
        unsigned.get(1.5)  # type: ignore[call-overload]
    assert contents(unsigned) == contents(signed) == [(10, 1), (20, 2), (30, 3)]


def test_smaller_integers_are_taken(implementation: str) -> None:
    index = Index(np.array([1, 2], np.int8), range(2))
    assert index.lookup(np.array([2, 3], np.uint16))[1].tolist() == [True, False]


def test_what_is_not_contiguous_aligned_or_native_is_taken(implementation: str) -> None:
    keys = np.arange(10, dtype=np.uint64)
    unaligned = np.frombuffer(b"x" + keys.tobytes(), np.uint64, offset=1)
    for odd in (np.repeat(keys, 2)[::2], keys[::-1], keys.astype(">u8"), unaligned):
        index = Index(odd, odd)
        assert contents(index) == [(n, n) for n in range(10)]
        assert index.lookup(odd)[0].tolist() == odd.tolist()


@pytest.mark.parametrize("configuration", ALL, ids=named)
def test_keys_that_come_twice_are_counted(implementation: str, configuration: Configuration) -> None:
    with pytest.raises(InputError, match=r"comes 3 times; 3 keys in all repeat another \(found 7\)"):
        Index([9, 7, 1, 7, 7, 9], range(6), configuration)


@pytest.mark.parametrize("configuration", ALL, ids=named)
def test_keys_said_to_be_sorted_are_looked_at(implementation: str, configuration: Configuration) -> None:
    with pytest.raises(InputError, match=r"keys\[2\]: is less than the key before it \(found 3\).*presorted"):
        Index(np.array([1, 5, 3]), np.arange(3), configuration, presorted=True)
    assert len(Index(np.array([-1, 5, 7]), np.arange(3), configuration, presorted=True)) == 3
    with pytest.raises(InputError, match="comes 2 times"):
        Index(np.array([1, 5, 5]), np.arange(3), configuration, presorted=True)


@pytest.mark.parametrize("configuration", WRITABLE, ids=named)
def test_one_payload_a_key(implementation: str, configuration: Configuration) -> None:
    with pytest.raises(InputError, match=r"payloads.*found 2\).*each of the 3 keys"):
        Index([1, 2, 3], [1, 2], configuration)
    index = small(configuration)
    for call in (index.insert, index.upsert):
        with pytest.raises(InputError, match="payloads"):
            call([1, 2], [1])
        with pytest.raises(InputError, match="payloads: are no integers"):
            call([1], np.array([0.5]))
    assert contents(index) == [(10, 1), (20, 2), (30, 3)]


def test_a_sorted_array_is_not_written(implementation: str) -> None:
    index = small(SortedArray())
    for write in (lambda: index.insert([1], [1]), lambda: index.upsert([10], [5]), lambda: index.delete([10])):
        with pytest.raises(InputError, match=r"sorted-array.*reconfigure"):
            write()
    assert contents(index) == [(10, 1), (20, 2), (30, 3)]


def test_a_hash_table_has_no_order(implementation: str) -> None:
    index = small(HashTable())
    for name, ask in (("range", lambda: index.range(1, 2)), ("min", index.min), ("max", index.max)):
        with pytest.raises(InputError, match=rf"no order for {name}\(\)"):
            ask()
    assert contents(index) == [(10, 1), (20, 2), (30, 3)]


@pytest.mark.parametrize("configuration", ALL, ids=named)
def test_a_limit_too_low_says_the_least(implementation: str, configuration: Configuration) -> None:
    keys = np.arange(5000) * 3
    with pytest.raises(InputError, match=r"limit_bytes.*at least \d+") as caught:
        Index(keys, keys, configuration, limit_bytes=1000)
    least = int(caught.value.remedy.split()[3].rstrip(".,"))
    index = Index(keys, keys, configuration, limit_bytes=least)
    assert index.size_bytes <= least
    with pytest.raises(InputError, match="limit_bytes"):
        Index(keys, keys, configuration, limit_bytes=0)


@pytest.mark.parametrize("configuration", WRITABLE, ids=named)
def test_a_limit_holds_for_what_is_added(implementation: str, configuration: Configuration) -> None:
    keys = np.arange(5000) * 3
    limit = 2 * Index(keys, keys, configuration).size_bytes
    index = Index(keys, keys, configuration, limit_bytes=limit)
    more = np.arange(50_000) * 3 + 1
    for call in (index.insert, index.upsert):
        with pytest.raises(InputError, match=r"limit_bytes: would be passed by adding 50009 keys"):
            call(np.concatenate([keys[:9], more]), np.zeros(50_009, np.int64))
        assert contents(index) == list(zip(keys.tolist(), keys.tolist(), strict=True))
    assert index.size_bytes <= limit
    assert index.upsert([3], [99]).tolist() == [False]
    assert index[3] == 99


@pytest.mark.parametrize("configuration", WRITABLE, ids=named)
@pytest.mark.parametrize("call", ["insert", "upsert"])
def test_without_memory_an_index_is_as_before(configuration: Configuration, call: str) -> None:
    functions = native.library()
    if functions is None:
        pytest.skip("there is no C++ compiler here")
    keys = np.arange(3000) * 7
    more = np.concatenate([keys[:50], np.arange(30_000) * 2 + 1])
    failed = 0
    for n in (1, 2, 3, 5, 9, 17, 33):
        index = Index(keys, keys, configuration)
        functions.lm_fail_allocation(n)
        try:
            getattr(index, call)(more, np.zeros(len(more), np.int64))
        except MemoryError:
            failed += 1
            functions.lm_fail_allocation(0)
            assert contents(index) == list(zip(keys.tolist(), keys.tolist(), strict=True))
        finally:
            functions.lm_fail_allocation(0)
        getattr(index, call)(more, np.zeros(len(more), np.int64))
        assert len(index) == len({*keys.tolist(), *more.tolist()})
    assert failed > 0


def test_without_memory_the_numpy_index_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*arrays: object) -> None:
        raise MemoryError

    monkeypatch.setattr(native, "library", lambda: None)
    index = small()
    index.insert([15], [9])
    before = contents(index)
    with monkeypatch.context() as within:
        within.setattr(in_numpy, "_merged", no_memory)
        for call in (index.insert, index.upsert):
            with pytest.raises(MemoryError):
                call([10, 15, 40], [7, 7, 7])
    assert contents(index) == before


def test_bad_parameters_are_refused() -> None:
    for make, field in (
        (lambda: GappedArray(most_searches=0.0), "most_searches"),
        (lambda: GappedArray(most_shifts=-1.0), "most_shifts"),
        (lambda: GappedArray(insert_share=1.5), "insert_share"),
        (lambda: FragmentedLog(fragment_keys=3), "fragment_keys"),
        (lambda: FragmentedLog(most_fragments=0), "most_fragments"),
        (lambda: FragmentedLog(most_fragments=8, first_fragments=9), "first_fragments"),
    ):
        with pytest.raises(InputError, match=field):
            make()
    with pytest.raises(InputError, match="limit"):
        small().range(1, 2, limit=-1)
    with pytest.raises(InputError, match="leaves"):
        small().reconfigure(GappedArray(), leaves=-1)


@pytest.mark.parametrize("configuration", WRITABLE, ids=named)
def test_tensors_are_answered_with_tensors(implementation: str, configuration: Configuration) -> None:
    keys = torch.tensor([-5, 1 << 40, 7])
    index = Index(keys, keys * 2, configuration)
    payloads, found = index.lookup(torch.tensor([7, 8, -5]))
    assert payloads.dtype == torch.int64 and payloads.tolist() == [14, 0, -10]
    assert found.dtype == torch.bool and found.tolist() == [True, False, True]
    assert torch.equal(index.insert(torch.tensor([7, 8]), torch.tensor([0, 1])), torch.tensor([False, True]))
    assert torch.equal(index.upsert(torch.tensor([7, 9]), torch.tensor([3, 1])), torch.tensor([False, True]))
    assert torch.equal(index.delete(torch.tensor([7, 70])), torch.tensor([True, False]))
    unsigned = small(configuration)
    assert unsigned.lookup(torch.tensor([20]))[0].tolist() == [2]
    assert index.lookup(torch.arange(20)[::2])[1].tolist() == [n == 8 for n in range(0, 20, 2)]
