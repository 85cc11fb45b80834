"""Chunked linear + cross-entropy against plain PyTorch: as a function, and found in joint graphs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_graphs import prepared_step
from torch import nn
from torch.nn import functional as F

from loadmaster.errors import InputError
from loadmaster.executor.costs.materialize import materialize
from loadmaster.executor.costs.profiled import Profiler
from loadmaster.executor.memory.implementations.cross_entropy import (
    default_chunks,
    linear_cross_entropy,
    padded_classes,
    row_stride,
    scaled,
)
from tests.executor.memory.implementations.chunked_loss import chunked_linear_cross_entropy
from tests.executor.tape import Tape

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def with_gradients(loss, *tensors):
    return [loss, *torch.autograd.grad(loss, [t for t in tensors if t is not None])]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 13),
    width=st.integers(1, 6),
    classes=st.integers(1, 9),
    chunks=st.integers(1, 20),
    reduction=st.sampled_from(["mean", "sum"]),
    biased=st.booleans(),
    ignored=st.booleans(),
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 1000),
)
def test_equals_linear_then_cross_entropy(
    rows, width, classes, chunks, reduction, biased, ignored, weighted, smoothing, dtype, seed
):
    torch.manual_seed(seed)
    hidden = torch.randn(width, rows, dtype=dtype).t().requires_grad_()
    weight = torch.randn(classes, width, dtype=dtype, requires_grad=True)
    bias = torch.randn(classes, dtype=dtype, requires_grad=True) if biased else None
    targets = torch.randint(classes, (rows,))
    if ignored:
        targets[torch.rand(rows) < 0.3] = -100
    class_weights = torch.rand(classes, dtype=dtype) + 0.1 if weighted else None
    options = {"reduction": reduction, "label_smoothing": smoothing}
    plain = F.cross_entropy(F.linear(hidden, weight, bias), targets, class_weights, **options)
    chunked = chunked_linear_cross_entropy(
        hidden, weight, targets, bias, class_weights=class_weights, chunks=chunks, **options
    )
    expected = with_gradients(plain, hidden, weight, bias)
    for got, want in zip(with_gradients(chunked, hidden, weight, bias), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


def drawn_weights(rows, dtype):
    """Some of them zero, as masks are."""
    return torch.rand(rows, dtype=dtype) * (torch.rand(rows) < 0.7)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 13),
    classes=st.integers(1, 9),
    chunks=st.integers(1, 5),
    mean=st.booleans(),
    biased=st.booleans(),
    weighted=st.booleans(),
    masked=st.booleans(),
    z_loss=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1]),
    scale=st.sampled_from([1.0, 0.25, -3.0]),
    cap=st.sampled_from([0.0, 1.5]),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 1000),
)
def test_equals_a_weighted_sum_of_losses_of_mapped_logits_and_of_their_normalizers(
    rows, classes, chunks, mean, biased, weighted, masked, z_loss, smoothing, scale, cap, dtype, seed
):
    torch.manual_seed(seed)
    hidden = torch.randn(rows, 4, dtype=dtype, requires_grad=True)
    weight = torch.randn(classes, 4, dtype=dtype, requires_grad=True)
    bias = torch.randn(classes, dtype=dtype, requires_grad=True) if biased else None
    targets = torch.randint(classes, (rows,))
    targets[1:][torch.rand(rows - 1) < 0.3] = -100  # one counts, or the mean is NaN
    class_weights = torch.rand(classes, dtype=dtype) + 0.1 if weighted else None
    row_weights = drawn_weights(rows, dtype) if masked else None
    z_weights = drawn_weights(rows, dtype) if z_loss else None

    logits = scale * F.linear(hidden, weight, bias)
    if cap:
        logits = cap * torch.tanh(logits / cap)
    losses = F.cross_entropy(logits, targets, class_weights, reduction="none", label_smoothing=smoothing)
    plain = (losses if row_weights is None else losses * row_weights).sum()
    if mean:
        plain = plain / ((targets >= 0).sum() if class_weights is None else class_weights[targets[targets >= 0]].sum())
    if z_weights is not None:
        plain = plain + (z_weights * logits.logsumexp(1).square()).sum()

    chunked = chunked_linear_cross_entropy(
        *(hidden, weight, targets, bias),
        class_weights=class_weights,
        chunks=chunks,
        label_smoothing=smoothing,
        reduction="mean" if mean else "sum",
        row_weights=row_weights,
        z_weights=z_weights,
        scale=scale,
        cap=cap,
    )
    expected = with_gradients(plain, hidden, weight, bias)
    for got, want in zip(with_gradients(chunked, hidden, weight, bias), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=3 * TOLERANCE[dtype], atol=3 * TOLERANCE[dtype])


def test_rows_that_count_nowhere_may_hold_anything_and_a_z_loss_asks_for_no_target():
    hidden = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        hidden[2] = float("inf")
    targets, z_weights = torch.full((3,), -100), torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64)
    loss = chunked_linear_cross_entropy(hidden, weight, targets, reduction="sum", z_weights=z_weights)
    plain = 2 * (hidden[1] @ weight.t()).logsumexp(0).square()
    got, want = with_gradients(loss, hidden), with_gradients(plain, hidden)
    for have, expected in zip(got, want, strict=True):
        torch.testing.assert_close(have, expected, rtol=1e-12, atol=1e-12)


def test_no_rows():
    hidden = torch.randn(0, 3, requires_grad=True)
    weight = torch.randn(5, 3, requires_grad=True)
    loss = chunked_linear_cross_entropy(hidden, weight, torch.empty(0, dtype=torch.int64), reduction="sum")
    loss.backward()
    assert loss.item() == 0
    assert weight.grad.abs().max() == 0


def test_batches_of_sequences_and_another_ignored_class():
    hidden = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(7, (3, 5))
    targets[0, :3] = 2
    plain = F.cross_entropy(F.linear(hidden, weight).flatten(0, 1), targets.flatten(), ignore_index=2)
    chunked = chunked_linear_cross_entropy(hidden, weight, targets, chunks=4, ignore_index=2)
    for got, want in zip(with_gradients(chunked, hidden, weight), with_gradients(plain, hidden, weight), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_autocast_is_as_close_to_the_truth_as_plain_pytorch():
    torch.manual_seed(0)
    hidden = torch.randn(40, 16, requires_grad=True)
    weight = torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(30, (40,))
    truth = with_gradients(F.cross_entropy(F.linear(hidden, weight), targets), hidden, weight)
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_linear_cross_entropy(hidden, weight, targets, chunks=5)
        plain = F.cross_entropy(F.linear(hidden, weight), targets)
    assert loss.dtype == torch.float32
    pairs = zip(with_gradients(loss, hidden, weight), with_gradients(plain, hidden, weight), truth, strict=True)
    for got, other, want in pairs:
        assert got.dtype == torch.float32
        # A tenth of bfloat16's own rounding, beside what plain PyTorch is off by.
        assert (got - want).norm() <= 1.2 * (other - want).norm() + 4e-4 * want.norm()


def test_large_logits_do_not_overflow():
    hidden = 1e3 * torch.randn(6, 4)
    weight, targets = torch.randn(9, 4), torch.randint(9, (6,))
    plain = F.cross_entropy(F.linear(hidden, weight), targets)
    torch.testing.assert_close(chunked_linear_cross_entropy(hidden, weight, targets, chunks=3), plain)


class Head(nn.Module):
    """An embedding, a layer, and a head of more classes than it is wide."""

    def __init__(self, biased: bool, tied: bool = False, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 6)
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 40, bias=biased)
        if tied:
            self.head.weight = self.tokens.weight
        self.to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.tokens(tokens)).tanh())


def tokens_and_targets(count: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    tokens, targets = (torch.randint(40, (2, count)) for _ in range(2))
    targets[0, ::7] = -100
    return tokens, targets


def loss_and_gradients(step, module, *inputs):
    module.zero_grad()
    loss = step(*inputs)
    (3 * loss).backward()
    return [loss.detach(), *(p.grad for p in module.parameters())]


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", pytest.param("sum", marks=pytest.mark.slow)])
@pytest.mark.parametrize("extra", ["nothing", "class weights", "smoothing"])
@pytest.mark.parametrize(("biased", "tied"), [(True, False), (False, False), (False, True)])
def test_found_in_a_joint_graph(biased, tied, extra, reduction):
    module = Head(biased, tied)
    inputs = tokens_and_targets()
    weights = torch.rand(40, dtype=torch.float64) if extra == "class weights" else None
    options = {"label_smoothing": 0.1} if extra == "smoothing" else {}

    def step(tokens, targets):
        return F.cross_entropy(module(tokens).flatten(0, 1), targets.flatten(), weights, reduction=reduction, **options)

    compiled, operators = prepared_step(step)
    got = loss_and_gradients(compiled, module, *inputs)
    for have, want in zip(got, loss_and_gradients(step, module, *inputs), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-11)
    assert sum("linear_cross_entropy" in o for o in operators) == 1
    assert sum("scaled" in o for o in operators) == 2 + biased
    assert not any("log_softmax" in o or "nll_loss" in o for o in operators)


def test_found_under_autocast_as_precise_as_plain_autocast():
    module = Head(biased=True, dtype=torch.float32)
    inputs = tokens_and_targets()

    def step(tokens, targets):
        return F.cross_entropy(module(tokens).flatten(0, 1), targets.flatten())

    truth = loss_and_gradients(step, module, *inputs)
    with torch.autocast("cpu", torch.bfloat16):
        compiled, operators = prepared_step(step)
        got = loss_and_gradients(compiled, module, *inputs)
        plain = loss_and_gradients(step, module, *inputs)
    assert any("linear_cross_entropy" in o for o in operators)
    for have, other, want in zip(got, plain, truth, strict=True):
        assert have.dtype == other.dtype
        assert (have - want).norm() <= 1.2 * (other - want).norm() + 1e-3 * want.norm()


def test_frozen_head_needs_only_the_gradient_of_hidden():
    module = Head(biased=True)
    module.head.requires_grad_(False)
    inputs = tokens_and_targets()

    def step(tokens, targets):
        return F.cross_entropy(module(tokens).flatten(0, 1), targets.flatten())

    compiled, operators = prepared_step(step)
    compiled(*inputs).backward()
    got = [p.grad.clone() for p in module.parameters() if p.requires_grad]
    module.zero_grad()
    step(*inputs).backward()
    for have, want in zip(got, [p.grad for p in module.parameters() if p.requires_grad], strict=True):
        torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-11)
    assert sum("scaled" in o for o in operators) == 1


@pytest.mark.parametrize("why", ["few rows", "few classes", "logits are read", "smoothing with class weights"])
def test_left_alone(why):
    module = Head(biased=True)
    if why == "few classes":
        module.head = nn.Linear(6, 5).double()
    tokens, targets = tokens_and_targets(100 if why == "few rows" else 300)
    both = why == "smoothing with class weights"
    weights = torch.rand(40, dtype=torch.float64) if both else None

    def step(tokens, targets):
        logits = module(tokens).flatten(0, 1)
        loss = F.cross_entropy(
            logits, targets.flatten(), weights, label_smoothing=0.1 if both else 0.0, reduction="sum"
        )
        return loss + logits.square().mean() if why == "logits are read" else loss

    compiled, operators = prepared_step(step)
    inputs = (tokens, targets.clamp(max=4) if why == "few classes" else targets)
    got = loss_and_gradients(compiled, module, *inputs)
    for have, want in zip(got, loss_and_gradients(step, module, *inputs), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-11)
    assert not any("linear_cross_entropy" in o for o in operators)


def test_chunks_cover_the_rows():
    assert default_chunks(32_768, 1024) == 8
    assert default_chunks(0, 8) == 1
    assert default_chunks(256, 4) == 1


@pytest.mark.parametrize("differentiate", ["all", "hidden", "nothing"])
def test_operators_pass_the_framework_checks(differentiate):
    hidden, weight, targets = torch.randn(7, 3), torch.randn(3, 5), torch.randint(5, (7,))
    more = (torch.rand(7), torch.rand(7)) if differentiate == "all" else (None, None)
    args = (
        hidden,
        weight,
        torch.randn(5),
        targets,
        None,
        *more,
        2,
        -100,
        True,
        0.0,
        0.5,
        3.0,
        torch.float32,
        differentiate,
    )
    torch.library.opcheck(linear_cross_entropy, args)
    torch.library.opcheck(scaled, (weight, torch.tensor(0.5), torch.bfloat16))


def test_only_the_gradients_that_are_asked_for_are_computed():
    hidden, weight, targets = torch.randn(7, 3), torch.randn(3, 5), torch.randint(5, (7,))
    args = (hidden, weight, torch.randn(5), targets, None, None, None, 2, -100, True, 0.0, 1.0, 0.0, torch.float32)
    every, some, none = (linear_cross_entropy(*args, wanted) for wanted in ("all", "hidden", "nothing"))
    assert [t.numel() for t in every[2:]] == [21, 15, 5]
    assert [t.numel() for t in some[2:]] == [21, 0, 0]
    assert [t.numel() for t in none[2:]] == [0, 0, 0]
    assert every[0] == some[0] == none[0]
    assert torch.equal(every[2], some[2])


def test_small_float16_gradients_do_not_vanish():
    """Without a loss scale of its own the mean over many rows would underflow in 16-bit logits."""
    torch.manual_seed(0)
    rows = 40_000
    hidden = torch.randn(rows, 4).half().requires_grad_()
    weight = torch.randn(30, 4).half().requires_grad_()
    targets = torch.randint(30, (rows,))
    chunked = with_gradients(2.0**16 * chunked_linear_cross_entropy(hidden, weight, targets), hidden, weight)
    exact = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    plain = with_gradients(2.0**16 * F.cross_entropy(F.linear(*exact), targets), *exact)
    for got, want in zip(chunked, plain, strict=True):
        assert (got.double() - want).norm() <= 2e-3 * want.norm()


@pytest.mark.parametrize("target", [5, -1])
def test_a_target_that_is_no_class_is_refused(target):
    with pytest.raises(InputError) as caught:
        chunked_linear_cross_entropy(torch.randn(7, 3), torch.randn(5, 3), torch.full((7,), target))
    assert caught.value.field == "targets"


@given(classes=st.integers(1, 200_000), element_bytes=st.sampled_from([2, 4, 8]))
def test_rows_of_logits_start_at_multiples_of_128_bytes_and_are_no_longer_than_that_asks(classes, element_bytes):
    stride = row_stride(classes, element_bytes)
    assert stride * element_bytes % 128 == 0
    assert 0 <= (stride - classes) * element_bytes < 128
    padded = padded_classes(classes, element_bytes)
    assert classes <= padded <= stride
    assert padded * element_bytes % 16 == 0


def test_made_up_targets_are_classes_however_many_rows_there_are():
    """Measuring runs the operator on targets below the limit: above the classes it would fail, and be estimated."""
    tape = Tape()
    hidden, weight, targets = tape.input(64, 8), tape.input(8, 3), tape.input(64, dtype=torch.int64)
    options = (None, None, None, 2, -100, True, 0.0, 1.0, 0.0, torch.float32, "all")
    node = tape.call(linear_cross_entropy._opoverload, hidden, weight, None, targets, *options)
    assert materialize(node, torch.device("cpu"))[0][3].unique().tolist() == [0, 1, 2]
    assert Profiler(torch.device("cpu"), 1.0)._measure(node) is not None
