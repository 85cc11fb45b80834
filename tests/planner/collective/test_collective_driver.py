"""The door: problems in, checked tables with proofs out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import CancelledError, InputError
from loadmaster.models.collective.checker import check_plan
from loadmaster.models.collective.problem import Collective, CollectiveProblem, Sketch
from loadmaster.models.kinds import read_plan, write_plan
from loadmaster.planner import PlanOptions, PlanProgress, plan
from tests.models.collective.tiny import EVEN, problem, ring, switched

pytestmark = pytest.mark.slow  # whole plans


def asked(collective: Collective, sizes: tuple[int, ...] = (4096,), **more: object) -> CollectiveProblem:
    root = 0 if collective in ("broadcast", "reduce", "scatter", "gather") else None
    return replace(problem(switched(1, 4), collective, sizes[-1], root=root, **more), sizes_bytes=sizes)


@pytest.mark.parametrize("collective", EVEN)
def test_every_collective_gets_a_checked_plan(collective: Collective) -> None:
    found = plan(asked(collective), PlanOptions(time_limit_s=2.0, gap=0.05))
    assert found.kind == "collective" and found.status in ("optimal", "feasible")
    assert check_plan(asked(collective), found).ok
    assert found.bound is not None and found.objective is not None and found.bound <= found.objective


def test_an_allgather_round_a_ring_is_proved_optimal() -> None:
    # Every rank must be sent 7 chunks over 2 wires: 4 messages of 100 ns and 100 bytes on one of them.
    found = plan(problem(ring(8), "allgather", 800, chunk_counts=(1,)), PlanOptions(time_limit_s=5.0, gap=0.0))
    assert found.algorithms[0].time_ns <= 800
    assert found.algorithms[0].bound_ns <= found.algorithms[0].time_ns


def test_a_table_of_sizes_says_where_one_overtakes_the_other() -> None:
    sizes = (1 << 10, 1 << 16, 1 << 24)
    found = plan(asked("allreduce", sizes), PlanOptions(time_limit_s=60.0, gap=0.05))  # it ends much sooner
    assert [a.size_bytes for a in found.algorithms] == list(sizes)
    starts = [a.from_bytes for a in found.algorithms]
    assert starts[0] == 0 and starts == sorted(starts)
    for before, after in zip(found.algorithms, found.algorithms[1:], strict=False):
        assert before.size_bytes < after.from_bytes <= after.size_bytes
    # Few bytes: one step of everything to everybody. Many: sums on the way, each byte twice.
    assert found.algorithm_for(1 << 10).form == "gather"
    assert found.algorithm_for(1 << 24).form == "direct"


def test_the_plan_document_comes_back_as_it_was() -> None:
    found = plan(asked("alltoall"), PlanOptions(time_limit_s=2.0))
    assert read_plan(write_plan(found)) == found


def test_without_a_limit_of_time_the_seed_decides() -> None:
    options = PlanOptions(time_limit_s=30.0, gap=0.2, seed=3)
    first, second = (plan(asked("allgather"), options) for _ in range(2))
    assert [a.sends for a in first.algorithms] == [a.sends for a in second.algorithms]


def test_two_nodes_without_a_wire_between_them_are_told_apart() -> None:
    found = plan(problem(switched(2, 2, nic=False), "allgather", 400), PlanOptions(time_limit_s=2.0))
    assert found.status == "infeasible" and found.infeasibility is not None
    assert found.infeasibility.reached in ((0, 1), (2, 3))
    assert "cannot reach" in found.infeasibility.why


def test_a_sketch_that_cuts_a_node_off_is_infeasible_and_names_the_cut() -> None:
    sketch = Sketch(internode={})
    found = plan(problem(switched(2, 2), "allgather", 400, sketch=sketch), PlanOptions(time_limit_s=2.0))
    assert found.status == "infeasible" and found.infeasibility is not None
    assert "sketch" in found.infeasibility.why


def test_a_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="does not divide 4097 bytes"):
        plan(asked("allgather", (4097,)), PlanOptions(time_limit_s=2.0))


def test_a_budget_and_a_method_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="budget_bytes"):
        plan(asked("allgather"), PlanOptions(budget_bytes=1))
    with pytest.raises(InputError, match="monet"):
        plan(asked("allgather"), PlanOptions(method="monet"))


@pytest.mark.parametrize("method", ["greedy", "cpsat", "pipeline"])
def test_methods_can_be_asked_for_by_name(method: str) -> None:
    found = plan(asked("allgather"), PlanOptions(time_limit_s=5.0, gap=0.01, method=method))
    assert found.algorithms[0].method in (method, *(("greedy", "contiguity") if method == "cpsat" else ()))
    assert found.check["ok"]


def test_cancelling_before_the_first_schedule_is_an_error_and_after_it_an_answer() -> None:
    with pytest.raises(CancelledError):
        plan(asked("allgather"), PlanOptions(), cancelled=lambda: True)
    seen: list[PlanProgress] = []
    sharp = PlanOptions(time_limit_s=20.0, gap=0.0)
    found = plan(asked("alltoall"), sharp, on_progress=seen.append, cancelled=lambda: any(s.objective for s in seen))
    assert found.check["ok"]


def test_progress_is_told_in_the_unit_of_the_plan() -> None:
    seen: list[PlanProgress] = []
    found = plan(asked("alltoall"), PlanOptions(time_limit_s=2.0), on_progress=seen.append)
    told = [report.objective for report in seen if report.objective is not None]
    assert told and told[-1] == found.objective == min(told)
