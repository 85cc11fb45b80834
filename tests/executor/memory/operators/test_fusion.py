"""Fused runs: what fuses, and the bytes that the kernels of a run move, against counts by hand."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch._inductor.utils import run_and_get_code

from loadmaster.executor.memory.operators.fusion import is_elementwise, is_fusible, steps, traffic
from loadmaster.executor.steps.step_graph import StepGraph
from tests.executor.tape import Tape

aten = torch.ops.aten
N, C, H = 4, 8, 16
BIG = 4 * N * C * H * H  # bytes of one float32 activation


def moved(tape: Tape, nodes, written):
    """Traffic of the nodes; ``written`` are read by somebody else."""
    tape.graph.output(tuple(written))
    step_graph = StepGraph(fx.GraphModule(torch.nn.Module(), tape.graph), (), ())
    return traffic(step_graph, nodes, written)


def norm(tape: Tape, x: fx.Node) -> tuple[fx.Node, fx.Node]:
    statistics = [tape.input(C) for _ in range(4)]
    made = tape.call(aten._native_batch_norm_legit_functional.default, x, *statistics, True, 0.1, 1e-5)
    return made, tape.call(operator.getitem, made, 0)


def test_products_and_unknown_operators_run_on_their_own():
    tape = Tape()
    x, w = tape.input(8, 8), tape.input(8, 8)
    product, relu = tape.call(aten.mm.default, x, w), tape.call(aten.relu.default, x)
    total, order = tape.call(aten.sum.dim_IntList, x, [0]), tape.call(aten.sort.default, x)
    assert [is_fusible(n) for n in (product, relu, total, order)] == [False, True, True, False]
    assert [is_elementwise(n) for n in (product, relu, total)] == [False, True, False]
    assert steps([relu, total, product, relu], fused=True) == [[relu, total], [product], [relu]]
    assert steps([relu, total], fused=False) == [[relu], [total]]


def test_what_only_the_run_reads_moves_no_bytes():
    tape = Tape()
    x, y = tape.input(N, C, H, H), tape.input(N, C, H, H)
    a = tape.call(aten.add.Tensor, x, y)
    b = tape.call(aten.relu.default, a)
    c = tape.call(aten.mul.Tensor, b, x)
    found = moved(tape, [a, b, c], [c])
    assert found.moved_bytes == 3 * BIG  # x and y read once each, c written
    assert found.kernels == 1


def test_results_in_the_middle_are_written_too():
    tape = Tape()
    x = tape.input(N, C, H, H)
    a = tape.call(aten.relu.default, x)
    b = tape.call(aten.neg.default, a)
    assert moved(tape, [a, b], [a, b]).moved_bytes == 3 * BIG


def test_batch_norm_and_what_follows_read_the_input_twice():
    tape = Tape()
    x = tape.input(N, C, H, H)
    made, normalized = norm(tape, x)
    relu = tape.call(aten.relu.default, normalized)
    found = moved(tape, [made, relu], [relu])
    assert found.kernels == 2
    assert 3 * BIG <= found.moved_bytes <= 3 * BIG + 2 * 4 * 4 * C  # and the small parameters, in both kernels


def test_backward_of_batch_norm_and_relu_reads_gradient_and_input_twice():
    tape = Tape()
    gradient, x, output = (tape.input(N, C, H, H) for _ in range(3))
    mask = tape.call(aten.threshold_backward.default, gradient, output, 0)
    vectors = [tape.input(C) for _ in range(5)]
    back = tape.call(aten.native_batch_norm_backward.default, mask, x, *vectors, True, 1e-5, [True, True, True])
    dx, dw = tape.call(operator.getitem, back, 0), tape.call(operator.getitem, back, 1)
    found = moved(tape, [mask, back], [dx, dw])
    assert found.kernels == 2
    assert 7 * BIG <= found.moved_bytes <= 7 * BIG + 64 * 4 * C


@pytest.mark.parametrize(("dims", "kernels", "reads"), [([-1], 1, 1), ([0], 2, 2)])
def test_sums_along_rows_fuse_with_what_follows_and_sums_across_do_not(dims, kernels, reads):
    tape = Tape()
    x = tape.input(256, 256)
    total = tape.call(aten.sum.dim_IntList, x, dims, True)
    shifted = tape.call(aten.sub.Tensor, x, total)
    found = moved(tape, [total, shifted], [shifted])
    assert found.kernels == kernels
    assert found.moved_bytes == (reads + 1) * 4 * 256 * 256


def test_broadcasts_and_looked_up_rows_count_what_is_read():
    tape = Tape()
    x = tape.input(64, 64)
    spread = tape.call(aten.expand.default, tape.input(1, 64), [64, 64])
    total = tape.call(aten.add.Tensor, x, spread)
    assert moved(tape, [total], [total]).moved_bytes == 4 * (64 * 64 * 2 + 64)


def test_attention_written_out_reads_and_writes_its_scores_once():
    """scaled_dot_product_attention under a mask that trains, as T5 has it."""
    tape = Tape()
    scores, mask = tape.input(N, C, H, H), tape.input(1, C, H, H)
    masked = tape.call(aten.add.Tensor, scores, mask)
    shares = tape.call(aten._safe_softmax.default, masked, -1)
    found = moved(tape, [masked, shares], [shares])
    assert found.kernels == 1
    assert found.moved_bytes == 2 * BIG + BIG // N


def test_windows_that_roll_on_are_read_where_they_are_used():
    """What Swin shifts between its layers."""
    tape = Tape()
    rolled = tape.call(aten.roll.default, tape.input(N, H, H, C), [3, 3], [1, 2])
    used = tape.call(aten.relu.default, rolled)
    found = moved(tape, [rolled, used], [used])
    assert (found.kernels, found.moved_bytes) == (1, 2 * BIG)


def test_upsampling_into_a_concatenation_is_one_kernel():
    """What a decoder does: the enlarged image is never there on its own, and the small one is read once."""
    tape = Tape()
    small, skip = tape.input(N, C, H // 2, H // 2), tape.input(N, C, H, H)
    rows, columns = tape.input(H, 1, dtype=torch.int64), tape.input(H, dtype=torch.int64)
    large = tape.call(aten._unsafe_index.Tensor, small, [None, None, rows, columns])
    both = tape.call(aten.cat.default, [skip, large], 1)
    found = moved(tape, [large, both], [both])
    assert found.kernels == 1
    assert found.moved_bytes == BIG // 4 + BIG + 2 * BIG + 2 * 8 * H  # both inputs, the result, the indices

    def decode(small, skip):
        return torch.cat([skip, torch.nn.functional.interpolate(small, scale_factor=2.0)], 1)

    example = torch.randn(N, C, H // 2, H // 2), torch.randn(N, C, H, H)
    result, (code,) = run_and_get_code(torch.compile(decode, dynamic=False), *example)
    assert code.count("empty_strided_cpu((") == 1  # the concatenation alone is allocated
    assert torch.equal(result, decode(*example))
