"""Features in files are read where the system maps them; files that do not fit are refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from loadmaster.errors import InputError
from loadmaster.executor.graph import UnifiedTensor, unified_file
from loadmaster.executor.graph.features import host_memory
from loadmaster.executor.graph.features.host_memory import expect_readable
from tests.executor.graph.features.fake_cuda import Registry

ARRAY = np.arange(21, dtype=np.float32).reshape(7, 3)
CPU = "cpu"


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "features.bin"
    path.write_bytes(ARRAY.tobytes())
    return path


@pytest.fixture
def npy(tmp_path):
    path = tmp_path / "features.npy"
    np.save(path, ARRAY)
    return path


def test_a_raw_file_is_a_table(raw):
    found = unified_file(raw, (7, 3), torch.float32, device=CPU)
    assert isinstance(found, UnifiedTensor) and not found.writable
    assert torch.equal(found[torch.tensor([6, 0])], torch.from_numpy(ARRAY[[6, 0]]))
    assert unified_file(raw, (42,), torch.bfloat16, device=CPU).dtype == torch.bfloat16


def test_numpys_file_says_its_shape_itself(npy):
    for given in ({}, {"shape": (7, 3), "dtype": torch.float32}):
        found = unified_file(str(npy), **given, device=CPU)
        assert torch.equal(found.cpu_view, torch.from_numpy(ARRAY))


def test_a_file_is_not_written_to(raw):
    found = unified_file(raw, (7, 3), torch.float32, device=CPU)
    for write in (lambda: found.zero_(), lambda: found[1:].mul_(2), lambda: found.__setitem__(0, 1.0)):
        with pytest.raises(InputError, match="opened for reading"):
            write()
    assert raw.read_bytes() == ARRAY.tobytes()
    assert (found.with_affinity("host") * 2).add_(1).writable


@pytest.mark.slow
def test_memory_stays_while_a_view_of_it_lives(raw):
    rows = unified_file(raw, (7, 3), torch.float32, device=CPU)[2:4].cpu_view
    gc.collect()
    assert torch.equal(rows, torch.from_numpy(ARRAY[2:4]))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"shape": (8, 3), "dtype": torch.float32}, "does not hold"),
        ({"shape": (7, 3), "dtype": torch.float64}, "does not hold"),
        ({"shape": (7, 3)}, "Give shape and dtype"),
        ({"dtype": torch.float32}, "Give shape and dtype"),
    ],
)
def test_a_file_of_another_size_is_refused(raw, given, match):
    with pytest.raises(InputError, match=match):
        unified_file(raw, **given, device=CPU)


def test_a_numpy_file_that_differs_from_what_is_said_is_refused(npy, tmp_path):
    with pytest.raises(InputError, match="shape"):
        unified_file(npy, (3, 7), device=CPU)
    with pytest.raises(InputError, match="dtype"):
        unified_file(npy, dtype=torch.float64, device=CPU)
    by_column, words, short = tmp_path / "f.npy", tmp_path / "w.npy", tmp_path / "s.npy"
    np.save(by_column, np.asfortranarray(ARRAY))
    np.save(words, np.array(["a"]))
    short.write_bytes(npy.read_bytes()[:-4])
    for path in (by_column, words, short):
        with pytest.raises(InputError, match="path"):
            unified_file(path, device=CPU)


def test_no_file_and_an_empty_one_are_refused(tmp_path):
    with pytest.raises(InputError, match="is no file"):
        unified_file(tmp_path / "none", (1,), torch.float32, device=CPU)
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="does not hold"):
        unified_file(tmp_path / "empty", (0, 3), torch.float32, device=CPU)


def test_ordinary_memory_is_refused_for_a_gpu():
    expect_readable(torch.zeros(3), torch.device("cpu"))
    with pytest.raises(InputError, match="ordinary memory"):
        expect_readable(torch.zeros(3), torch.device("cuda", 0))


@pytest.fixture
def registering(monkeypatch):
    """CUDA, which registers memory with a status."""

    def install(status):
        fake = Registry(status)
        fake.install(monkeypatch)
        return fake

    return install


def test_a_file_that_cannot_be_registered_says_why(registering, raw):
    registering(2)
    contents, failure = host_memory.mapped_file(raw, torch.device("cuda", 0))
    assert failure == "out of memory" and contents.numel() == ARRAY.nbytes


def test_a_file_is_registered_for_reading_alone(registering, raw):
    fake = registering(0)
    contents, failure = host_memory.mapped_file(raw, torch.device("cuda", 0))
    assert failure == "" and fake.registered == [(contents.data_ptr(), ARRAY.nbytes, 11)]
