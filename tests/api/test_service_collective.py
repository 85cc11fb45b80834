"""A collective through the service: no budget anywhere, the same way as any other kind."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import RunningService

from loadmaster.api.client import Client
from loadmaster.api.planning import FloorPlanner
from loadmaster.errors import InputError
from loadmaster.models.collective.exports.msccl import msccl_files
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.kinds import KINDS, check_plan, read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.planner import PlanOptions
from tests.api.collective_by_hand import plan_by_hand, ring_document

pytestmark = pytest.mark.slow  # the real planner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def service(start_service: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A service whose workers plan collectives by hand."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Loading the planner here puts its entry in this process too: take it back after the test.
    monkeypatch.setitem(KINDS, "collective", KINDS["collective"])
    yield start_service(planner="tests.api.collective_by_hand:HandFloor", workers=1).url


def test_a_collective_goes_all_the_way(service: str) -> None:
    document = ring_document()
    problem = read_problem(document)
    with Client(service) as client:
        sizing = client.dry_run(document)
        assert sizing.sizes == {"ranks": 4, "links": 8, "sizes": 1}
        assert (sizing.kind, sizing.budget_bytes, sizing.cached) == ("collective", None, False)
        assert "budget_bytes" not in sizing.options
        options = {"time_limit_s": 30.0, "method": "greedy", "gap": 0.6}
        handle = client.submit(problem, options)
        plan = handle.result(timeout_s=120)
        verdict = check_plan(problem, plan)
        assert verdict.ok
        assert plan.objective == verdict.objective == 3.3  # three steps of 1000 bytes: 100 ns and 1 byte/ns
        state = handle.state()
        assert (state.state, state.kind, state.unit, state.budget_bytes) == ("succeeded", "collective", "us", None)
        assert (state.objective, state.gap) == (plan.objective, plan.gap)
        archive = zipfile.ZipFile(io.BytesIO(handle.export("msccl", instances=2)))
        files = {name: archive.read(name).decode() for name in archive.namelist()}
        assert files == msccl_files(problem, plan, 2)
        assert b"Who sends when" in handle.export("html")
        again = client.submit({**document, "name": "another name"}, options)
        assert again.state().cached
        assert again.result().name == "another name"
        assert [p.id for p in client.list(kind="collective")] == [again.id, handle.id]
        assert list(client.list(kind="memory")) == []
        none = client.submit(document, {"seed": 2}).result(timeout_s=120)
        assert (none.status, none.objective) == ("infeasible", None)
    front = httpx.get(service).text
    assert ">collective</td>" in front
    assert ">3.300 us</td>" in front


def test_the_real_planner_through_the_service(start_service: Callable[..., RunningService]) -> None:
    """Two sizes of an AllGather on a ring, judged by the checker in this process; and a rank without a link."""
    url = start_service(planner="loadmaster.api.planning:FloorPlanner", workers=1).url
    problem = read_problem({**ring_document(), "sizes_bytes": [400, 400_000]})
    apart = ring_document()
    apart["topology"]["links"] = [k for k in apart["topology"]["links"] if 3 not in (k["source"], k["target"])]
    with Client(url) as client:
        handle = client.submit(problem, {"time_limit_s": 20.0, "gap": 0.3})
        plan = handle.result(timeout_s=120)
        none = client.submit(apart)
        cut = none.result(timeout_s=120)
        assert none.state().state == cut.status == "infeasible"
    assert check_plan(problem, plan).violations == ()
    assert plan.objective is not None and plan.bound is not None
    assert plan.bound <= plan.objective
    assert isinstance(plan, CollectivePlan)
    assert [algorithm.size_bytes for algorithm in plan.algorithms] == [400, 400_000]
    assert isinstance(cut, CollectivePlan) and cut.infeasibility is not None
    assert (cut.infeasibility.chunk, cut.infeasibility.rank, cut.infeasibility.reached) == (0, 3, (0, 1, 2))


@pytest.mark.parametrize(
    ("change", "options", "field"),
    [
        ({}, {"budget_bytes": 5}, "options.budget_bytes"),
        ({}, {"method": "monet"}, "options.method"),
        ({"budget_bytes": 5}, {}, "problem.budget_bytes"),
        ({"sizes_bytes": [4001]}, {}, "problem.chunk_counts"),
        ({"root": 1}, {}, "problem.root"),
        ({"collective": "broadcast"}, {}, "problem.root"),
    ],
)
def test_bad_requests_are_refused_by_field(change: dict[str, Any], options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        FloorPlanner().read({**ring_document(), **change}, options)
    assert caught.value.field == field
    assert caught.value.remedy


async def test_a_frontier_of_a_collective_is_refused(http: httpx.AsyncClient) -> None:
    body = {"problem": ring_document(), "budgets_bytes": [1, 2]}
    answer = await http.post("/v1/frontiers", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/problem/kind"
    assert "no limit to sweep" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("points", "options", "field"),
    [
        ({}, {}, "limits"),
        ({"limits": [1], "budgets_bytes": [1]}, {}, "limits"),
        ({"limits": [1]}, {"limit": 2}, "options.limit"),
        ({"budgets_bytes": [1]}, {"budget_bytes": 2}, "options.budget_bytes"),
        ({"limits": []}, {}, "limits"),
    ],
)
async def test_the_points_of_a_frontier_are_given_once(
    points: dict[str, Any], options: dict[str, Any], field: str, http: httpx.AsyncClient
) -> None:
    body = {"problem": chain(3, 1000), "options": options, **points}
    answer = await http.post("/v1/frontiers", json=body)
    assert answer.status_code == 422
    error = answer.json()["errors"][0]
    assert error["field"] == field and error["remedy"]


def test_what_makes_requests_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names do not; sizes and options do."""
    read = FloorPlanner().read
    key = read(ring_document(), {}).cache_key
    assert read(ring_document("renamed"), {}).cache_key == key
    assert read(ring_document(size_bytes=8000), {}).cache_key != key
    assert read(ring_document(), {"method": "cpsat"}).cache_key != key


def test_the_planner_by_hand_is_right() -> None:
    problem = read_problem(ring_document(ranks=6, size_bytes=600))
    assert check_plan(problem, plan_by_hand(problem, PlanOptions())).violations == ()  # type: ignore[arg-type]
