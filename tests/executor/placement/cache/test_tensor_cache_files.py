"""Files under a tensor cache: what disks do, and what is left when something goes wrong."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor import TensorCache
from loadmaster.executor.placement.cache.backends import files
from loadmaster.executor.placement.cache.backends.files import Files
from loadmaster.executor.steps import spill_file
from loadmaster.executor.steps.measure import cpu_peak_bytes
from loadmaster.executor.steps.pinned import HostPool
from loadmaster.executor.steps.spill_file import SpillFile
from tests.executor.placement.cache.small_models import LEAST, batch, blocks, expect_equal, gradients, small_files

THREADS = "tensor-cache-"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """No thread, no name and no open file outlives a test."""
    before = open_files(tmp_path)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    assert not list(tmp_path.iterdir()) and open_files(tmp_path) == before


def open_files(folder: Path) -> int:
    """Of this process, in a folder, deleted ones included."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(entry))
        except OSError:
            continue
    return sum(name.startswith(str(folder)) for name in names)


def stored_and_loaded(files: Files, source: torch.Tensor) -> torch.Tensor:
    stored = files.store(source)
    assert stored is not None
    stored.wait()
    assert stored.over() and stored.failure() is None
    target = torch.zeros_like(source)
    load = files.load(stored, target)
    load.wait()
    assert load.failure() is None
    files.free(stored)
    return target


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(0, 30_000), min_size=1, max_size=6), folders=st.integers(1, 3))
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], folders: int):
    files = small_files(*[tmp_path_factory.mktemp("striped") for _ in range(folders)], threads=2)
    try:
        for size in sizes:
            source = torch.randint(0, 256, (size,), dtype=torch.uint8)
            assert torch.equal(stored_and_loaded(files, source), source)
        assert files.counters().written_bytes == files.counters().read_bytes == sum(sizes)
    finally:
        files.close()


def test_a_tensor_is_striped_over_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {}
    write = SpillFile.write

    def note(self: SpillFile, slot: int, block: torch.Tensor) -> None:
        written.setdefault(id(self), []).append(block.numel())
        assert not block.data_ptr() % 4096 and not block.numel() % 4096
        write(self, slot, block)

    monkeypatch.setattr(SpillFile, "write", note)
    files = small_files(tmp_path, tmp_path)
    stored_and_loaded(files, torch.ones(4096 * 5 + 1, dtype=torch.uint8))
    files.close()
    assert sorted(map(len, written.values())) == [3, 3]


def test_slots_are_used_again(tmp_path: Path) -> None:
    files = small_files(tmp_path)
    taken = set()
    for _ in range(40):
        stored = files.store(torch.ones(10_000, dtype=torch.uint8))
        stored.wait()
        taken |= {slot for _, slot in stored.slots}
        files.free(stored)
    files.close()
    assert len(taken) <= 6


@pytest.mark.parametrize("refused", ["O_DIRECT", "O_TMPFILE", "both"])
def test_file_systems_that_lack_something(refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: object, flags: int, mode: int = 0o777, **more: object) -> int:
        if refused != "O_TMPFILE" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        if refused != "O_DIRECT" and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opened(path, flags, mode, **more)

    monkeypatch.setattr(spill_file.os, "open", refuse)
    model = blocks()
    plain = gradients(model)
    cache = TensorCache(model, tmp_path, keep=0, min_bytes=LEAST, window=0)
    expect_equal(gradients(model, cache), plain)
    assert not list(tmp_path.iterdir())
    notes = cache.stats().notes
    assert ("page_cache" in notes) == (refused != "O_TMPFILE") and notes["gpu_direct"].startswith("no")
    if "page_cache" in notes:
        assert str(tmp_path) in str(cache.stats())
    cache.close()


class TestFaults:
    """Each leaves gradients right or raises, in words: which folder, how much, what to do."""

    def broken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., object], words: str
    ) -> None:
        """A step whose stores fail, then one whose stores do not."""
        model = blocks()
        plain = gradients(model)
        model.zero_grad()
        cache = TensorCache(model, tmp_path, keep=0, min_bytes=LEAST, window=0)
        with monkeypatch.context() as patch:
            patch.setattr(spill_file.os, name, fault)
            with pytest.raises(InputError, match=words) as found, cache:
                model(batch()).square().mean().backward()
        assert str(tmp_path) in str(found.value) and found.value.remedy
        expect_equal([p.grad for p in model.parameters()], plain)  # told when the gradients were there
        assert not open_files(tmp_path)  # the exception closed it
        expect_equal(gradients(model, cache), plain)
        cache.close()

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
    def test_a_disk_that_is_full_or_fails(self, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        self.broken(tmp_path, monkeypatch, "pwrite", refuse, os.strerror(code))

    def test_a_disk_without_room_for_more_slots(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self.broken(tmp_path, monkeypatch, "posix_fallocate", refuse, "cannot be grown: No space left")

    def test_a_disk_that_takes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken(tmp_path, monkeypatch, "pwrite", lambda *_: 0, "No space left")

    def test_a_write_that_takes_a_part_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = os.pwrite
        monkeypatch.setattr(spill_file.os, "pwrite", lambda fd, data, at: write(fd, data[:4096], at))
        files = Files([tmp_path], threads=1, chunk_bytes=16384)
        source = torch.randint(0, 256, (16384,), dtype=torch.uint8)
        assert torch.equal(stored_and_loaded(files, source), source)
        files.close()

    def test_a_nearly_full_disk_grows_by_what_is_needed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        grow = os.posix_fallocate

        def little(fd: int, offset: int, length: int) -> None:
            if length > 4096:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            grow(fd, offset, length)

        monkeypatch.setattr(spill_file.os, "posix_fallocate", little)
        files = small_files(tmp_path)
        source = torch.randint(0, 256, (20_000,), dtype=torch.uint8)
        assert torch.equal(stored_and_loaded(files, source), source)
        files.close()

    @pytest.mark.parametrize("how", ["cut", "fails"])
    def test_what_cannot_be_read_back(self, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model = blocks()
        cache = TensorCache(model, tmp_path, keep=0, min_bytes=LEAST, window=0)

        def fail(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        words = "ends before what was written" if how == "cut" else "cannot be read back: Input/output error"
        with pytest.raises(InputError, match=words) as found, cache:
            loss = model(batch()).square().mean()
            if how == "cut":
                assert cache._home.traffic is not None
                os.ftruncate(cache._home.traffic.backend._files[0]._descriptor, 0)
            else:
                monkeypatch.setattr(spill_file.os, "preadv", fail)
            loss.backward()
        assert str(tmp_path) in str(found.value)
        assert not open_files(tmp_path)

    @pytest.mark.parametrize("folder", ["missing", "a file", "forbidden"])
    def test_folders_that_cannot_be_used(self, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "scratch"
        if folder == "a file":
            path.write_text("")
        if folder == "forbidden":

            def refuse(*_: object) -> int:
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))

            path = tmp_path
            monkeypatch.setattr(spill_file.os, "open", refuse)
        words = {"missing": "No such file", "a file": "Not a directory", "forbidden": "Permission denied"}[folder]
        with pytest.raises(InputError, match=words) as found, TensorCache(blocks(), [tmp_path, path]):
            raise AssertionError("entered")
        assert str(path) in str(found.value)
        monkeypatch.undo()
        if folder == "a file":
            path.unlink()

    def test_an_exception_leaves_no_memory_and_no_file(self, tmp_path: Path) -> None:
        model = blocks()
        cache = TensorCache(model, tmp_path, keep=0, min_bytes=LEAST)
        with pytest.raises(KeyError), cache:
            loss = model(batch()).square().mean()
            assert open_files(tmp_path)
            raise KeyError
        assert not open_files(tmp_path) and loss.isfinite()

    def test_a_thread_that_is_ended(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its own job fails, and what is queued behind it fails too where it was the last thread."""
        entered, write = threading.Event(), SpillFile.write

        def slow(self: SpillFile, slot: int, block: torch.Tensor) -> None:
            entered.set()
            while True:
                pass_on.wait(0.001)

        pass_on = threading.Event()
        monkeypatch.setattr(SpillFile, "write", slow)
        model = blocks()
        plain = gradients(model)
        model.zero_grad()
        files = small_files(tmp_path)
        cache = TensorCache(model, files, keep=0, min_bytes=LEAST, window=1 << 20)
        with pytest.raises(LoadmasterError, match="was ended from outside"), cache:
            loss = model(batch()).square().mean()
            assert entered.wait(60)
            (writer,) = files._stores.threads
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(writer.ident), ctypes.py_object(SystemExit))
            writer.join(60)
            assert not writer.is_alive()
            loss.backward()
        expect_equal([p.grad for p in model.parameters()], plain)
        monkeypatch.setattr(SpillFile, "write", write)
        with pytest.raises(LoadmasterError, match="was ended from outside"):
            gradients(model, TensorCache(model, files, keep=0, min_bytes=LEAST, window=0))
        files.close()

    def test_a_reader_that_is_ended(self, tmp_path: Path) -> None:
        model, files = blocks(), small_files(tmp_path)
        cache = TensorCache(model, files, keep=0, min_bytes=LEAST, window=0)
        with pytest.raises(LoadmasterError, match="was ended from outside"), cache:
            loss = model(batch()).square().mean()
            (reader,) = files._loads.threads
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(reader.ident), ctypes.py_object(SystemExit))
            loss.backward()
        files.close()


def test_a_slow_disk_is_forwarded_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a disk that stands still while the tensors are on the device."""
    go, write = threading.Event(), SpillFile.write

    def stands_still(self: SpillFile, slot: int, block: torch.Tensor) -> None:
        assert go.wait(60)
        write(self, slot, block)

    monkeypatch.setattr(SpillFile, "write", stands_still)
    model = blocks()
    plain = gradients(model)
    cache = TensorCache(model, tmp_path, keep=0, min_bytes=LEAST, window=1 << 30)
    expect_equal(gradients(model, cache), plain)
    stats = cache.stats()
    assert not stats.loaded_bytes and stats.cancelled_bytes and stats.forwarded_bytes
    go.set()
    cache.close()


def test_the_peak_is_lower(tmp_path: Path) -> None:
    """Sixteen results of 64 KiB, of which two are on their way at most each way."""
    x = torch.linspace(-1, 1, 1 << 14).requires_grad_()

    def step() -> None:
        y = x
        for _ in range(16):
            y = y.tanh()
        y.sum().backward()
        x.grad = None

    cache = TensorCache(torch.nn.Identity(), small_files(tmp_path), keep=0, min_bytes=LEAST, window=2 << 16)

    def cached_step() -> None:
        with cache:
            step()

    cached_step()
    plain, ours = cpu_peak_bytes(step), cpu_peak_bytes(cached_step)
    assert plain >= 16 << 16 and ours <= 8 << 16, (plain, ours)
    assert cache._home.traffic is not None
    cache._home.traffic.backend.close()


def test_the_pool_aligns_blocks() -> None:
    pool = HostPool(pinned=False, slab_bytes=1 << 15, alignment_bytes=4096)
    blocks_ = [pool.take(size) for size in (4096, 100, 8192, 4096, 20_000)]
    assert not any(block.data_ptr() % 4096 for block in blocks_)
    starts = sorted((block.data_ptr(), block.data_ptr() + block.numel()) for block in blocks_)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(starts))


@pytest.mark.parametrize(
    ("device", "driver", "packages", "words"),
    [
        (False, True, True, "no CUDA device"),
        (True, False, True, "nvidia-fs driver is not loaded"),
        (True, True, False, "neither torch.cuda.gds nor kvikio"),
        (True, True, True, "though this host has it"),
    ],
)
def test_why_gpu_direct_storage_is_not_used(
    device: bool, driver: bool, packages: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device)
    monkeypatch.setattr(files, "_DRIVER", Path("/") if driver else tmp_path / "missing")
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: object() if packages else None)
    assert words in files.gpu_direct.__wrapped__()


@pytest.mark.parametrize("options", [{"threads": 0}, {"chunk_bytes": 1000}, {"chunk_bytes": 0}])
def test_files_that_cannot_be_made(options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        Files([tmp_path], **options)
