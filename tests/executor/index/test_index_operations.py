"""Random operations on an index answer as a plain dictionary does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.index import Configuration, FragmentedLog, GappedArray, HashTable, Index, SortedArray

CONFIGURATIONS = {
    "gapped": GappedArray(),
    "gapped, few searches": GappedArray(most_searches=1.0, most_shifts=1.0, insert_share=1.0),
    "log": FragmentedLog(),
    "small log": FragmentedLog(fragment_keys=4, most_fragments=4, first_fragments=2),
    "sorted": SortedArray(),
    "hash": HashTable(),
}
WRITABLE = [name for name, configuration in CONFIGURATIONS.items() if configuration.writable]

LIMITS = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (0, (1 << 64) - 1)}


def keys_of(dtype: str) -> st.SearchStrategy[int]:
    """Dense ones, which meet often, those about the ends and powers of two, and any."""
    least, greatest = LIMITS[dtype]
    near = st.sampled_from([0, least, greatest, *((1 << n) for n in range(63))])
    around = st.builds(lambda a, b: min(max(a + b, least), greatest), near, st.integers(-2, 2))
    return st.one_of(st.integers(0, 60), around, st.integers(least, greatest))


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, dict[int, int], list[tuple[str, Any]]]:
    """Dtype of the keys, what the index is made from, and operations."""
    dtype = draw(st.sampled_from(sorted(LIMITS)))
    payload = st.integers(*LIMITS["int64"])
    keys = keys_of(dtype)
    batch = st.lists(st.tuples(keys, payload), max_size=40)
    operation = st.one_of(
        st.tuples(st.sampled_from(["insert", "upsert", "delete", "lookup"]), batch),
        st.tuples(st.just("range"), st.tuples(keys, keys, st.none() | st.integers(0, 30))),
    )
    return dtype, dict(draw(batch)), draw(st.lists(operation, max_size=12))


def arrays(pairs: list[tuple[int, int]], dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.array([k for k, _ in pairs], dtype), np.array([v for _, v in pairs], np.int64)


def write(oracle: dict[int, int], name: str, pairs: list[tuple[int, int]]) -> list[bool]:
    """What the operation answers, one pair after the other."""
    answers = []
    for key, value in pairs:
        there = key in oracle
        answers.append(there if name == "delete" else not there)
        if name == "delete":
            oracle.pop(key, None)
        elif name == "upsert" or not there:
            oracle[key] = value
    return answers


def expect_same(index: Index, oracle: dict[int, int]) -> None:
    assert len(index) == len(oracle)
    assert list(index.items()) == sorted(oracle.items())
    if index.configuration.ordered and oracle:
        assert (index.min(), index.max()) == (min(oracle), max(oracle))


def expect_range(index: Index, oracle: dict[int, int], first: int, last: int, limit: int | None) -> None:
    keys, payloads = index.range(first, last, limit)
    expected = [(k, oracle[k]) for k in sorted(oracle) if first <= k <= last][:limit]
    assert list(zip(keys.tolist(), payloads.tolist(), strict=True)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs())
def test_operations_answer_as_a_dictionary(
    implementation: str, name: str, program: tuple[str, dict[int, int], list[tuple[str, Any]]]
) -> None:
    dtype, oracle, operations = program
    index = Index(*arrays(list(oracle.items()), dtype), CONFIGURATIONS[name])
    expect_same(index, oracle)
    for operation, given_ in operations:
        if operation == "range":
            if index.configuration.ordered:
                expect_range(index, oracle, *given_)
        elif operation == "lookup":
            payloads, found = index.lookup(arrays(given_, dtype)[0])
            assert found.tolist() == [k in oracle for k, _ in given_]
            assert payloads.tolist() == [oracle.get(k, 0) for k, _ in given_]
            assert [index.get(k, "none") for k, _ in given_] == [oracle.get(k, "none") for k, _ in given_]
            assert [k in index for k, _ in given_] == [k in oracle for k, _ in given_]
        elif index.configuration.writable:
            keys, payloads = arrays(given_, dtype)
            call: Callable[..., Any] = getattr(index, operation)
            answers = call(keys) if operation == "delete" else call(keys, payloads)
            assert answers.tolist() == write(oracle, operation, given_)
    expect_same(index, oracle)


def hard(seed: int, count: int) -> np.ndarray[Any, Any]:
    """Distinct keys that no line fits: clusters, runs, powers of two and outliers."""
    random = np.random.default_rng(seed)
    clusters = random.integers(0, 1 << 63, 20, np.uint64)[:, None] + random.integers(
        0, 1 << 20, (20, count // 40), np.uint64
    )
    runs = np.uint64(1 << 62) + np.arange(count // 4, dtype=np.uint64)
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    ends = np.array([0, 1, (1 << 64) - 2, (1 << 64) - 1], np.uint64)
    uniform = random.integers(0, (1 << 64) - 1, count // 4, np.uint64)
    return random.permutation(np.unique(np.concatenate([clusters.ravel(), runs, powers, ends, uniform])))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITABLE)
def test_many_hard_keys_stay_right(implementation: str, name: str) -> None:
    keys = hard(7, 60_000)
    oracle: dict[int, int] = {}
    half = len(keys) // 2
    index = Index(keys[:half], np.arange(half), CONFIGURATIONS[name])
    oracle.update(zip(keys[:half].tolist(), range(half), strict=True))
    for n, part in enumerate(np.array_split(keys[half - 100 :], 5)):
        values = np.arange(len(part)) + 1_000_000 * (n + 1)
        assert index.insert(part, values).tolist() == write(
            oracle, "insert", list(zip(part.tolist(), values.tolist(), strict=True))
        )
        gone = keys[n * 1000 : n * 1000 + 700]
        assert index.delete(gone).all()
        for key in gone.tolist():
            del oracle[key]
        assert index.upsert(gone[:300], np.zeros(300, np.int64)).all()
        oracle.update(dict.fromkeys(gone[:300].tolist(), 0))
    expect_same(index, oracle)
    payloads, found = index.lookup(keys)
    assert found.tolist() == [k in oracle for k in keys.tolist()]
    assert payloads.tolist() == [oracle.get(k, 0) for k in keys.tolist()]
    if index.configuration.ordered:
        for first, last in np.sort(keys[:40].reshape(-1, 2)).tolist():
            expect_range(index, oracle, first, last, None)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_signed_keys_have_the_order_of_integers(implementation: str, name: str) -> None:
    keys = np.array([5, -(1 << 63), 0, -1, (1 << 63) - 1, -7])
    index = Index(keys, keys, CONFIGURATIONS[name])
    assert list(index) == sorted(keys.tolist())
    assert index[-7] == -7
    if index.configuration.ordered:
        assert index.range(-7, 0)[0].tolist() == [-7, -1, 0]


@pytest.mark.parametrize("start", CONFIGURATIONS)
@pytest.mark.parametrize("end", CONFIGURATIONS)
def test_any_configuration_changes_to_any(implementation: str, start: str, end: str) -> None:
    keys = hard(3, 4000)
    oracle = dict(zip(keys.tolist(), range(len(keys)), strict=True))
    index = Index(keys, np.arange(len(keys)), CONFIGURATIONS[start])
    left = index.reconfigure(CONFIGURATIONS[end], leaves=1)
    expect_same(index, oracle)
    if left:
        assert index.reconfigure(CONFIGURATIONS[end]) == 0
    expect_same(index, oracle)
    assert index.configuration == CONFIGURATIONS[end]
    if index.configuration.writable:
        assert index.insert(keys[:3] ^ np.uint64(1 << 40), [1, 2, 3]).tolist() == [
            key ^ (1 << 40) not in oracle for key in keys[:3].tolist()
        ]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_empty_index_answers(implementation: str, name: str) -> None:
    configuration: Configuration = CONFIGURATIONS[name]
    index = Index([], [], configuration)
    assert len(index) == 0 and list(index) == [] and 3 not in index
    assert index.lookup([1, 2])[1].tolist() == [False, False]
    with pytest.raises(KeyError):
        index[3]
    if configuration.ordered:
        assert index.range(-9, 9)[0].tolist() == []
        with pytest.raises(InputError, match="has no keys"):
            index.min()


def test_facts_say_what_it_is(implementation: str) -> None:
    index = Index(np.arange(1000), np.arange(1000), FragmentedLog())
    index.lookup(np.arange(10))
    index.insert([5000], [1])
    facts = index.facts()
    assert (facts.keys, facts.lookups, facts.inserts) == (1001, 10, 1)
    assert facts.size_bytes == index.size_bytes >= 16 * 1001
    assert dict(facts.leaves_of) == {"fragmented-log": facts.leaves}
    assert facts.implementation == implementation
    assert "1001 keys" in repr(index)
