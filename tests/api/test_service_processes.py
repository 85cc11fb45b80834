"""Work in processes of its own: bounded in number, memory, time and bytes, and ended when nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from running_service import alive, pids

from loadmaster.api.server.keys import Caller
from loadmaster.api.server.places import Places
from loadmaster.api.server.problems import Refusal
from loadmaster.api.server.processes.pool import Pool
from loadmaster.api.server.processes.process import BrokenWorkError, Work
from loadmaster.api.store.keys import Scope

MEBIBYTE = 1 << 20
LONG_S = 600.0
MakePool = Callable[..., Pool]


@pytest.fixture
async def make_pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakePool]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pools: list[Pool] = []

    def make(processes: int = 1, memory_bytes: int = 0) -> Pool:
        pools.append(Pool(processes, memory_bytes, "a_setting"))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


async def test_work_that_nobody_waits_for_is_ended_and_its_place_is_free(make_pool: MakePool, tmp_path: Path) -> None:
    pool, marker = make_pool(), tmp_path / "pids"
    doing = asyncio.create_task(pool.do(Work("odd_work:endless", LONG_S, (str(marker),))))
    while not pids(marker):
        await asyncio.sleep(0.02)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    # There is one place: this would wait for ever.
    assert await pool.do(Work("odd_work:noted", LONG_S, (str(tmp_path / "other"),))) != pids(marker)[0]
    while alive(pids(marker)[0]):
        await asyncio.sleep(0.02)


async def test_work_that_waits_for_its_turn_can_leave(make_pool: MakePool, tmp_path: Path) -> None:
    pool, marker = make_pool(), tmp_path / "pids"
    doing = asyncio.create_task(pool.do(Work("odd_work:endless", LONG_S, (str(marker),))))
    while not pids(marker):
        await asyncio.sleep(0.02)
    waiting = asyncio.create_task(pool.do(Work("odd_work:endless", LONG_S, (str(tmp_path / "never"),))))
    await asyncio.sleep(0)
    for task in (waiting, doing):
        task.cancel()
    await asyncio.wait((waiting, doing))
    assert pids(tmp_path / "never") == []


async def test_memory_time_and_files_have_caps(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(memory_bytes=512 * MEBIBYTE)
    with pytest.raises(BrokenWorkError, match=r"more memory than it may \(536870912 bytes: a_setting\)") as broken:
        await pool.do(Work("odd_work:greedy", LONG_S, (1024 * MEBIBYTE,)))
    assert not broken.value.by_chance
    with pytest.raises(BrokenWorkError, match=r"longer than 0\.5 seconds"):
        await pool.do(Work("odd_work:endless", 0.5, (str(tmp_path / "pids"),)))
    with tempfile.TemporaryFile() as file:
        for size_bytes in (1000, 2000):
            work = Work("odd_work:write", LONG_S, (size_bytes,), (b"0123456789",), file, largest_file_bytes=1500)
            if size_bytes <= 1500:
                assert await pool.do(work) is None
                assert file.seek(0, 2) == 1000
                continue
            file.truncate(0)
            with pytest.raises(OSError) as refused:
                await pool.do(work)
            assert refused.value.errno == errno.EFBIG
    # After all of that it works.
    assert await pool.do(Work("odd_work:greedy", LONG_S, (10,))) == 10


async def test_work_whose_process_dies_is_tried_twice(make_pool: MakePool) -> None:
    with pytest.raises(BrokenWorkError, match="SIGKILL") as broken:
        await make_pool().do(Work("odd_work:crash", LONG_S))
    assert broken.value.by_chance


async def test_a_pool_that_closes_refuses_what_it_does(make_pool: MakePool, tmp_path: Path) -> None:
    pool, marker = make_pool(), tmp_path / "pids"
    doing = asyncio.create_task(pool.do(Work("odd_work:endless", LONG_S, (str(marker),))))
    while not pids(marker):
        await asyncio.sleep(0.02)
    pool.close()
    with pytest.raises(Refusal) as refused:
        await doing
    assert refused.value.status == 503


def test_places_are_counted_of_each_and_of_all() -> None:
    places = Places("things", 3, 2)

    def take(name: str | None) -> contextlib.AbstractContextManager[None]:
        return places.take(Caller(name, Scope.READ))

    def refused(name: str | None) -> Refusal:
        with pytest.raises(Refusal) as error:
            take(name).__enter__()
        return error.value

    with take("ann"), take("ann"):
        assert (refused("ann").status, str(refused("ann"))[:26]) == (429, "ann has 2 things under way")
        with take("bob"):
            assert (refused("cid").status, refused("cid").headers) == (503, {"Retry-After": "5"})
        with take("cid"):
            pass
    # Where there are no keys, one caller is all.
    with take(None), take(None), take(None):
        assert refused(None).status == 503
