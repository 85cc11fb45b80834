"""What results sent cost a compiled graph: the same time in the checker, in the programs and by brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.models.hardware import CUTS, MOVED_PER_BYTE, HostLink, hardware
from loadmaster.models.memory import banded, relaxation
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.documents import read_problem, write_problem
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.models.memory.brute_force import best_over_an_endless_link
from tests.models.memory.instances import seeds
from tests.models.memory.test_checked_journeys import LINK, travelling
from tests.models.memory.test_memory_checker import PLENTY, three_operators
from tests.models.memory.test_offload import budget_of, chain, link_of, planned

# Four bytes sent: two microseconds, and eight bytes at eight a microsecond.
CUTTING = replace(LINK, cut_us=2.0, cut_gbps=0.008)


def test_a_constant_and_the_bytes_moved() -> None:
    assert LINK.cutting_us(4) == 0
    assert replace(LINK, cut_us=2.0).cutting_us(4) == 2
    assert replace(LINK, cut_gbps=0.008).cutting_us(4) == MOVED_PER_BYTE * 4 / 8
    assert CUTTING.cutting_us(4) == 3


def test_the_next_operator_starts_later_and_the_link_carries_on() -> None:
    verdict = check(three_operators(host_link=CUTTING), travelling(issued_at=1), PLENTY)
    # Sent from 12 to 16 us; the loss starts at 12 + 3 and ends with the copy: nobody waits.
    assert verdict.violations == ()
    assert [e.start_us for e in verdict.events] == [0, 5, 15, 16, 26, 46]
    assert (verdict.cut_us, verdict.stall_us, verdict.time_us, verdict.objective) == (3, 0, 76, 76)
    assert verdict.summary()["cut_us"] == 3
    # The loss has to wait for it: for the copy's last microsecond.
    waits = check(three_operators(host_link=CUTTING), travelling(1, (2,)), PLENTY)
    assert (waits.cut_us, waits.stall_us, waits.time_us) == (3, 1, 77)
    assert (waits.events[2].start_us, waits.events[2].stall_us) == (16, 1)
    # A cut longer than the copy.
    longer = replace(LINK, cut_us=6.0)
    assert check(three_operators(host_link=longer), travelling(1, (2,)), PLENTY).time_us == 79


def test_where_nothing_is_cut_nothing_is_recorded() -> None:
    assert "cut_us" not in check(three_operators(host_link=LINK), travelling(1), PLENTY).summary()


@pytest.fixture
def every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor may travel, every implementation has a column, no byte is held back."""
    for name in ("NOTICEABLE", "WORTH_SENDING"):
        monkeypatch.setattr(banded, name, 0.0)


def cutting(problem: MemoryProblem, cut_us: float) -> MemoryProblem:
    assert problem.host_link is not None
    return replace(problem, host_link=replace(problem.host_link, cut_us=cut_us))


@pytest.mark.slow
@pytest.mark.usefixtures("every_choice")
@pytest.mark.parametrize("seed", seeds((1,), (0, 2, 4, 6)))
def test_only_what_is_worth_its_cut_is_sent(seed: int) -> None:
    """For nothing, the old optimum; dear, nothing travels; between, what trying everything finds."""
    problem = chain(seed, link_of(1e-6), operators=5)
    budget, slots = budget_of(problem, 0.2), problem.stage_count
    stays = planned(replace(problem, host_link=None), budget, slots)
    assert stays is not None
    sent = []
    for cut_us in (0.0, 3.0, 6.0, 100.0):
        best_by_number = best_over_an_endless_link(cutting(problem, cut_us), budget)
        best = min(best_by_number)
        found = planned(cutting(problem, cut_us), budget, slots)
        assert found is not None
        objective, schedule = found
        assert objective == pytest.approx(best, abs=1e-3)
        assert check(cutting(problem, cut_us), schedule, budget).time_us == pytest.approx(best, abs=1e-3)
        starts = list(range(1, problem.stage_count))
        program = relaxation.build(cutting(problem, cut_us), budget, starts).program
        bound = solve(program, SolveOptions(gap=0.0), solver="highs").objective
        assert bound is not None and bound <= best + 1e-3
        sent.append(len(schedule.offload))
        assert cut_us == 0 or best_by_number[sent[-1]] == pytest.approx(best, abs=1e-3)
    assert sent[0] > 0 and sent[-1] == 0
    assert sent == sorted(sent, reverse=True)
    assert best == pytest.approx(stays[0])


def test_documents_say_it_where_it_is_not_nothing() -> None:
    plain, priced = three_operators(host_link=LINK), three_operators(host_link=CUTTING)
    assert write_problem(plain)["host_link"] == {"to_host_gbps": 0.001, "from_host_gbps": 0.002}
    assert write_problem(priced)["host_link"] == write_problem(plain)["host_link"] | {"cut_us": 2.0, "cut_gbps": 0.008}
    assert read_problem(write_problem(priced)) == priced
    assert plain.sha256 == "d128ee0738eb64626dda4075bd859b4d46de5ca276fcd770985b0ef57e8ee7f4"
    assert plain.sha256 != priced.sha256


def test_the_catalogue_knows_what_a_cut_costs() -> None:
    entry = hardware("h200")
    assert entry.host_link() == HostLink(entry.to_host_gbps, entry.from_host_gbps)
    link = entry.host_link(compiled=True)
    assert link.cutting_us(0) == CUTS * entry.launch_us
    # Beside its copies, a result costs a hundredth of them: device memory is that much faster.
    size = 1 << 28
    assert 0.005 < link.cutting_us(size) / (link.to_host_us(size) + link.from_host_us(size)) < 0.02
