"""Cost models: FLOPs and bytes against counts by hand, and measurement that is bounded and cached."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.utils import run_and_get_code

from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel, profiled, roofline
from loadmaster.executor.costs.profiled import Profiler, unknown_bytes, without_bias
from loadmaster.executor.costs.traffic import flops, generated, is_atomic, is_free, node_bytes
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.models.hardware import catalogue, hardware
from tests.executor.tape import Tape

aten = torch.ops.aten


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 9), k=st.integers(1, 9), m=st.integers(1, 9))
def test_matmul_counts(n, k, m):
    tape = Tape()
    node = tape.call(aten.mm.default, tape.input(n, k), tape.input(k, m))
    assert flops(node) == 2 * n * k * m
    assert node_bytes(node) == 4 * (n * k + k * m + n * m)


def test_convolution_and_attention_counts():
    tape = Tape()
    x, w = tape.input(2, 3, 9, 9), tape.input(5, 3, 3, 3)
    conv = tape.call(aten.convolution.default, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert flops(conv) == 2 * (2 * 5 * 9 * 9) * (3 * 3 * 3)
    q, k, v = (tape.input(2, 4, tokens, 8) for tokens in (6, 7, 7))
    attention = tape.call(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v)
    assert flops(attention) == 2 * 2 * (2 * 4 * 6 * 7 * 8)


def test_views_cost_nothing_and_broadcasts_are_read_once():
    tape = Tape()
    x = tape.input(6, 4)
    expanded = tape.call(aten.expand.default, tape.input(1, 4), [6, 4])
    assert is_free(expanded)
    assert is_free(tape.call(aten.t.default, x))
    assert not is_free(tape.call(aten.relu.default, x))
    assert node_bytes(tape.call(aten.add.Tensor, x, expanded)) == 4 * (24 + 4 + 24)
    for model in (roofline("h200"), profiled(torch.device("cpu"))):
        assert model.node_us(expanded) == 0
        assert model.workspace_bytes(expanded) == 0


def test_embedding_reads_rows_not_the_table():
    tape = Tape()
    node = tape.call(aten.embedding.default, tape.input(10_000, 8), tape.input(3, dtype=torch.int64))
    assert node_bytes(node) == 3 * 8 * 4 * 2 + 3 * 8


@pytest.mark.parametrize(
    ("dtype", "index", "accumulate", "expected"),
    [
        (torch.float32, torch.int64, True, True),
        (torch.float32, torch.int64, False, False),
        (torch.float32, torch.bool, True, False),
        (torch.int64, torch.int64, True, False),
    ],
)
def test_additions_by_index_that_a_compiler_generates_take_their_bytes(dtype, index, accumulate, expected):
    tape = Tape()
    at = tape.input(8, dtype=index)
    values = tape.input(*([] if index == torch.bool else [8]), dtype=dtype)
    node = tape.call(aten.index_put.default, tape.input(8, dtype=dtype), [at], values, accumulate)
    assert is_atomic(node) is expected
    cpu = torch.device("cpu")
    compiled, eager = (profiled(cpu, limit_s=0.0, compiled=c) for c in (True, False))
    if expected:  # the first argument, 8 indices and 8 values are read; the result is written, read, written
        for costs in (compiled, roofline("h200", compiled=True)):
            assert costs.node_us(node) == costs.move_us((8 + 2 * 8 + 8 + 3 * 8) * 4, kernels=2)
            assert costs.workspace_bytes(node) == 0
    assert eager.node_us(node) == roofline("cpu").node_us(node)


@pytest.mark.slow
# From 2.14 on it generates those of whole numbers on a CPU as well. They count as PyTorch's own, which take longer.
@pytest.mark.parametrize(("dtype", "in_place"), [(torch.float32, True), (torch.int64, torch.__version__ >= (2, 14))])
def test_inductor_generates_the_additions_that_count_as_generated(dtype, in_place):
    def scatter(target, at, values):
        return target.index_put([at], values, accumulate=True)

    example = torch.zeros(64, dtype=dtype), torch.randint(64, (512,)), torch.ones(512, dtype=dtype)
    result, (code,) = run_and_get_code(torch.compile(scatter, dynamic=False), *example)
    assert ("aten.index_put" not in code) is in_place
    assert torch.equal(result, scatter(*example))


@pytest.mark.slow
@pytest.mark.parametrize(("window", "in_one_pass"), [([3, 3], True), ([5], True), ([7, 7], False)])
def test_pools_that_a_compiler_generates_take_their_bytes(window, in_one_pass):
    tape = Tape()
    node = tape.call(aten.max_pool2d_with_indices.default, tape.input(2, 3, 20, 20), window, [2, 2], [1, 1])
    cpu = torch.device("cpu")
    compiled, eager = (profiled(cpu, limit_s=0.0, compiled=c) for c in (True, False))
    results, indices = node.meta["val"]
    moved = 2 * 3 * 20 * 20 * 4 + results.numel() * 4 + indices.numel() * 8
    assert (generated(node) == (moved, 1)) is in_one_pass
    if in_one_pass:
        for costs in (compiled, roofline("h200", compiled=True)):
            assert costs.node_us(node) == costs.move_us(moved)
            assert costs.workspace_bytes(node) == 0
    assert eager.node_us(node) == roofline("cpu").node_us(node)

    def pool(x):
        return torch.nn.functional.max_pool2d(x, (window * 2)[:2], stride=2, padding=1, return_indices=True)

    x = torch.randn(2, 3, 20, 20)
    (result, at), (code,) = run_and_get_code(torch.compile(pool, dynamic=False), x)
    assert not in_one_pass or "aten.max_pool2d_with_indices" not in code
    assert torch.equal(result, pool(x)[0]) and torch.equal(at, pool(x)[1])


def test_fused_kernels_take_their_bytes_and_their_launches():
    entry = hardware("h200")
    model = roofline("h200")
    move_us = (1 << 30) / (entry.dram_gbps * entry.dram_share * 1e3)
    assert model.move_us(1 << 30, 3) == pytest.approx(move_us + 3 * entry.launch_us)
    measured = profiled(torch.device("cpu"))
    assert measured.move_us(1 << 22, 0) == pytest.approx(2 * measured.move_us(1 << 21, 0))
    assert measured.move_us(0, 2) > 0


def test_roofline_is_the_slower_of_computing_and_moving():
    tape = Tape()
    entry = hardware("a100-80gb")
    model = roofline("a100-80gb")
    product = tape.call(aten.mm.default, *(tape.input(4096, 4096, dtype=torch.bfloat16) for _ in range(2)))
    compute_us = 2 * 4096**3 / (312e12 * entry.compute_share) * 1e6
    assert model.node_us(product) == pytest.approx(compute_us + entry.launch_us)
    pointwise = tape.call(aten.relu.default, tape.input(1 << 24))
    move_us = 2 * (4 << 24) / (2039e9 * entry.dram_share) * 1e6
    assert model.node_us(pointwise) == pytest.approx(move_us + entry.launch_us)


def test_tf32_follows_the_settings():
    tape = Tape()
    product = tape.call(aten.mm.default, tape.input(2048, 2048), tape.input(2048, 2048))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        exact = roofline("h200").node_us(product)
        torch.set_float32_matmul_precision("high")
        assert roofline("h200").node_us(product) < exact / 3
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", [entry.name for entry in catalogue()])
def test_every_catalogue_entry_gives_costs(name):
    tape = Tape()
    x = tape.input(8, 8, dtype=torch.bfloat16)
    assert 0 < roofline(name).node_us(tape.call(aten.mm.default, x, x)) < 1000


def test_workspace_formula():
    @torch.library.custom_op("loadmaster_test::scratchy", mutates_args=())
    def scratchy(x: torch.Tensor, rows: int) -> torch.Tensor:
        return x.clone()

    scratchy.register_fake(lambda x, rows: torch.empty_like(x))
    register_workspace(scratchy._opoverload, lambda x, rows: rows * x.shape[0])
    tape = Tape()
    node = tape.call(scratchy._opoverload, tape.input(7), 3)
    assert roofline("cpu").workspace_bytes(node) == 21
    assert profiled(torch.device("cpu")).workspace_bytes(node) == 21
    with pytest.raises(InputError, match="already has"):
        register_workspace(scratchy._opoverload, lambda x, rows: 0)


@pytest.mark.parametrize(("name", "device_type"), [("cpu", "cpu"), ("h200", "cuda")])
def test_workspace_is_that_of_the_hardware_asked_for(name, device_type):
    """Whatever device the model is on: a laptop's, or none."""

    def workspace(logits: torch.Tensor, beside: list[torch.Tensor]) -> int:
        assert {t.device.type for t in (logits, *beside)} == {device_type}
        assert [(*t.shape, *t.stride(), t.dtype) for t in (logits, *beside)] == [(6, 4, 1, 6, torch.bfloat16)] * 2
        return 24

    @torch.library.custom_op(f"loadmaster_test::on_{name}", mutates_args=())
    def operator(logits: torch.Tensor, beside: list[torch.Tensor]) -> torch.Tensor:
        return logits.clone()

    operator.register_fake(lambda logits, beside: torch.empty_like(logits))
    register_workspace(operator._opoverload, workspace)
    tape = Tape()
    x = tape.call(aten.t.default, tape.input(4, 6, dtype=torch.bfloat16))
    assert roofline(name).workspace_bytes(tape.call(operator._opoverload, x, [x])) == 24


def test_a_result_that_pytorch_makes_too_large_is_workspace():
    tape = Tape()
    x = tape.input(4, 288, 64)
    node = tape.call(aten.col2im.default, x, [64, 1], [9, 1], [1, 1], [4, 0], [1, 1])
    result = aten.col2im.default(torch.zeros(4, 288, 64), [64, 1], [9, 1], [1, 1], [4, 0], [1, 1])
    beyond = result.untyped_storage().nbytes() - result.nbytes
    assert profiled(torch.device("cpu")).workspace_bytes(node) == beyond


def test_results_that_were_not_asked_for_are_no_workspace():
    """As where a compiler sums a bias's gradient itself, and the library is not asked for it."""
    tape = Tape()
    given = tape.input(2, 8, 6, 6), tape.input(2, 4, 6, 6), tape.input(8, 4, 1, 1), [8], [1, 1], [0, 0], [1, 1]
    node = tape.call(aten.convolution_backward.default, *given, False, [0, 0], 1, [True, True, True])
    real = torch.zeros(2, 8, 6, 6), torch.zeros(2, 4, 6, 6), torch.zeros(8, 4, 1, 1), [8], [1, 1], [0, 0], [1, 1]
    for asked in ([True, True, False], [False, True, False]):
        result = aten.convolution_backward.default(*real, False, [0, 0], 1, asked)
        assert unknown_bytes(node, result) == 0


def test_measurement_runs_each_shape_once(monkeypatch):
    tape = Tape()
    x, w = tape.input(32, 64), tape.input(64, 16)
    nodes = [tape.call(aten.mm.default, x, w) for _ in range(3)]
    other = tape.call(aten.mm.default, w, tape.input(16, 8))
    runs = []
    run = Profiler.run
    monkeypatch.setattr(Profiler, "run", lambda self, node: runs.append(node) or run(self, node))
    model: CostModel = profiled(torch.device("cpu"))
    times = {model.node_us(n) for n in nodes}
    assert len(times) == 1
    assert times.pop() > 0
    assert model.node_us(other) > 0
    assert runs == [nodes[0], other]


def test_no_time_left_means_estimates():
    tape = Tape()
    node = tape.call(aten.relu.default, tape.input(1000))
    assert profiled(torch.device("cpu"), limit_s=0.0).node_us(node) == roofline("cpu").node_us(node)


def test_indices_are_in_range_and_failures_are_estimated():
    tape = Tape()
    index = tape.input(50, dtype=torch.int64)
    lookup = tape.call(aten.embedding.default, tape.input(3, 4), index)
    scores = tape.input(50, 7)
    loss = tape.call(aten.nll_loss_forward.default, scores, index, None, 1, -100)
    model = Profiler(torch.device("cpu"), 10.0)
    assert all(model.node_us(n) > 0 for n in (lookup, loss))
    assert all(m is not None for m in model._measured.values())

    @torch.library.custom_op("loadmaster_test::broken", mutates_args=())
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("does not run")

    broken.register_fake(torch.empty_like)
    node = tape.call(broken._opoverload, scores)
    assert model.node_us(node) > 0


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(InputError, match=r"device: .*roofline"):
        profiled(torch.device("meta"))
    with pytest.raises(InputError, match=r"hardware: .*a100-80gb"):
        roofline("a99")


@pytest.mark.parametrize("transposed", [False, True])
def test_a_compiler_takes_the_bias_from_a_convolution(transposed):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3), torch.randn(4)
    rest = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)
    args, read_bytes = without_bias(aten.convolution.default, (x, weight, bias, *rest))
    result = aten.convolution(*args)
    assert read_bytes == 0
    torch.testing.assert_close(result + bias[:, None, None], aten.convolution(x, weight, bias, *rest))
    for mask in ([True, True, True], [False, True, True], [True, True, False], [False, False, True]):
        given = (result, x, weight, [4], *rest, mask)
        args, read_bytes = without_bias(aten.convolution_backward.default, given)
        assert read_bytes == (result.numel() * 4 if mask[2] else 0)
        got, expected = aten.convolution_backward(*args), aten.convolution_backward(*given)
        for wanted, a, b in zip(mask[:2], got, expected, strict=False):
            assert not wanted or torch.equal(a, b)


def test_other_operators_are_measured_as_they_are():
    args = (torch.randn(2, 3), torch.randn(3, 4))
    assert without_bias(aten.mm.default, args) == (args, 0)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_both_gradients_of_a_convolution_compute_as_much_as_the_convolution_each(groups):
    tape = Tape()
    x, weight = tape.input(2, 8, 9, 9), tape.input(16, 8 // groups, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    forward = tape.call(aten.convolution.default, x, weight, None, *rest)
    products = 2 * 9 * 9 * 16 * (8 // groups) * 3 * 3
    assert flops(forward) == 2 * products
    for mask in ([True, True, False], [True, False, False], [False, True, True]):
        backward = tape.call(aten.convolution_backward.default, forward, x, weight, [16], *rest, mask)
        assert flops(backward) == 2 * products * sum(mask[:2])


def test_few_channels_take_longer_for_the_same_work():
    tape = Tape()
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    times = []
    for channels, size in ((32, 256), (64, 128), (128, 64), (256, 32)):  # as many operations each
        x, weight = tape.input(64, channels, size, size), tape.input(channels, channels, 3, 3)
        forward = tape.call(aten.convolution.default, x, weight, None, *rest)
        backward = tape.call(aten.convolution_backward.default, forward, x, weight, None, *rest, [True, True, False])
        model = roofline("h200")
        times.append(model.node_us(forward))
        assert model.node_us(backward) > 2 * times[-1] - model.hardware.launch_us
    assert times[0] > 1.9 * times[1] > 3.5 * times[2]
    assert times[3] <= times[2]
