"""Collectives on shared memory: right data in any order on a simulated machine, and from the kernel's own source."""

from __future__ import annotations

import ctypes
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.collective.calls import Case
from loadmaster.executor.collective.fused.arena import Region
from loadmaster.executor.collective.fused.shared import SHARED, shared_is_input, shared_table
from tests.executor.collective.simulator import Call, DeadlockError, Machine
from tests.executor.collective.test_fused_emulated import Emulator, library, plain
from tests.executor.collective.test_fused_engine import CPU, Node
from tests.executor.collective.test_fused_table import buffers, call_of, case, check

__all__ = ["library"]  # the fixture
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def calls(
    collective: str, count: int, seed: int, largest: int = 20_000, blocks: int = 3
) -> tuple[list[Call], list[list[Any]]]:
    """Calls of three sizes, and what must come out; an AllReduce is in place."""
    p = case(collective, count)
    made, wanted = [], []
    for number, block in enumerate((36, 4, largest)):
        inputs, expected = buffers(p, block, seed + number)
        size = block if collective == "allreduce" else block * count
        call = call_of(shared_table(collective, count, size, 3, 8 << 10), inputs, expected)  # type: ignore[arg-type]
        if collective == "allreduce":
            call.outputs = call.inputs
        made.append(call)
        wanted.append(expected)
    return made, wanted


@pytest.mark.parametrize("collective", SHARED)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_data_is_right_in_any_order(collective: str, count: int) -> None:
    for seed, blocks in enumerate((1, 3, 40)):
        made, wanted = calls(collective, count, seed, blocks=blocks)
        Machine(count, seed).run(made)
        for call, expected in zip(made, wanted, strict=True):
            check(call, expected)


@pytest.mark.parametrize("collective", SHARED)
def test_nobody_is_written_to_who_has_not_begun_nor_left_before_all_are_done(collective: str) -> None:
    """The same buffer call after call: what one call leaves is the next one's."""
    p = case(collective, 3)
    inputs, expected = buffers(p, 360, 0)
    size = 360 if collective == "allreduce" else 3 * 360
    t = shared_table(collective, 3, size, 2, 8 << 10)  # type: ignore[arg-type]
    call = call_of(t, inputs, expected)
    if collective == "allreduce":
        call.outputs = call.inputs
        expected = [None if e is None else 9 * e for e in expected]  # added up three times
    Machine(3, 1).run([call, call, call])
    check(call, expected)
    with pytest.raises(DeadlockError):
        Machine(3, 1).run([call], stalled=1)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("collective", SHARED)
def test_the_kernel_does_it(library: ctypes.CDLL, collective: str) -> None:
    made, wanted = calls(collective, 3, 0, 9000)
    emulator = Emulator(library, 3)
    for call, expected in zip(made, wanted, strict=True):
        shared = call.inputs if shared_is_input(collective) else call.outputs  # type: ignore[arg-type]
        emulator.shared = [one.ctypes.data for one in shared]
        emulator.run([call], [plain(call.table)])
        check(call, expected)
    assert not emulator.failure.any()


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("collective", SHARED)
def test_the_engine_knows_shared_memory(
    monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL, collective: str, dtype: torch.dtype
) -> None:
    node = Node(monkeypatch, collective, 3)
    memories = [torch.zeros(100_000, dtype=torch.uint8) for _ in range(3)]
    for one in node.engines:
        assert one._arena is not None
        own = memories[one._arena.rank]
        one._arena.regions.append(Region(own, tuple(memory.data_ptr() for memory in memories)))
    # The first is small and goes through the arena; the others begin somewhere in the memory.
    for at, size in ((0, 3 * 44), (160, 3 * 1004), (7 * 16, 3 * 20_004)):
        of_size = [Case(collective, size, dtype, rank, 3, CPU) for rank in range(3)]  # type: ignore[arg-type]
        results, held = [], []
        for of_rank, made, memory in zip(of_size, node.engines, memories, strict=True):
            given, output = of_rank.input_of(of_rank.rank), of_rank.empty()
            shared = given if shared_is_input(made.problem.collective) else output
            part = memory[at : at + shared.nbytes].view(dtype)
            if shared is given:
                given = part.copy_(given)
            elif collective == "allreduce":
                given = output = part.copy_(given)
            else:
                output = part
            made.run(made.plan.algorithm_for(size), output, given, torch.distributed.ReduceOp.SUM, size)
            results.append(output)
            held.append(given)  # launches have its address
        launched = [launch for _, _, launch in node.written[0].launches]
        assert len(launched) == 1 and bool(launched[0].shared[1]) == (size > 1000)
        node.play(library)
        for of_rank, output in zip(of_size, results, strict=True):
            assert torch.equal(output, of_rank.expected())


def test_what_is_not_shared_goes_through_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, "allreduce", 2)
    made = node.engines[0]
    assert made._arena is not None
    memory = torch.zeros(8192, dtype=torch.uint8)
    made._arena.regions.append(Region(memory, (memory.data_ptr(), 0)))
    elsewhere = torch.zeros(1500)
    inside, behind = memory[:6000].view(torch.float32), memory[4096:].view(torch.float32)
    for output, given in ((elsewhere, elsewhere), (inside, elsewhere), (elsewhere, inside)):
        made.run(made.plan.algorithm_for(6000), output, given, torch.distributed.ReduceOp.SUM, 6000)
        assert not node.written[0].launches[-1][2].shared[0]
    made.run(made.plan.algorithm_for(4096), behind, behind, torch.distributed.ReduceOp.SUM, 4096)
    assert node.written[0].launches[-1][2].shared[0] == memory.data_ptr()
    assert np.array_equal(memory.numpy(), np.zeros(8192, dtype=np.uint8))


def test_blocks_have_room_for_their_flags() -> None:
    for flags_bytes, lanes in ((1 << 20, 64), (2048, 18), (64, 1)):
        made = shared_table("allreduce", 8, 64 << 20, 64, flags_bytes)
        assert made.lanes == lanes and (made.flag_count * 8 <= flags_bytes or lanes == 1)
