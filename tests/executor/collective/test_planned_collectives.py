"""Planned collectives over gloo, on 4 and on 8 processes: runner, process group, profiler."""

from __future__ import annotations

import pytest

from tests.executor.collective import group_scenarios, probe_scenarios, runner_scenarios, torch_scenarios
from tests.executor.worlds import reports

SCENARIOS = {
    one.__name__: one for one in (*runner_scenarios.SCENARIOS, *torch_scenarios.SCENARIOS, *group_scenarios.SCENARIOS)
}
PROBES = {one.__name__: one for one in probe_scenarios.SCENARIOS}


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return reports(SCENARIOS | PROBES, tmp_path_factory.mktemp("four"), 4, last=runner_scenarios.one_dies)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    return reports(SCENARIOS, tmp_path_factory.mktemp("eight"), 8, last=torch_scenarios.one_dies)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS | PROBES)
def test_on_four_processes(four, name):
    assert four[name] == [""] * 4


@pytest.mark.slow
def test_a_dead_peer_is_named_by_all_who_survive(four):
    assert four["last"] == ["", "", "", "nothing"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_on_eight_processes(eight, name):
    assert eight[name] == [""] * 8


@pytest.mark.slow
def test_a_dead_peer_is_named_through_the_process_group(eight):
    assert eight["last"] == [""] * 7 + ["nothing"]
