"""Saved indexes come back as they were; damaged files are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import InputError
from loadmaster.executor.index import Configuration, FragmentedLog, GappedArray, HashTable, Index, SortedArray

ALL = [GappedArray(most_searches=4.0), FragmentedLog(128, 64, 4), SortedArray(), HashTable()]


def made(configuration: Configuration, dtype: type) -> Index:
    random = np.random.default_rng(1)
    keys = random.permutation(np.unique(random.integers(0, 1 << 62, 3000, dtype)))
    return Index(keys, keys[::-1] >> 1, configuration, limit_bytes=1 << 30)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("configuration", ALL, ids=lambda c: c.structure)
def test_it_comes_back_as_it_was(
    implementation: str, tmp_path: Path, configuration: Configuration, dtype: type
) -> None:
    index = made(configuration, dtype)
    index.save(tmp_path / "index")
    back = Index.load(tmp_path / "index")
    assert list(back.items()) == list(index.items())
    assert back.configuration == configuration
    assert back.lookup([1])[0].dtype == index.lookup([1])[0].dtype == dtype
    with pytest.raises(InputError, match="does not fit"):
        back.lookup([-1] if dtype is np.uint64 else [1 << 63])
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_an_empty_one_too(implementation: str, tmp_path: Path) -> None:
    Index([], []).save(tmp_path / "index")
    assert len(Index.load(tmp_path / "index")) == 0


def test_every_cut_and_every_changed_byte_is_noticed(implementation: str, tmp_path: Path) -> None:
    index = Index([3, 1, 2], [30, 10, 20])
    index.save(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    damaged = tmp_path / "damaged"
    for n in range(len(content)):
        damaged.write_bytes(content[:n])
        with pytest.raises(InputError, match=r"truncated|no saved index"):
            Index.load(damaged)
        damaged.write_bytes(content[:n] + bytes([content[n] ^ 0x10]) + content[n + 1 :])
        with pytest.raises(InputError, match=r"truncated|corrupted|no saved index|has version"):
            Index.load(damaged)
    damaged.write_bytes(content + b"more")
    with pytest.raises(InputError, match="corrupted"):
        Index.load(damaged)
    damaged.write_bytes(content[:-8])
    with pytest.raises(InputError, match="truncated: 8 bytes are missing"):
        Index.load(damaged)


def test_another_version_is_named(tmp_path: Path) -> None:
    Index([1], [1]).save(tmp_path / "index")
    content = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(content.replace(b"index 1 ", b"index 2 ", 1))
    with pytest.raises(InputError, match="has version 2, not 1"):
        Index.load(tmp_path / "index")


def test_paths_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Index.load(tmp_path / "missing")
    with pytest.raises(InputError, match=r"path.*cannot be written"):
        Index([1], [1]).save(tmp_path / "missing" / "index")
