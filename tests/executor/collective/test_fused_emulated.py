"""The kernel's own source, compiled for a CPU: blocks as threads, with the launches that a GPU would get."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from loadmaster.executor.collective.fused import kernel
from loadmaster.executor.collective.fused.kernel import Launch, launch_of
from loadmaster.executor.collective.fused.table import Table
from tests.executor.collective.simulator import Call
from tests.executor.collective.test_fused_table import (
    CASES,
    PROTOCOLS,
    algorithm,
    buffers,
    call_of,
    case,
    check,
    table,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")

VARIANTS = tuple(f"{protocol}_{element}" for protocol in PROTOCOLS for element in ("float32", "bfloat16", "float16"))
FLAGS, SLOTS = 1 << 15, 1 << 16
REGIONS = 2 * FLAGS + 4 * SLOTS


class Emulator:
    """Ranks with arenas in this process."""

    def __init__(self, library: ctypes.CDLL, count: int, timeout_s: float = 60.0) -> None:
        self.library, self.count, self.timeout_s = library, count, timeout_s
        self.arenas = [np.zeros(REGIONS + 16, dtype=np.uint8) for _ in range(count)]
        for arena in self.arenas:
            arena[2 * FLAGS + 2 * SLOTS :] = 0xFF  # simple slots; packed ones and flags begin as zeros
        self.shared = [0] * count
        self.state = np.zeros((count, 4), dtype=np.uint64)
        self.failure = np.zeros((count, kernel.FAILURE_WORDS), dtype=np.int64)

    def run(self, calls: list[Call], variants: list[str], threads: int = 4, absent: tuple[int, ...] = ()) -> None:
        launches = (Launch * (self.count * len(calls)))()
        streams = (ctypes.c_int * len(launches))()
        kinds = (ctypes.c_int * len(launches))()
        for rank in range(self.count):
            for number, call in enumerate(calls):
                at = rank * len(calls) + number
                launches[at] = self._launch(call, rank)
                streams[at] = len(call.table.streams[rank])
                kinds[at] = VARIANTS.index(variants[number])
        gone = (ctypes.c_int * self.count)(*(rank in absent for rank in range(self.count)))
        self.library.run(self.count, len(calls), threads, launches, streams, kinds, gone)

    def _launch(self, call: Call, rank: int) -> Launch:
        t = call.table
        packed = t.protocol == "packed"
        assert t.flag_count * 8 <= FLAGS and t.arena_bytes <= SLOTS
        launch = launch_of(
            t,
            rank,
            t.words[rank].ctypes.data,
            table=7,
            input=call.inputs[rank].ctypes.data,
            output=call.outputs[rank].ctypes.data,
            state=self.state[rank].ctypes.data,
            failure=self.failure[rank].ctypes.data,
            timeout_ns=int(self.timeout_s * 1e9),
            flags_offset=0,
            flags_bytes=FLAGS,
            slots_offset=2 * FLAGS + (0 if packed else 2 * SLOTS),
            slots_bytes=SLOTS,
        )
        for peer, arena in enumerate(self.arenas):
            launch.arenas[peer] = -(-arena.ctypes.data // 16) * 16
        launch.shared[: self.count] = self.shared
        return launch


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The source as a library; the structure of a launch is the one that Python has."""
    here = Path(__file__).parent
    built = tmp_path_factory.mktemp("emulator") / "emulator.so"
    sources = Path(kernel.__file__).parent
    flags = ["-std=c++20", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["g++", *flags, "-I", sources, "-o", built, here / "emulator.cpp"], check=True, timeout=120)
    found = ctypes.CDLL(str(built))
    assert found.launch_bytes() == ctypes.sizeof(Launch) <= 4096
    return found


def plain(t: Table) -> str:
    return f"{t.protocol}_float32"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("collective", "shape"), CASES)
def test_calls_one_after_another(library: ctypes.CDLL, collective: str, shape: str, protocol: str) -> None:
    p = case(collective, 3)
    calls, wanted = [], []
    for number, block in enumerate((36, 4, 520, 260)):
        inputs, expected = buffers(p, block, number)
        # Every second call with the other protocol: they share numbers and parities.
        of = protocol if number % 2 == 0 else next(other for other in PROTOCOLS if other != protocol)
        rounds = 1 if of == "packed" else 1 + number % 3
        t = table(p, algorithm(p, 2, shape), block, of, 1 + number % 2, rounds, (1, 2))  # type: ignore[arg-type]
        calls.append(call_of(t, inputs, expected))
        wanted.append(expected)
    emulator = Emulator(library, 3)
    emulator.run(calls, [plain(call.table) for call in calls])
    for call, expected in zip(calls, wanted, strict=True):
        check(call, expected)
    assert not emulator.failure.any()
    assert emulator.state[:, 0].tolist() == [sum(call.table.rounds for call in calls)] * 3
    assert emulator.state[:, 1:].tolist() == [[4, 0, 0]] * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", ["direct", "gather"])
def test_sums_are_those_of_torch(library: ctypes.CDLL, dtype: torch.dtype, shape: str, protocol: str) -> None:
    p = case("allreduce", 4)
    t = table(p, algorithm(p, 1, shape), 257 * dtype.itemsize, protocol, 2)  # type: ignore[arg-type]
    torch.manual_seed(0)
    # One element off: nothing is aligned.
    given = [torch.randn(258, dtype=torch.float32).to(dtype)[1:] for _ in range(4)]
    total = given[0].float()
    for one in given[1:]:
        total = total + one.float()
    made = [torch.full_like(one, float("nan")) for one in given]
    call = Call(
        t,
        [one.view(torch.uint8).numpy() for one in given],
        [one.view(torch.uint8).numpy() for one in made],
    )
    Emulator(library, 4).run([call], [kernel.kernel_name(t.protocol, dtype)])
    for one in made:
        assert torch.equal(one, total.to(dtype))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", ["direct", "gather", "ring"])
def test_in_place(library: ctypes.CDLL, shape: str, protocol: str) -> None:
    p = case("allreduce", 4)
    t = table(p, algorithm(p, 1, shape), 1000, protocol, 2, 1 if protocol == "packed" else 2, (2, 2))  # type: ignore[arg-type]
    inputs, expected = buffers(p, 1000, 0)
    call = call_of(t, inputs, expected)
    call.inputs = call.outputs = [i.copy() for i in call.inputs]
    Emulator(library, 4).run([call], [plain(t)])
    check(call, expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("chunks", [40, 120])
def test_long_programs(library: ctypes.CDLL, chunks: int, protocol: str) -> None:
    """Too long for a launch, then for a block's memory, too."""
    p = case("alltoall", 4)
    t = table(p, algorithm(p, chunks, "direct"), 16 * chunks, protocol, 1)  # type: ignore[arg-type]
    assert not kernel.fits_inline(t, 0)
    inputs, expected = buffers(p, 16 * chunks, 0)
    call = call_of(t, inputs, expected)
    Emulator(library, 4).run([call], [plain(t)])
    check(call, expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_a_rank_that_never_begins_is_named(library: ctypes.CDLL, collective: str, protocol: str) -> None:
    p = case(collective, 3)
    t = table(p, algorithm(p, 1, "direct"), 64, protocol)  # type: ignore[arg-type]
    inputs, expected = buffers(p, 64, 0)
    emulator = Emulator(library, 3, timeout_s=0.2)
    emulator.run([call_of(t, inputs, expected)], [plain(t)], absent=(0,))
    for rank in (1, 2):
        said, of, stream, _lane, _turn, word, operand, wanted, seen = emulator.failure[rank].tolist()
        assert said == 1 and of == 7 and seen < (wanted & 0xFFFFFFFF)
        assert t.describe(rank, stream, word) != "the end of its stream"
        awaited = t.awaited(rank, stream, word, operand)
        assert awaited.peer == 0 if collective == "broadcast" else awaited.peer != rank
    # Its kernel ended all the same, and counted.
    assert emulator.state[1, 1:3].tolist() == [1, 0]
