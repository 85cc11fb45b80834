"""Host memory with files behind it: gradients are plain PyTorch's, and files get what is needed last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor import TensorCache
from loadmaster.executor.placement.cache import tensor_cache
from loadmaster.executor.placement.cache.backends.files import Files
from loadmaster.executor.placement.cache.backends.host import HostMemory
from loadmaster.executor.placement.cache.backends.spilling import Spilling
from tests.executor.placement.cache.small_models import LEAST, blocks, expect_equal, gradients


def spilling(folder: object, capacity_bytes: int) -> Spilling:
    return Spilling(HostMemory(capacity_bytes), Files([str(folder)], threads=1, chunk_bytes=4096))


@settings(max_examples=20, deadline=None)
@given(capacity_bytes=st.integers(1, 200_000))
def test_gradients_are_plain_pytorchs(tmp_path_factory: pytest.TempPathFactory, capacity_bytes: int) -> None:
    model = blocks()
    plain = gradients(model)
    backend = spilling(tmp_path_factory.mktemp("files"), capacity_bytes)
    cache = TensorCache(model, to=backend, keep=0, min_bytes=LEAST)
    for _ in range(3):
        expect_equal(gradients(model, cache), plain)
        assert backend.host.counters().peak_bytes <= capacity_bytes
    cache.close()
    backend.close()


def test_files_get_what_was_saved_first(tmp_path: Path) -> None:
    """The first pass knows no better than to fill host memory first; nothing goes to files where all fits."""
    backend, one = spilling(tmp_path, 3 << 12), 1 << 12
    for expected in (["host", "host", "host", "files", "files"], ["files", "files", "host", "host", "host"]):
        stored, places = [], []
        for n in range(5):
            place: Any = backend.store(torch.full((one,), n, dtype=torch.uint8))
            places.append("host" if place.backend is backend.host else "files")
            stored.append(place)
        assert places == expected
        for n, place in enumerate(stored):
            target = torch.zeros(one, dtype=torch.uint8)
            place.wait()
            backend.load(place, target).wait()
            assert bool((target == n).all())
            backend.free(place)
    backend.close()


def test_host_and_folders_are_named_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_cache, "HostMemory", lambda: HostMemory(1 << 12))
    model = blocks()
    plain = gradients(model)
    cache = TensorCache(model, to=["host", tmp_path], keep=0, min_bytes=LEAST)
    expect_equal(gradients(model, cache), plain)
    assert cache.stats().notes["in_files"].partition(" ")[0] != "0"
    cache.close()
    with pytest.raises(InputError, match="neither 'host' nor a folder"):
        TensorCache(model, to=["host", "nowhere"])
