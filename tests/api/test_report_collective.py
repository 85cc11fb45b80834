"""Collective plans as rows of bars, pages, pictures and traces."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from loadmaster.api.report.collective.pictures import colour, png, size_ticks, telling
from loadmaster.api.report.collective.plan_page import plan_page
from loadmaster.api.report.collective.timeline import LARGEST_ROWS, TimelineRow, owner_word, owners_of, timeline
from loadmaster.api.report.collective.view import CollectiveView, algorithm_gbps, bus_gbps, view
from loadmaster.api.report.collective.views import chrome_trace
from loadmaster.api.report.page import script
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.problem import Collective
from loadmaster.models.topologies.topology import Topology
from tests.models.collective.handmade import along_trees, one_after_another, table
from tests.models.collective.tiny import problem, ring, switched


def shown(topology: Topology, collective: Collective, *sizes: int) -> CollectiveView:
    given = replace(problem(topology, collective, sizes[0]), sizes_bytes=sizes)
    algorithms = [one_after_another(given, along_trees(given, size, 1)) for size in sizes]
    starts = [0, *sizes[1:]]
    made = [replace(a, from_bytes=start) for a, start in zip(algorithms, starts, strict=True)]
    return view(given, table(given, *made))


def rows_of(seen: CollectiveView) -> tuple[TimelineRow, ...]:
    return timeline(seen.problem, seen.plan.algorithms[0], seen.check.algorithms[0])


def test_a_row_for_every_resource_in_use() -> None:
    seen = shown(switched(2, 2), "allgather", 64)
    rows = rows_of(seen)
    topology, sends = seen.problem.topology, seen.plan.algorithms[0].sends
    used = {r for s in sends for r in topology.links[topology.link_between[s.source, s.target]].resources}
    assert {row.label for row in rows} == {topology.resources[r] for r in used}
    # Every send is one bar on each of the two resources that it holds.
    assert sum(len(row.bars) for row in rows) == 2 * len(sends)
    for row in rows:
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(row.bars))


def test_what_is_on_its_way_holds_nothing() -> None:
    seen = shown(ring(4, latency_ns=5000), "allgather", 64)
    assert all(bar.arrives_ns == bar.end_ns + 5000 for row in rows_of(seen) for bar in row.bars)
    assert 'stroke-opacity="0.5"' in plan_page(seen)
    assert 'stroke-opacity="0.5"' not in plan_page(shown(ring(4), "allgather", 64))


def test_rows_go_by_node_and_by_number() -> None:
    labels = [row.label for row in rows_of(shown(switched(2, 12), "allgather", 24 * 16))]
    first = [label for label in labels if label.startswith("egress")]
    assert first == [f"egress {r}" for r in range(24)]
    assert labels.index("egress 11") < labels.index("ingress 0") < labels.index("egress 12")


def test_many_resources_are_rows_of_a_node_and_a_sort() -> None:
    seen = shown(switched(4, 8), "allgather", 32 * 16)
    rows = rows_of(seen)
    assert len(seen.check.algorithms[0].by_resource) > LARGEST_ROWS
    sorts = ["egress", "ingress", "nic in", "nic out"]
    assert [row.label for row in rows] == [f"node {n} {sort} (8)" for n in range(4) for sort in sorts]
    total = seen.check.algorithms[0].time_ns
    for row in rows:
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(row.bars))
        assert all(0 < bar.share <= 1 and bar.end_ns <= total + 1 for bar in row.bars)


def test_slices_are_as_strong_as_their_resources_are_busy() -> None:
    # One send at a time: while a node sends, one of its five egress ports is busy: four twentieths, nothing to round.
    seen = shown(switched(6, 5), "allgather", 30 * 16)
    egress = next(row for row in rows_of(seen) if row.label.startswith("node 0 egress"))
    assert max(bar.share for bar in egress.bars) == pytest.approx(1 / 5)
    # In all, what the bars show is what the ports were busy, but for the rounding to twentieths.
    busy_ns = sum(
        journey.busy_until_ns - journey.send.start_ns
        for resource, journeys in seen.check.algorithms[0].by_resource.items()
        if seen.problem.topology.resources[resource] in {f"egress {rank}" for rank in range(5)}
        for journey in journeys
    )
    shown_ns = sum(5 * bar.share * (bar.end_ns - bar.start_ns) for bar in egress.bars)
    rounded_ns = sum(5 * (bar.end_ns - bar.start_ns) for bar in egress.bars) / 40
    assert shown_ns == pytest.approx(busy_ns, abs=rounded_ns)


def test_whose_data_it_is() -> None:
    gather = [Chunk(1, (r,), (0, 1, 2)) for r in range(3)]
    scatter = [Chunk(1, (0,), (r,)) for r in range(3)]
    sums = [Chunk(1, (0, 1, 2), (r,), reduces=True) for r in range(3)]
    broadcast = [Chunk(1, (0,), (0, 1, 2)) for _ in range(6)]
    assert owners_of(gather, 3) == owners_of(scatter, 3) == owners_of(sums, 3) == [0, 1, 2]
    assert owners_of(broadcast, 3) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("collective", "word"), [("allgather", "rank"), ("allreduce", "rank"), ("alltoall", "rank"), ("broadcast", "part")]
)
def test_the_legend_says_what_colours_are(collective: Collective, word: str) -> None:
    seen = shown(ring(4), collective, 64)
    assert owner_word(seen.problem, seen.plan.algorithms[0]) == word
    page = plan_page(seen)
    assert f"</i>{word} 0</span>" in page
    assert (f"</i>{word} 3</span>" in page) == (collective != "broadcast")


def test_long_names_leave_room_for_the_chart() -> None:
    small = ring(2)
    named = replace(small, resources=tuple(f"{name} " + "of the machine room " * 9 for name in small.resources))
    labels = [row.label for row in rows_of(shown(named, "allgather", 64))]
    assert all(len(label) <= 32 and label.endswith("...") for label in labels)


def test_a_collective_without_work_is_an_empty_chart(tmp_path: Path) -> None:
    nothing = problem(ring(2), "custom", 8, custom=(Chunk(8, (0,), (0,)),))
    empty = Algorithm(8, 1, "direct", (), 0, 0, "nothing to do", 0)
    seen = view(nothing, table(nothing, empty))
    assert rows_of(seen) == ()
    assert "Who sends when" in plan_page(seen)
    (tmp_path / "plan.png").write_bytes(png(seen))
    assert imread(tmp_path / "plan.png").size


def test_colours_tell_ranks_apart() -> None:
    assert len({colour(rank, 16) for rank in range(16)}) == 16


@pytest.mark.parametrize(("topology", "rows"), [(ring(4), 8), (switched(4, 8), 16)])
def test_the_page_has_a_labelled_row_for_each(topology: Topology, rows: int) -> None:
    seen = shown(topology, "allgather", topology.rank_count * 16)
    page = plan_page(seen)
    labels = re.findall(r'<text class="row"[^>]*>([^<]*)</text>', page)
    assert [text.replace("&gt;", ">") for text in labels] == [row.label for row in rows_of(seen)]
    assert len(labels) <= rows
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "the page fetches nothing"
    assert page.count("<script") == page.count(f"<script>{script()}</script>") == 1, "and runs its own alone"
    for picture in re.findall(r"<svg.*?</svg>", page, re.S):
        assert len(ET.fromstring(picture)) > 0


def test_a_table_of_sizes_has_a_curve_and_a_chart_each() -> None:
    seen = shown(ring(4), "allreduce", 64, 4096, 1 << 20)
    page = plan_page(seen)
    assert page.count("Who sends when") == 3
    assert "Time against size" in page and "4.00 KiB" in page
    assert "50.00 %" in page
    one = plan_page(shown(ring(4), "allreduce", 64))
    assert "Time against size" not in one


def bands(path: Path) -> int:
    """Stripes of colour, from the top to the bottom of a picture: grey and white lie between them."""
    picture = imread(path)[:, :, :3]
    coloured = ((picture.max(axis=2) - picture.min(axis=2)) > 0.16).any(axis=1)
    return int(np.count_nonzero(coloured[1:] & ~coloured[:-1]))


@pytest.mark.parametrize(
    ("topology", "rows"), [(ring(2), 2), (ring(8), 16), (switched(2, 8), 64), (switched(4, 8), 16)]
)
def test_the_picture_has_a_band_for_each_row_and_a_legend(topology: Topology, rows: int, tmp_path: Path) -> None:
    seen = shown(topology, "alltoall", topology.rank_count * 16)
    assert len(rows_of(seen)) == rows
    (tmp_path / "plan.png").write_bytes(png(seen))
    # Below, the legend: a line for eight owners, at most two.
    owners = {bar.owner for row in rows_of(seen) for bar in row.bars}
    assert bands(tmp_path / "plan.png") == rows + min(2, -(-len(owners) // 8))


def test_the_picture_of_a_table_has_its_smallest_and_its_largest(tmp_path: Path) -> None:
    seen = shown(ring(2), "allgather", 64, 4096, 1 << 20)
    (tmp_path / "table.png").write_bytes(png(seen))
    (tmp_path / "one.png").write_bytes(png(shown(ring(2), "allgather", 64)))
    table_height, one_height = (imread(tmp_path / name).shape[0] for name in ("table.png", "one.png"))
    assert table_height > 2 * one_height


def test_the_trace_is_json_and_its_events_do_not_overlap() -> None:
    seen = shown(switched(2, 2), "allreduce", 64, 4096)
    trace = json.loads(json.dumps(chrome_trace(seen)))
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(events) == sum(len(a.sends) for a in seen.plan.algorithms)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    lanes = defaultdict(list)
    for event in events:
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(lanes) == set(names)
    for spans in lanes.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))
    for number, algorithm in enumerate(seen.plan.algorithms):
        mine = [e for e in events if e["pid"] == number]
        assert sorted(e["args"]["chunks"] for e in mine) == sorted(list(s.chunks) for s in algorithm.sends)


@pytest.mark.parametrize(
    ("collective", "factor"), [("allreduce", 1.5), ("allgather", 0.75), ("alltoall", 0.75), ("broadcast", 1.0)]
)
def test_bandwidths_are_counted_as_nccl_does(collective: Collective, factor: float) -> None:
    more = {"root": 0} if collective == "broadcast" else {}
    given = problem(ring(4), collective, 4000, **more)
    algorithm = replace(along_trees(given, 4000, 1), time_ns=100)
    assert algorithm_gbps(algorithm) == 40.0
    assert bus_gbps(given, algorithm) == pytest.approx(40.0 * factor)


def test_uneven_collectives_have_no_bus_bandwidth() -> None:
    given = problem(ring(2), "alltoallv", 16, pair_bytes=((0, 8), (8, 0)))
    assert bus_gbps(given, along_trees(given, 16, 1)) is None


def test_ticks_and_charts_of_long_tables() -> None:
    sizes = [2**n for n in range(10, 31)]
    assert size_ticks(sizes)[0] == sizes[0] and size_ticks(sizes)[-1] == sizes[-1]
    assert len(size_ticks(sizes)) <= 9
    given = problem(ring(2), "allgather", 64)
    seen = shown(ring(2), "allgather", 64)
    many = [(replace(along_trees(given, 64, 1), size_bytes=s), seen.check.algorithms[0]) for s in sizes]
    assert [a.size_bytes for a, _ in telling(many, 2)] == [sizes[0], sizes[-1]]
    assert telling(many, 30) == many
