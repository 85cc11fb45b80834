"""What kernels cost, counted by hand; and constants found again from measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.checker import kernel_need
from loadmaster.models.graph.costs import LONGEST_PIECE, OUTER_ROWS, Costs, Work, fitted
from loadmaster.models.graph.device import graph_hardware
from loadmaster.models.graph.greedy import greedy_schedule
from loadmaster.models.graph.inline import Inline
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.schedule import Tile
from loadmaster.models.graph.statistics import HOT_SHARES, GraphStatistics

H100 = graph_hardware("h100")

# 1000 nodes, relations of 100, 50 and 0 edges; 60 and 40 sources, 80 and 30 targets.
COUNTS = GraphStatistics(
    edges=(100, 50, 0),
    source_pairs=(60, 40, 0),
    target_pairs=(80, 30, 0),
    nodes=(1000,),
    in_degrees=(850, 150),
    out_degrees=(850, 150),
    longest=(7, 9, 5, 6),
    hits=HOT_SHARES,
)


def works(statistics: GraphStatistics = COUNTS, rows: int = 64) -> dict[str, Work]:
    """Of the kernels of rgcn's training step by what they store, and their work."""
    program = with_backward(layer("rgcn", 8, 16))
    schedule = greedy_schedule(program)
    costs, needs = Costs(program, statistics, 4, H100), Inline(program, frozenset(schedule.kept))
    return {
        " ".join(program.values[n].name for n in kernel.stores): costs.work(
            replace(kernel, tile=Tile(rows=rows)), kernel_need(needs, kernel)
        )
        for kernel in schedule.kernels
    }


def test_a_product_reads_rows_numbers_and_weights_and_fills_up_tiles() -> None:
    work = works()["linear4"]
    assert work.stored_bytes == 100 * 16 * 4
    # 100 different rows of 32 bytes, 100 row numbers, 3 matrices.
    assert work.dram_bytes == 100 * 16 * 4 + 100 * 32 + 100 * 4 + 3 * 8 * 16 * 4
    # 60 and 40 rows take a tile of 64 each.
    assert work.matrix_flops == 2 * 128 * 8 * 16
    assert works(rows=32)["linear4"].matrix_flops == 2 * 128 * 8 * 16
    assert works(rows=128)["linear4"].matrix_flops == 2 * 256 * 8 * 16


def test_a_traversal_reads_a_row_for_each_edge_and_stores_one_for_each_node() -> None:
    work = works()["aggregate7"]
    assert work.stored_bytes == 1000 * 16 * 4
    assert (work.rows, work.tail_rows) == (1000, 7)
    # 150 messages of 64 bytes, and 150 degrees in sectors of 32.
    assert work.l2_bytes == 1000 * 64 + 150 * 64 + 150 * 32 + 4 * (2 * 150 + 1000 + 150)
    # The cache holds all: each of the 100 messages comes from memory once, the 110 degrees fill 440 bytes.
    assert work.dram_bytes == 1000 * 64 + 100 * 64 + 110 * 4 + 4 * (2 * 150 + 1000 + 150)


def test_a_row_that_the_cache_does_not_hold_is_read_again() -> None:
    small = replace(H100, l2_bytes=1)
    program = layer("rgcn", 8, 16)
    schedule = greedy_schedule(program)
    kernel = schedule.kernels[1]
    need = kernel_need(Inline(program, frozenset(schedule.kept)), kernel)
    cached, missed = (Costs(program, COUNTS, 4, device).work(kernel, need) for device in (H100, small))
    assert missed.l2_bytes == cached.l2_bytes
    assert cached.dram_bytes < missed.dram_bytes <= missed.l2_bytes


def test_a_gradient_of_weights_is_summed_in_pieces() -> None:
    work = works()["outer21"]
    pieces = 2
    assert work.stored_bytes == 3 * 8 * 16 * 4
    assert work.matrix_flops == 2 * 128 * 8 * 16
    read = 100 * 32 + 100 * 64 + 4 * (100 + 3 + 100)
    assert work.dram_bytes == work.stored_bytes + read + 2 * pieces * 8 * 16 * 4
    assert OUTER_ROWS > 100


def test_a_hub_is_cut_into_pieces() -> None:
    hub = replace(COUNTS, longest=(1_000_000, 9, 5, 6))
    assert works(hub)["aggregate7"].tail_rows == LONGEST_PIECE


def test_time_is_that_of_what_a_kernel_waits_for() -> None:
    slow = replace(H100, dram_gbps=1.0, launch_us=3.0)
    work = Work(dram_bytes=5_000.0, l2_bytes=5_000.0, stored_bytes=0)
    assert work.time_us(slow, 4) == pytest.approx(5.0 + 3.0)


def test_the_best_tile_is_the_fastest() -> None:
    program = with_backward(layer("rgcn", 8, 16))
    schedule = greedy_schedule(program)
    needs = Inline(program, frozenset(schedule.kept))
    costs = Costs(program, COUNTS, 4, replace(H100, matrix_tflops=(1e-3, 1e-3)))
    for kernel in schedule.kernels:
        need = kernel_need(needs, kernel)
        best = costs.time_us(costs.tiled(kernel, need), need)
        assert all(best <= costs.time_us(replace(kernel, tile=Tile(rows=rows)), need) for rows in (32, 64, 128))


def test_constants_are_found_again_from_measured_times() -> None:
    truth = replace(H100, dram_gbps=1_500.0, rows_per_us=900.0, tail_rows_per_us=36.0, launch_us=4.0)
    kernels = [Work(n * 1e6, n * 1e6, 0) for n in (1.0, 20.0, 300.0)]
    kernels += [Work(1e3, 1e3, 0, rows=n) for n in (10_000, 900_000)]
    found = fitted(H100, [(work, work.time_us(truth, 4)) for work in kernels], 4, "mine")
    assert (found.name, found.launch_us) == ("mine", pytest.approx(4.0, rel=1e-3))
    assert (found.dram_gbps, found.rows_per_us) == (pytest.approx(1_500.0, rel=1e-3), pytest.approx(900.0, rel=1e-3))
    # No kernel waited for products: their rate stays.
    assert found.matrix_tflops == H100.matrix_tflops


def test_a_fit_without_kernels_is_refused() -> None:
    for measured in ([], [(Work(1.0, 1.0, 0), 0.0)]):
        with pytest.raises(InputError, match="kernels with times above 0"):
            fitted(H100, measured, 4, "mine")


def test_a_gpu_without_constants_is_refused() -> None:
    with pytest.raises(InputError, match="has no constants"):
        graph_hardware("abacus")
