"""Documents of the kind ``collective``: there and back exactly, and every bad one refused by field."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.documents import read_plan, read_problem, write_plan, write_problem
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Send, Unreachable
from loadmaster.models.collective.problem import CollectiveProblem, Sketch, SwitchPolicy
from loadmaster.models.collective.reach import unreachable
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.tiny import problem, ring, switched

SKETCH = Sketch(
    name="relayed",
    switches=(SwitchPolicy((0, 1), "uc-min"),),
    internode={0: (0,), 1: ()},
    relays={0: 0, 1: 0},
    beta_split={0: 2.0},
    symmetry=((2, 4),),
    chunk_count=2,
    size_bytes=64,
)
CHUNKS = (Chunk(7, (0, 1), (2,), True, frozenset({3, 0})), Chunk(5, (2,), (0, 1)))
PAIRS = tuple(tuple(4 * s + d for d in range(4)) for s in range(4))
PROBLEMS = (
    problem(ring(3), "allgather", 300, title="A ring"),
    problem(switched(2, 2), "allreduce", 64, chunk_counts=(1, 2), sketch=SKETCH),
    problem(switched(2, 2), "broadcast", 64, root=3, sketch=Sketch()),
    problem(switched(2, 2), "alltoallv", 120, pair_bytes=PAIRS),
    problem(switched(2, 2), "custom", 12, custom=CHUNKS),
    replace(problem(ring(3), "allgather", 300), sizes_bytes=(300, 600, 3000)),
)


@pytest.mark.parametrize("given", PROBLEMS, ids=lambda p: p.collective)
def test_problems_there_and_back(given: CollectiveProblem) -> None:
    document = json.loads(json.dumps(write_problem(given)))
    found = read_problem(document)
    assert found == given
    assert found.sha256 == given.sha256
    assert write_problem(found) == write_problem(given)


def test_whole_numbers_are_one_identity() -> None:
    """25 GB/s and 25.0 GB/s, whoever wrote the JSON."""
    document = write_problem(problem(ring(3, gbps=25.0), "allgather", 300))
    for link in document["topology"]["links"]:
        link["gbps"] = 25
    typed = problem(ring(3, gbps=25), "allgather", 300)
    assert read_problem(document).sha256 == typed.sha256 == problem(ring(3, gbps=25.0), "allgather", 300).sha256


def test_what_identifies_a_problem() -> None:
    base = PROBLEMS[0]
    assert replace(base, name="other", title=None).sha256 == base.sha256
    others = [
        replace(base, sizes_bytes=(600,)),
        replace(base, chunk_counts=(2,)),
        replace(base, collective="alltoall"),
        replace(base, topology=ring(3, gbps=2.0)),
        replace(base, topology=ring(3, latency_ns=1)),
        replace(base, sketch=Sketch()),
        replace(base, sketch=SKETCH),
    ]
    assert len({p.sha256 for p in [base, *others]}) == 1 + len(others)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_topologies_there_and_back(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    ends = [(a, b) for a in range(count) for b in range(count) if a != b]
    extra = data.draw(st.lists(st.sampled_from(ends), unique=True))
    # A ring keeps it connected.
    wires = list(dict.fromkeys([*((r, (r + 1) % count) for r in range(count)), *extra]))
    times, speeds = st.integers(0, 10**9), st.floats(1e-3, 1e6)
    links = tuple(
        Link(a, b, data.draw(times), data.draw(times), data.draw(speeds), (k,), data.draw(st.sampled_from([None, 0])))
        for k, (a, b) in enumerate(wires)
    )
    topology = Topology("drawn", (0,) * count, links, tuple(map(str, wires)), (tuple(range(count)),))
    given = problem(topology, "allgather", count * data.draw(st.integers(1, 10**6)))
    found = read_problem(json.loads(json.dumps(write_problem(given))))
    assert found == given
    assert found.sha256 == given.sha256


def edited(path: str, value: Any, base: CollectiveProblem = PROBLEMS[0]) -> dict[str, Any]:
    """A document with one place changed; a value of ``...`` takes it out."""
    document = copy.deepcopy(json.loads(json.dumps(write_problem(base))))
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = document
    for part in way:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


RING, RELAYED, BROADCAST, VECTOR, CUSTOM, SIZES = PROBLEMS
SKETCHED = replace(RELAYED, chunk_counts=())
NO_TIME = {"source": 0, "target": 1, "latency_ns": 0, "message_ns": 0, "gbps": 1e9, "resources": [0]}


@pytest.mark.parametrize(
    ("base", "path", "value", "field"),
    [
        (RING, "schema", "loadmaster/problem/2", "schema"),
        (RING, "kind", "memory", "kind"),
        (RING, "collective", "allgatherv", "collective"),
        (RING, "budget_bytes", 5, "budget_bytes"),
        (RING, "name", "", "name"),
        (RING, "topology", ..., "topology"),
        (RING, "topology/node_of", [], "topology.node_of"),
        (RING, "topology/links/1/target", 9, "topology.links[1].target"),
        (RING, "topology/links/1/target", 0, "topology.links[1].target"),
        (RING, "topology/links/0/latency_ns", -1, "topology.links[0].latency_ns"),
        (RING, "topology/links/0/message_ns", -1, "topology.links[0].message_ns"),
        (RING, "topology/links/0/message_ns", 1.5, "topology.links[0].message_ns"),
        (RING, "topology/links/0/gbps", 0, "topology.links[0].gbps"),
        (RING, "topology/links/0/gbps", -2.5, "topology.links[0].gbps"),
        (RING, "topology/links/0/gbps", 1e-300, "topology.links[0].gbps"),
        (RING, "topology/links/0", NO_TIME, "topology.links[0].gbps"),
        (RING, "topology/links/0/resources", [], "topology.links[0].resources"),
        (RING, "topology/links/0/resources", [99], "topology.links[0].resources"),
        (RING, "topology/links/0/resources", [0, 0], "topology.links[0].resources"),
        (RING, "topology/links/0/switch", 0, "topology.links[0].switch"),
        (RING, "topology/links/0/speed", 3, "topology.links[0].speed"),
        (RING, "topology/switches", [[0, 5]], "topology.switches[0]"),
        (RING, "sizes_bytes", [], "sizes_bytes"),
        (RING, "sizes_bytes", [0], "sizes_bytes[0]"),
        (RING, "sizes_bytes", [600, 300], "sizes_bytes"),
        (RING, "sizes_bytes", [300, 300], "sizes_bytes"),
        (RING, "sizes_bytes", [301], "chunk_counts"),
        (RING, "chunk_counts", [7], "chunk_counts"),
        (RING, "chunk_counts", [0], "chunk_counts[0]"),
        (RING, "chunk_counts", [2, 2], "chunk_counts"),
        (RING, "chunk_counts", [1 << 20], "chunk_counts"),
        (RING, "root", 0, "root"),
        (RING, "pair_bytes", [[1]], "pair_bytes"),
        (RING, "custom", [], "custom"),
        (BROADCAST, "root", ..., "root"),
        (BROADCAST, "root", 4, "root"),
        (BROADCAST, "root", -1, "root"),
        (VECTOR, "pair_bytes", ..., "pair_bytes"),
        (VECTOR, "pair_bytes", [[0] * 4] * 3, "pair_bytes"),
        (VECTOR, "pair_bytes/2", [0] * 3, "pair_bytes[2]"),
        (VECTOR, "pair_bytes/1/2", -1, "pair_bytes[1][2]"),
        (VECTOR, "sizes_bytes", [121], "sizes_bytes"),
        (CUSTOM, "custom", ..., "custom"),
        (CUSTOM, "custom", [], "custom"),
        (CUSTOM, "custom/0/sources", [], "custom[0].sources"),
        (CUSTOM, "custom/0/sources", [1, 1], "custom[0].sources"),
        (CUSTOM, "custom/1/targets", [4], "custom[1].targets"),
        (CUSTOM, "custom/0/senders", [4], "custom[0].senders"),
        (CUSTOM, "custom/0/size_bytes", 8, "sizes_bytes"),
        (CUSTOM, "chunk_counts", [2], "chunk_counts"),
        (RELAYED, "sketch/switches/0/strategy", "uc-mid", "sketch.switches[0].strategy"),
        (RELAYED, "sketch/beta_split", {"0": 0.0}, "sketch.beta_split.0"),
        (RELAYED, "sketch/relays", {"one": 0}, "sketch.relays.one.[key]"),
        (RELAYED, "sketch/symmetry", [[2, 4, 6]], "sketch.symmetry[0]"),
        (RELAYED, "sketch/symmetry", [[0, 4]], "sketch.symmetry[0][0]"),
        (RELAYED, "sketch/chunk_count", 0, "sketch.chunk_count"),
        (RELAYED, "sketch/internode", {"0": [1]}, "sketch.internode.0"),
        (RELAYED, "sketch/symmetry", [[1, 4]], "sketch.symmetry[0]"),
        (SKETCHED, "sketch/chunk_count", 3, "chunk_counts"),
    ],
)
def test_bad_problems_are_refused_by_field(base: CollectiveProblem, path: str, value: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        read_problem(edited(path, value, base))
    assert caught.value.field == field
    assert caught.value.problem
    assert caught.value.remedy


def test_one_rank_is_no_topology() -> None:
    alone = Topology("one", (0,), (), ())
    with pytest.raises(InputError) as caught:
        read_problem(write_problem(problem(alone, "allgather", 3)))
    assert caught.value.field == "topology.node_of"


def test_links_that_do_not_connect_are_left_to_the_planner() -> None:
    """Two pairs of ranks; and a line, on which a broadcast may start at one end only: problems like any other."""
    apart = Topology("pairs", (0,) * 4, tuple(Link(a, a ^ 1, 0, 1, 1.0, (a,)) for a in range(4)), tuple("abcd"))
    line = Topology("line", (0,) * 3, tuple(Link(a, a + 1, 0, 1, 1.0, (a,)) for a in range(2)), ("a", "b"))
    for posed, cut in (
        (problem(apart, "allgather", 4), (0, 2, (0, 1))),
        (problem(line, "broadcast", 4, root=1), (0, 0, (1, 2))),
        (problem(line, "allreduce", 6), (0, 0, (1, 2))),
        (problem(line, "broadcast", 4, root=0), None),
        (problem(line, "reduce", 4, root=2), None),
    ):
        assert read_problem(write_problem(posed)) == posed
        found = unreachable(instance_of(posed, posed.sizes_bytes[0], 1))
        assert (None if found is None else (found.chunk, found.rank, found.reached)) == cut


def test_what_a_sketch_cuts_off_is_left_to_the_planner() -> None:
    """Nobody sends to the other node: the problem stands, and its plan will say why there is none."""
    alone = problem(switched(2, 2), "allgather", 64, sketch=Sketch(internode={}))
    assert read_problem(write_problem(alone)) == alone
    found = unreachable(instance_of(alone, 64, 1))
    assert found is not None
    assert (found.chunk, found.rank, found.reached) == (0, 2, (0, 1))


PLAN = CollectivePlan(
    name="by hand",
    problem_sha256="0" * 64,
    status="optimal",
    objective=0.2,
    bound=0.2,
    gap=0.0,
    unit="us",
    method="hand",
    stopped_by="gap",
    seconds={"build": 0.0, "solve": 0.5, "check": 0.0},
    solver={"name": "none", "solves": 0},
    check={"ok": True},
    algorithms=(
        Algorithm(300, 1, "direct", (Send(0, 0, 1, (0,)), Send(5, 1, 2, (0, 3), True)), 200, 150, "cut", 10),
        Algorithm(600, 2, "gather", (), 400, 300, "dilation", 20, from_bytes=450, method="greedy", seconds=0.25),
    ),
    options={"gap": 0.01},
)


def test_plans_there_and_back() -> None:
    assert read_plan(json.loads(json.dumps(write_plan(PLAN)))) == PLAN
    none = replace(
        PLAN,
        status="infeasible",
        objective=None,
        bound=None,
        gap=None,
        algorithms=(),
        infeasibility=Unreachable(3, 1, (0, 2), "no link leaves ranks 0 and 2"),
    )
    assert read_plan(json.loads(json.dumps(write_plan(none)))) == none


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("schema", "loadmaster/plan/2", "schema"),
        ("problem_sha256", "abc", "problem_sha256"),
        ("status", "infeasible", "status"),
        ("algorithms", [], "status"),
        ("algorithms/0/form", "ring", "algorithms[0].form"),
        ("algorithms/0/sends/1/start_ns", -5, "algorithms[0].sends[1].start_ns"),
        ("algorithms/0/sends/1/chunks", ["a"], "algorithms[0].sends[1].chunks[0]"),
        ("algorithms/0/sends/1/colour", "red", "algorithms[0].sends[1].colour"),
        ("algorithms/1/size_bytes", 0, "algorithms[1].size_bytes"),
        ("schedule", {}, "schedule"),
    ],
)
def test_bad_plans_are_refused_by_field(path: str, value: Any, field: str) -> None:
    document = json.loads(json.dumps(write_plan(PLAN)))
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place: Any = document
    for part in way:
        place = place[part]
    place[last] = value
    with pytest.raises(InputError) as caught:
        read_plan(document)
    assert caught.value.field == field
