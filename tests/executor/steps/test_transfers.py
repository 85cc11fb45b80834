"""The operators that copy to the host and back, and the pool of host memory under them."""

from __future__ import annotations

import ctypes
import gc
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.steps import pinned
from loadmaster.executor.steps.pinned import HostPool
from loadmaster.executor.steps.transfers import fetch, fetched, send, sent

DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def there_and_back(x: torch.Tensor, stride: tuple[int, ...] | None = None) -> torch.Tensor:
    layout = list(stride or x.stride())
    host = send(x, layout)
    sent(x, host)
    assert host.device.type == "cpu" and host.shape == (x.numel(),)
    result = fetch(host, list(x.shape), layout, x.device)
    fetched(result, host)
    assert result.stride() == tuple(layout) and result.device == x.device
    assert result.data_ptr() != x.data_ptr() or not x.numel()
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_what_arrives_is_what_was_sent(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, 6, device=device).mul(3).to(dtype)
    for y in (x, x.to(memory_format=torch.channels_last), x.permute(3, 1, 0, 2), x[:, 1:, ::2], x[:1], x[:0], x.sum()):
        assert torch.equal(there_and_back(y), y)


def test_a_source_in_another_layout_arrives_in_the_promised_one(device: torch.device) -> None:
    x = torch.randn(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    assert torch.equal(there_and_back(x, (60, 20, 5, 1)), x)


@pytest.mark.parametrize("op", [send, sent, fetch, fetched])
def test_the_operators_are_what_their_schemas_say(device: torch.device, op: torch._ops.OpOverload) -> None:
    x, host = torch.randn(4, 6, device=device), torch.randn(24)
    arguments = {send: (x, [6, 1]), sent: (x, host), fetch: (host, [4, 6], [6, 1], device), fetched: (x, host)}[op]
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


def test_blocks_are_used_again_when_nobody_holds_them() -> None:
    pool = HostPool(pinned=False, slab_bytes=4096)
    first = pool.take(1000)
    view = first[10:20]
    address = first.data_ptr()
    del first
    assert pool.take(1000).data_ptr() != address  # a view holds it
    del view
    assert pool.take(1000).data_ptr() == address
    assert pool.held_bytes == 4096
    long = pool.take(5000)  # longer than a slab
    assert long.numel() == 5000 and pool.held_bytes == 4096 + 5120
    rest = pool.take(3000)  # what is left of the first slab
    assert rest.numel() == 3000 and pool.held_bytes == 4096 + 5120
    assert pool.take(0).numel() == 0


def test_a_pool_knows_what_fits_without_more() -> None:
    pool = HostPool(pinned=False, slab_bytes=4096)
    assert not pool.fits(1000, 4095) and pool.fits(1000, 4096)
    first = pool.take(3000)
    assert pool.fits(1000, 0) and not pool.fits(3000, 0) and not pool.fits(5000, 5119) and pool.fits(5000, 5120)
    second = pool.take(1000)
    del first
    assert pool.fits(3000, 0) and not pool.fits(2000, 0)  # blocks go to others of their size
    del second
    assert pool.fits(2000, 0) and pool.fits(4096, 0)  # until all are back


def test_blocks_of_another_plan_are_cut_anew() -> None:
    pool = HostPool(pinned=False, slab_bytes=4096)
    blocks = [pool.take(1024) for _ in range(4)]
    assert pool.held_bytes == 4096
    del blocks
    gc.collect()
    blocks = [pool.take(2048) for _ in range(2)]
    assert pool.held_bytes == 4096
    assert blocks[0].data_ptr() != blocks[1].data_ptr()


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    dying=st.lists(st.integers(0, 29), max_size=30),
)
def test_blocks_never_overlap(sizes: list[int], dying: list[int]) -> None:
    pool = HostPool(pinned=False, slab_bytes=4096)
    held: dict[int, torch.Tensor] = {}
    for n, size in enumerate(sizes):
        held[n] = pool.take(size).fill_(n)
        for m in dying[n : n + 1]:
            held.pop(m, None)
        for m, block in held.items():
            assert bool((block == m).all())


def test_memory_that_cannot_be_pinned_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory\nCompile with ...")

    monkeypatch.setattr(pinned, "_page_locked", refuse)
    with pytest.raises(InputError, match="cannot be pinned for offloaded results: CUDA error: out of memory") as found:
        HostPool().take(100)
    assert "capacity_bytes" in str(found.value)


def test_more_than_the_host_has_left_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "available_host_bytes", lambda: 1 << 20)
    with pytest.raises(InputError, match="cannot be pinned for offloaded results: the host has 1048576 bytes left"):
        HostPool().take(1)  # a slab is larger


class Runtime:
    """CUDA's functions for memory of the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> None:
        self.locked: dict[int, int] = {}
        self.fails, self.unlocked = fails, 0
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "check_error", self.check)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def check(self, error: int) -> None:
        if error:
            raise RuntimeError("CUDA error: out of memory")

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        self.locked[address] = size_bytes
        return int(self.fails)

    def cudaHostUnregister(self, address: int) -> int:
        assert set(ctypes.string_at(address, self.locked.pop(address))) == {7}  # it is still there
        self.unlocked += 1
        return 0


def test_memory_is_locked_as_long_as_somebody_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch)
    pool = HostPool(slab_bytes=1 << 16)
    block = pool.take(1 << 16).fill_(7)
    assert list(runtime.locked.items()) == [(block.data_ptr(), 1 << 16)]
    assert block.data_ptr() % 4096 == 0
    del pool
    gc.collect()
    assert runtime.unlocked == 0
    del block
    gc.collect()
    assert runtime.unlocked == 1 and not runtime.locked


def test_locked_pages_are_not_those_of_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux would copy a page that both write, and the device would go on with the one that the child has."""
    Runtime(monkeypatch)
    block = HostPool(slab_bytes=1 << 16).take(1 << 16).fill_(7)
    size = f"{block.data_ptr():x}-"
    maps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    (flags,) = (after.splitlines()[0] for before, after in itertools.pairwise(maps) if size in before)
    assert "dc" in flags.split()  # do not copy on fork


def test_what_cuda_does_not_lock_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    Runtime(monkeypatch, fails=True)
    with pytest.raises(InputError, match="cannot be pinned for offloaded results: CUDA error: out of memory"):
        HostPool(slab_bytes=1 << 16).take(1)


@pytest.mark.gpu
def test_pinned_blocks_are_read_and_written_by_copies_of_the_device() -> None:
    pool = HostPool()
    block = pool.take(1000)
    assert block.is_pinned() and block.data_ptr() % 4096 == 0
    there = torch.arange(1000, device="cuda").to(torch.uint8)
    block.copy_(there, non_blocking=True)
    back = torch.empty_like(there)
    back.copy_(block, non_blocking=True)
    torch.cuda.synchronize()
    assert back.tolist() == there.tolist() == block.tolist()
    del pool, block
    gc.collect()
    assert HostPool().take(1 << 29).is_pinned()
