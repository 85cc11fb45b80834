"""Several readers beside one writer see each key as it was before or after."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from loadmaster.executor.index import Configuration, FragmentedLog, GappedArray, HashTable, Index, SortedArray

# A payload says which key it belongs to in its low bits: whatever a reader sees can be told right from torn.
KEYS, ROUNDS, BITS = 20_000, 12, 20


@pytest.mark.slow
@pytest.mark.parametrize("configuration", [GappedArray(), FragmentedLog(), HashTable()], ids=lambda c: c.structure)
def test_readers_beside_a_writer(implementation: str, configuration: Configuration) -> None:
    random = np.random.default_rng(5)
    keys = random.permutation(np.unique(random.integers(0, 1 << 40, KEYS)))
    numbers = np.arange(len(keys))
    steady, moving = keys[: KEYS // 2], keys[KEYS // 2 :]
    index = Index(steady, numbers[: len(steady)], configuration)
    over = threading.Event()

    def read(seed: int) -> None:
        mine = np.random.default_rng(seed)
        last = np.zeros(len(steady), np.int64)
        while True:
            ends = over.is_set()
            payloads, found = index.lookup(steady)
            assert found.all()
            assert (payloads & ((1 << BITS) - 1) == numbers[: len(steady)]).all()
            assert (payloads >= last).all()
            last = payloads
            at = mine.integers(0, len(moving), 500)
            payloads, found = index.lookup(moving[at])
            assert (payloads[found] & ((1 << BITS) - 1) == at[found] + len(steady)).all()
            if configuration.ordered:
                seen, _ = index.range(int(steady.min()), int(steady.max()), 2000)
                assert (np.diff(seen) > 0).all()
            if ends:
                return

    def write() -> None:
        try:
            for n in range(1, ROUNDS + 1):
                index.insert(moving, numbers[len(steady) :] + (n << BITS))
                index.upsert(steady, numbers[: len(steady)] + (n << BITS))
                index.delete(moving[n::2])
        finally:
            over.set()

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(read, n) for n in range(3)] + [pool.submit(write)]
        for job in jobs:
            job.result()


def test_readers_while_it_is_made_again(implementation: str) -> None:
    keys = np.arange(0, 60_000, 3)
    index = Index(keys, keys, FragmentedLog())
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            payloads, found = index.lookup(keys)
            assert found.all() and (payloads == keys).all()

    with ThreadPoolExecutor(2) as pool:
        job = pool.submit(read)
        try:
            for configuration in (HashTable(), SortedArray(), GappedArray(), FragmentedLog(), GappedArray()) * 2:
                index.reconfigure(configuration)
        finally:
            over.set()
        job.result()


def test_writers_wait_for_each_other(implementation: str) -> None:
    index = Index([], [])

    def write(n: int) -> int:
        return int(np.count_nonzero(index.insert(np.arange(n, n + 5000), np.full(5000, n))))

    with ThreadPoolExecutor(4) as pool:
        new = sum(pool.map(write, range(0, 20_000, 2500)))
    assert new == len(index) == len(range(22_500))
