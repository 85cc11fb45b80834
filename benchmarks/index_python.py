"""Index from Python, in batches of arrays, compared with its numpy form, BTrees, sortedcontainers and dict.

    python -m benchmarks.index_python

A million uniform 63-bit keys, then lookups of all of them in random order and inserts of as many new ones, in batches.
Peers run the calls that their users make for a batch: ``list(map(tree.get, keys))`` and ``tree.update(pairs)``. They
get lists of Python integers, made beforehand, where the index gets arrays. Every answer is checked. Processor seconds
of one thread; all implementations in turns, the median over the rounds. BTrees is ``pip install BTrees``; what is not
installed is left out. Writes ``benchmarks/results/index_python.json``.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import record
from loadmaster.executor.index import (
    Configuration,
    FragmentedLog,
    GappedArray,
    HashTable,
    Index,
    SortedArray,
    native,
)

CONFIGURATIONS: dict[str, Configuration] = {
    "gapped array": GappedArray(),
    "fragmented log": FragmentedLog(),
    "sorted array": SortedArray(),
    "hash table": HashTable(),
}
PEERS = {
    "BTrees.LLBTree": "BTrees.LLBTree:LLBTree",
    "SortedDict": "sortedcontainers:SortedDict",
    "dict": "builtins:dict",
}
Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """Keys to begin with, batches of lookups, batches of new keys. A key's payload is the key."""

    first: Keys
    lookups: list[Keys]
    inserts: list[Keys]


@dataclass(frozen=True)
class Times:
    lookup_s: float
    insert_s: float | None
    bytes_per_key: float | None


@contextmanager
def in_numpy() -> Iterator[None]:
    """Make indexes within the block as on machines without the compiled core."""
    found, native.library = native.library, lambda: None
    try:
        yield
    finally:
        native.library = found


def drawn(keys: int, batch: int) -> Work:
    random = np.random.default_rng(20)
    all_keys = random.permutation(np.unique(random.integers(0, 1 << 63, 2 * keys + 1000)))
    first, more = all_keys[:keys], all_keys[keys : 2 * keys]
    parts = keys // batch
    return Work(first, np.array_split(random.permutation(first), parts), np.array_split(more, parts))


def seconds(batches: list[Any], call: Callable[[Any], Any], check: Callable[[Any, Any], bool]) -> float:
    """Processor seconds of all calls, whose answers are checked between them."""
    spent_s = 0.0
    for batch in batches:
        start = time.process_time()
        answer = call(batch)
        spent_s += time.process_time() - start
        assert check(batch, answer)
    return spent_s


def index_times(configuration: Configuration, work: Work) -> Times:
    index = Index(work.first, work.first, configuration)
    if index.facts().implementation == "compiled":
        assert set(index.facts().leaves_of) == {configuration.structure}
    lookup_s = seconds(work.lookups, index.lookup, lambda b, a: bool(a[1].all() and (a[0] == b).all()))
    insert_s = None
    if configuration.writable:
        insert_s = seconds(work.inserts, lambda b: index.insert(b, b), lambda _, a: bool(a.all()))
        assert len(index) == 2 * len(work.first)
    return Times(lookup_s, insert_s, index.size_bytes / len(index))


def peer_times(make: Callable[[Any], Any], work: Work) -> Times:
    first = work.first.tolist()
    tree = make(dict(zip(first, first, strict=True)))
    lookup_s = seconds([b.tolist() for b in work.lookups], lambda b: list(map(tree.get, b)), lambda b, a: a == b)
    pairs = [list(zip(b.tolist(), b.tolist(), strict=True)) for b in work.inserts]
    insert_s = seconds(pairs, tree.update, lambda _, a: True)
    assert len(tree) == 2 * len(first)
    return Times(lookup_s, insert_s, None)


def contenders() -> dict[str, Callable[[Work], Times]]:
    """Everything that can be measured here, by its name."""

    def index(name: str) -> Callable[[Work], Times]:
        return lambda work: index_times(CONFIGURATIONS[name], work)

    def numpy_index(work: Work) -> Times:
        with in_numpy():
            return index_times(FragmentedLog(), work)

    def peer(make: Callable[[Any], Any]) -> Callable[[Work], Times]:
        return lambda work: peer_times(make, work)

    found = {f"index, {name}": index(name) for name in CONFIGURATIONS} if native.library() is not None else {}
    found["index in numpy"] = numpy_index
    for name, home in PEERS.items():
        module, _, attribute = home.partition(":")
        try:
            found[name] = peer(getattr(importlib.import_module(module), attribute))
        except ImportError:
            print(f"{name} is not installed: left out")
    return found


def row(name: str, times: list[Times], work: Work) -> dict[str, Any]:
    """Measure medians over the rounds, in millions of keys per processor second."""
    inserts = [t.insert_s for t in times if t.insert_s is not None]
    size = times[0].bytes_per_key
    return {
        "name": name,
        "lookups_mops": round(len(work.first) / 1e6 / statistics.median(t.lookup_s for t in times), 2),
        "inserts_mops": round(len(work.first) / 1e6 / statistics.median(inserts), 2) if inserts else None,
        "bytes_per_key": None if size is None else round(size, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    work = drawn(options.keys, options.batch)
    taken: dict[str, list[Times]] = {}
    for _ in range(options.rounds):
        for name, measure in contenders().items():
            taken.setdefault(name, []).append(measure(work))
    rows = [row(name, times, work) for name, times in taken.items()]
    for one in rows:
        print(one)
    print(
        record.write(
            "index_python", {**vars(options), "rows": rows, "versions": record.versions("BTrees", "sortedcontainers")}
        )
    )


if __name__ == "__main__":
    main()
