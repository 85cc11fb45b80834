"""The benchmark's own plans: direct, and right by the checker of lowered messages."""

from __future__ import annotations

import pytest

from benchmarks.collective.plans import COLLECTIVES, crossover_bytes, direct
from benchmarks.collective_gpu import KIB, MIB, order
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.lowering import lower
from tests.models.collective.message_replay import replay

ROOTED = ("broadcast", "reduce", "scatter", "gather")


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("collective", [*COLLECTIVES, *ROOTED])
def test_direct_plans_do_what_they_are_for(collective: str, ranks: int) -> None:
    problem, plan = direct(collective, ranks)  # type: ignore[arg-type]
    for algorithm in plan.algorithms:
        instance = instance_of(problem, algorithm.size_bytes, algorithm.chunk_count, algorithm.form)
        assert replay(instance, algorithm.sends) == ()
        assert max(m.level for m in lower(problem, algorithm).messages) <= 1


def test_two_hops_begin_earlier_with_more_ranks() -> None:
    assert crossover_bytes(8) < crossover_bytes(4) < crossover_bytes(2)


def test_small_sizes_come_first_and_every_case_once() -> None:
    cases = order(["allreduce", "alltoall"], 64 * MIB, KIB)
    assert len(cases) == len(set(cases)) == 2 * 17
    assert all(size <= MIB for _, size in cases[:22])
