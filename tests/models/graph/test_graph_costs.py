"""What kernels cost, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.checker import kernel_need
from loadmaster.models.graph.costs import Costs, Work
from loadmaster.models.graph.device import GraphHardware, graph_hardware
from loadmaster.models.graph.inline import Inline
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel, Schedule, Tile
from loadmaster.models.graph.statistics import HOT_SHARES, GraphStatistics
from loadmaster.models.graph.tracing import shared, traced

# A cache of 16 KiB: of a value of v bytes, the part v / 4096 comes from memory, and from 4 KiB on all.
H100 = replace(graph_hardware("h100"), l2_bytes=1 << 14)

# 1000 nodes, relations of 100, 50 and 0 edges; 60 and 40 sources, 80 and 30 targets.
COUNTS = GraphStatistics(
    edges=(100, 50, 0),
    source_pairs=(60, 40, 0),
    target_pairs=(80, 30, 0),
    nodes=(1000,),
    in_degrees=(850, 150),
    out_degrees=(850, 150),
    longest=(7, 9, 5, 6, 2, 2),
    hits=HOT_SHARES,
)


def works_of(
    program: Program, schedule: Schedule, statistics: GraphStatistics = COUNTS, hardware: GraphHardware = H100
) -> dict[str, Work]:
    """Of kernels by what they store, their work."""
    costs, needs = Costs(program, statistics, 4, hardware), Inline(program, frozenset(schedule.kept))
    return {
        " ".join(program.values[n].name for n in kernel.stores): costs.work(kernel, kernel_need(needs, kernel))
        for kernel in schedule.kernels
    }


def works(statistics: GraphStatistics = COUNTS, rows: int = 64) -> dict[str, Work]:
    """Of the kernels of rgcn's training step."""
    program = with_backward(layer("rgcn", 8, 16))
    schedule = greedy_schedule(program)
    tiled = [replace(k, tile=Tile(rows=rows)) if k.template == "gemm" else k for k in schedule.kernels]
    return works_of(program, Schedule(tuple(tiled), schedule.forward_count), statistics)


def test_a_product_reads_rows_numbers_and_weights_and_fills_up_tiles() -> None:
    work = works()["linear4"]
    assert work.stored_bytes == 100 * 16 * 4
    # 100 different rows in 64 bytes each, 100 row numbers, 3 matrices of which the cache may hold a part.
    matrices = 3 * 8 * 16 * 4
    assert work.dram_bytes == 100 * 16 * 4 + 100 * 64 + 100 * 4 + matrices * matrices / 4096
    # 60 and 40 rows take a tile of 64 each; each tile reads its matrix.
    assert work.l2_bytes == 100 * 16 * 4 + 100 * 64 + 100 * 4 + 2 * 8 * 16 * 4
    assert work.matrix_flops == 2 * 128 * 8 * 16
    assert works(rows=32)["linear4"].matrix_flops == 2 * 128 * 8 * 16
    assert works(rows=128)["linear4"].matrix_flops == 2 * 256 * 8 * 16
    assert (work.steps, work.launches, work.outer_flops, work.made) == (0, 1, 0, 0)


def test_a_traversal_reads_a_row_for_each_edge_and_stores_one_for_each_node() -> None:
    work = works()["aggregate7"]
    assert work.stored_bytes == 1000 * 16 * 4
    # The numbers of two rows for each of 150 edges; where each node's edges begin, and which they are.
    indices = 4 * (2 * 150 + 1000 + 150)
    # 150 messages of 64 bytes; the edges of one target and relation share a degree: 110 of these.
    assert work.l2_bytes == 1000 * 64 + 150 * 64 + 110 * 64 + indices
    # Each of the 100 messages comes from memory once; the 110 degrees fill 440 bytes, of which the cache may hold some.
    assert work.dram_bytes == 1000 * 64 + 100 * 64 + 440 * 440 / 4096 + indices
    # There are too few edges for more than one slot of a node, so 7 steps.
    assert (work.steps, work.launches, work.matrix_flops) == (7, 1, 0)


def test_a_row_that_the_cache_does_not_hold_is_read_again() -> None:
    program = layer("rgcn", 8, 16)
    schedule = greedy_schedule(program)
    cached, missed = (
        works_of(program, schedule, hardware=replace(H100, l2_bytes=size))["aggregate7"] for size in (1 << 14, 0)
    )
    assert missed.l2_bytes == cached.l2_bytes
    assert cached.dram_bytes < missed.dram_bytes <= missed.l2_bytes


def test_a_gradient_of_weights_is_summed_in_pieces() -> None:
    work = works()["outer21"]
    pieces, matrices = 2, 3 * 8 * 16 * 4
    read = 100 * 64 + 100 * 64 + 4 * (100 + 3)
    assert work.stored_bytes == matrices
    assert work.dram_bytes == matrices * matrices / 4096 + read
    assert work.l2_bytes == matrices + read + 2 * pieces * 8 * 16 * 4
    # 60 and 40 rows, 32 at a time.
    assert work.matrix_flops == work.outer_flops == 2 * (64 + 64) * 8 * 16
    assert (work.steps, work.launches) == (60 / 32, 2)


def test_a_hub_is_cut_into_chunks_that_two_more_launches_sum() -> None:
    hub = replace(COUNTS, longest=(1_000_000, 9, 5, 6, 2, 2))
    short, cut = works()["aggregate7"], works(hub)["aggregate7"]
    assert short.steps < cut.steps < 1_000
    assert (short.launches, cut.launches) == (1, 3)


def test_edges_read_in_order_what_they_are_sorted_by() -> None:
    program = traced(lambda nodes, edges, w: edges.sum(edges.source(nodes.h) + edges.target(nodes.h)), nodes={"h": 16})
    added = next(n for n, value in enumerate(program.values) if value.op == "add")
    (total,) = (n for n, value in enumerate(program.values) if value.op == "aggregate")
    kernels = (Kernel("map", "edge", (added,)), Kernel("traverse", "target", (total,), "edge"))
    work = works_of(program, Schedule(kernels, 2))[program.values[added].name]
    # A row of the source for every edge; of the target, one for each of 110 pairs of target and relation.
    assert work.l2_bytes == 150 * 64 + 150 * 64 + 110 * 64 + 4 * 2 * 150


def test_a_source_is_another_row_for_each_edge_of_a_target() -> None:
    program = traced(lambda nodes, edges, w: edges.sum(edges.source(nodes.h)), nodes={"h": 16})
    (work,) = works_of(program, greedy_schedule(program)).values()
    assert work.l2_bytes == 1000 * 64 + 150 * 64 + 4 * (150 + 1000 + 150)


def test_an_aggregate_that_reads_another_runs_over_the_rows_again() -> None:
    def twice(nodes, edges, w):  # type: ignore[no-untyped-def]
        h = edges.source(nodes.h)
        return edges.sum(h * edges.target(edges.max(h)))

    program = traced(twice, nodes={"h": 16})
    first, second = (n for n, value in enumerate(program.values) if value.op == "aggregate")
    together = Schedule((Kernel("traverse", "target", (first, second), "edge"),), 1)
    apart = Schedule(
        (Kernel("traverse", "target", (first,), "edge"), Kernel("traverse", "target", (second,), "edge")), 2
    )
    (both,), each = works_of(program, together).values(), [*works_of(program, apart).values()]
    assert both.steps == sum(work.steps for work in each)


def test_what_is_made_for_the_rows_of_a_product_counts() -> None:
    program = with_backward(layer("rgcn", 8, 16))
    kept = works_of(program, greedy_schedule(program))
    assert all(work.made == 0 for work in kept.values())
    doubled = with_backward(traced_product())
    made = works_of(doubled, greedy_schedule(doubled))
    assert {1000.0} == {work.made for work in made.values() if work.made}


def traced_product() -> Program:
    """Rows that are made of two features, through a weight."""
    return traced(
        lambda nodes, edges, w: (nodes.h * nodes.g) @ w.W,
        nodes={"h": 8, "g": 8},
        weights={"W": shared(8, 8)},
    )


def test_time_is_that_of_what_a_kernel_waits_for_and_its_steps_and_launches() -> None:
    slow = replace(H100, dram_gbps=1.0, matrix_tflops=(1.0, 1.0), made_per_us=100.0, step_us=0.5, launch_us=3.0)
    assert Work(5_000.0, 5_000.0, 0).time_us(slow, 4) == pytest.approx(5.0 + 3.0)
    assert Work(5_000.0, 5_000.0, 0, steps=4, launches=2).time_us(slow, 4) == pytest.approx(5.0 + 2.0 + 6.0)
    # A product of 6 us; an outer one of as many FLOP takes half as long again, and 200 values 2 us.
    assert Work(5_000.0, 0.0, 0, 6e6).time_us(slow, 4) == pytest.approx(6.0 + 3.0)
    assert Work(5_000.0, 0.0, 0, 6e6, 6e6, 200.0).time_us(slow, 4) == pytest.approx(9.0 + 2.0 + 3.0)


def test_a_gpu_without_constants_is_refused() -> None:
    with pytest.raises(InputError, match="has no constants"):
        graph_hardware("abacus")
