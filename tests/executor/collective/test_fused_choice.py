"""How calls are cut into launches and spread over blocks, and that they are right on a simulated machine."""

from __future__ import annotations

import pytest

from loadmaster.errors import InputError
from loadmaster.executor.collective.fused.arena import Capacity
from loadmaster.executor.collective.fused.choice import Limits, choose
from loadmaster.executor.collective.fused.engine import tables_of
from loadmaster.executor.collective.fused.operations import block_count, cut_of, operations_of
from loadmaster.models.collective.lowering import lower
from tests.executor.collective.simulator import Call, Machine
from tests.executor.collective.test_fused_table import CASES, algorithm, buffers, call_of, case, check

KIB, MIB = 1 << 10, 1 << 20
SMALL = Capacity(flags_bytes=2 * KIB, packed_bytes=16 * KIB, simple_bytes=8 * KIB)


@pytest.mark.parametrize("limits", [Limits(6, 500, 32, 256, 4), Limits(2, 0, 32, 64, 16), Limits(16, 1 << 30)])
@pytest.mark.parametrize(("collective", "shape"), CASES)
def test_launches_of_a_call_do_it(collective: str, shape: str, limits: Limits) -> None:
    p = case(collective, 4)
    a = algorithm(p, 1, shape)
    machine = Machine(4, 5)
    for block in (20, 9000):
        inputs, expected = buffers(p, block, block)
        launches = tables_of(p, a, lower(p, a), block * block_count(p), limits, SMALL)
        whole = call_of(launches[0][1], inputs, expected)
        machine.run([Call(t, [i[at:] for i in whole.inputs], [o[at:] for o in whole.outputs]) for at, t in launches])
        machine = Machine(4, block)
        check(whole, expected)
        for _, t in launches:
            assert t.arena_bytes <= SMALL.slots(t.protocol)[1]
            assert t.flag_count * 8 <= 2 * KIB
            assert all(len(of_rank) * t.lanes <= max(limits.blocks, 3) for of_rank in t.streams)


def test_small_calls_are_packed_and_large_ones_fill_the_blocks() -> None:
    p = case("allreduce", 8)
    for shape, size, protocol, lanes in (
        ("gather", 1 * KIB, "packed", 1),
        ("gather", 64 * KIB, "packed", 64),
        ("direct", 256 * KIB, "packed", 8),
        ("direct", 1 * MIB, "simple", 16),
        ("gather", 1 * MIB, "simple", 64),
        ("gather", 24 * MIB, "simple", 64),
        ("direct", 256 * MIB, "simple", 32),
    ):
        a = algorithm(p, 1, shape)
        chosen = choose(operations_of(lower(p, a), cut_of(p, a, size)), Limits())
        assert (chosen.protocol, chosen.lanes) == (protocol, lanes)
        assert chosen.rounds == (1 if size <= 24 * MIB else 9)  # three pieces are not worth it
        assert chosen.threads == (128 if size <= 64 * KIB else 512)


def test_what_no_launch_can_hold_is_refused() -> None:
    p = case("alltoall", 4)
    a = algorithm(p, 1, "direct")
    with pytest.raises(InputError, match="capacity"):
        tables_of(p, a, lower(p, a), 4 * 4096, Limits(packed_bytes=0), Capacity(simple_bytes=1 * KIB))


def test_sizes_that_do_not_divide_are_refused() -> None:
    p = case("alltoall", 4)
    a = algorithm(p, 1, "direct")
    with pytest.raises(InputError, match="4 blocks"):
        tables_of(p, a, lower(p, a), 4 * 16 + 2, Limits(), Capacity())
