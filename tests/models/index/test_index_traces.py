"""Traces: how hard keys are, against all lines; what generators make; files; what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.index.features import features, global_keys, hot_share, image, local_keys
from loadmaster.models.index.generators import DISTRIBUTIONS, Mix, make_keys, make_trace
from loadmaster.models.index.segments import segments
from loadmaster.models.index.trace import ERASE, INSERT, LOOKUP, SCAN, Trace, load_trace, save_trace


def on_a_line(points: list[tuple[int, int]], epsilon: int) -> bool:
    """Whether some line is within epsilon of all points: by the slopes that each pair of bars leaves."""
    low, high = None, None
    for i, (x, y) in enumerate(points):
        for u, v in points[i + 1 :]:
            least, most = Fraction(v - y - 2 * epsilon, u - x), Fraction(v - y + 2 * epsilon, u - x)
            low = least if low is None else max(low, least)
            high = most if high is None else min(high, most)
    return low is None or high is None or low <= high


def fewest_lines(keys: list[int], epsilon: int, step: int) -> int:
    """By dynamic programming over all ways to cut."""
    points = [(key, n * step) for n, key in enumerate(keys)]
    best = [0]
    for end in range(1, len(points) + 1):
        best.append(1 + min(best[start] for start in range(end) if on_a_line(points[start:end], epsilon)))
    return best[-1]


@settings(max_examples=150, deadline=None)
@given(
    st.sets(st.integers(0, 40) | st.integers(0, 2**64 - 1), max_size=14),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_segments_are_the_fewest_lines(keys: set[int], epsilon: int, step: int) -> None:
    ascending = sorted(keys)
    found = segments(np.array(ascending, dtype=np.uint64), epsilon, step)
    assert found == (fewest_lines(ascending, epsilon, step) if keys else 0)


def test_keys_that_are_there_twice_count_once() -> None:
    assert segments(np.array([7, 7, 7, 7, 7], dtype=np.uint64), 0) == 1


def test_sequential_keys_are_the_easiest() -> None:
    keys = make_keys("sequential", 20_000)
    assert local_keys(keys) == 8192 and global_keys(keys) == 20_000
    for other in ("clustered", "outliers", "lognormal"):
        assert local_keys(make_keys(other, 20_000)) < 8192


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_distribution_has_as_many_different_keys_as_asked_for(distribution: str) -> None:
    for count in (1, 2, 5_000):
        keys = make_keys(distribution, count, seed=3)
        assert keys.dtype == np.uint64 and len(keys) == count
        assert bool((keys[1:] > keys[:-1]).all())
        assert (keys == make_keys(distribution, count, seed=3)).all()


@pytest.mark.parametrize("zipf", [False, True])
@pytest.mark.parametrize("inserts", [0.0, 0.15, 0.85, 1.0])
def test_operations_are_of_keys_that_are_there(inserts: float, zipf: bool) -> None:
    rest = 0.0 if inserts > 0.85 else 0.05
    trace = make_trace("uniform", 500, 2_000, Mix(inserts, erases=rest, scans=rest, zipf=zipf), seed=1)
    seen = set(trace.keys.tolist())
    assert len(seen) == 500
    erased: set[int] = set()
    for code, key in zip(trace.operations.tolist(), trace.operation_keys.tolist(), strict=True):
        if code == INSERT:
            assert key not in seen
            seen.add(key)
        else:
            assert key in seen
        if code == ERASE:
            assert key not in erased
            erased.add(key)
    of = features(trace)
    assert (of.inserts, of.erases, of.scans) == (2_000 * inserts, 2_000 * rest, 2_000 * rest)
    assert of.operations == 2_000 and of.write_share == pytest.approx(inserts + rest)
    if inserts < 0.5:
        assert (of.hot_share > 0.2) == zipf


def test_hot_keys() -> None:
    keys = np.repeat(np.arange(200, dtype=np.uint64), 1)
    assert hot_share(keys, 200) == 0.01
    assert hot_share(np.concatenate([keys, np.full(800, 5, dtype=np.uint64)]), 100) == 0.801
    assert hot_share(keys[:0], 100) == 0.0


def test_the_image_of_even_keys_is_a_diagonal() -> None:
    picture = image(np.arange(1600, dtype=np.uint64) * np.uint64(2**53), 16)
    assert picture.sum() == pytest.approx(1.0)
    assert np.diag(picture) == pytest.approx(np.full(16, 1 / 16))
    assert image(np.zeros(0, dtype=np.uint64)).sum() == 0


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    trace = make_trace("powers", 100, 200, Mix(0.2, 0.1, 0.1))
    save_trace(trace, tmp_path / "trace.npz")
    read = load_trace(tmp_path / "trace.npz")
    for name in ("keys", "operations", "operation_keys"):
        assert (getattr(read, name) == getattr(trace, name)).all()


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    with pytest.raises(InputError, match="no such file"):
        load_trace(path)
    with pytest.raises(InputError, match="directory"):
        load_trace(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="path"):
        load_trace(path)
    path.write_bytes(b"PK\x03\x04 but no more of it")
    with pytest.raises(InputError, match="path"):
        load_trace(path)
    np.savez(path, keys=np.zeros(1, dtype=np.uint64))
    with pytest.raises(InputError, match=r"operations.*is missing"):
        load_trace(path)
    np.savez(path, **{n: np.array([object()], dtype=object) for n in ("keys", "operations", "operation_keys")})
    with pytest.raises(InputError, match="plain arrays"):
        load_trace(path)
    save_trace(make_trace("uniform", 1000, 1000), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="path"):
        load_trace(path)
    with pytest.raises(InputError, match="cannot be written"):
        save_trace(make_trace("uniform", 1, 0), tmp_path / "no" / "folder.npz")


def test_arrays_that_are_no_traces() -> None:
    keys, codes = np.arange(3, dtype=np.uint64), np.array([LOOKUP, SCAN], dtype=np.uint8)
    for name, wrong in {
        "keys": (keys.astype(np.int64), codes, keys[:2]),
        "operations": (keys, codes.astype(np.int64), keys[:2]),
        "operation_keys": (keys, codes, keys),
    }.items():
        with pytest.raises(InputError, match=f"^{name}:"):
            Trace(*wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^operations: is no operation"):
        Trace(keys, codes + np.uint8(2), keys[:2])
    with pytest.raises(InputError, match=r"^keys: holds a key twice"):
        Trace(np.zeros(2, dtype=np.uint64), codes, keys[:2])


def test_generators_refuse_by_name() -> None:
    with pytest.raises(InputError, match=r"^distribution: is no distribution"):
        make_keys("zipfian", 10)
    with pytest.raises(InputError, match=r"^keys: is less than 1"):
        make_keys("uniform", 0)
    with pytest.raises(InputError, match=r"^inserts: is no share"):
        Mix(inserts=1.5)
    with pytest.raises(InputError, match=r"^inserts: is more than all"):
        Mix(inserts=0.6, erases=0.3, scans=0.2)
    with pytest.raises(InputError, match=r"^erases"):
        make_trace("uniform", 10, 1000, Mix(erases=0.5))
    with pytest.raises(InputError, match=r"^operations"):
        make_trace("uniform", 10, -1)
