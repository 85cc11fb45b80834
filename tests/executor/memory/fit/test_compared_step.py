"""What a fit hands out has plain PyTorch's loss and gradients, or is plain PyTorch's step."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

from loadmaster.executor import KnobStep, apply, capture, fit
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit import trial_runs, verify
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.memory.fit.phases import Phases
from loadmaster.executor.memory.fit.trials import PlainStep
from loadmaster.executor.memory.fit.values import LOSS, Comparison, Difference, differences
from loadmaster.executor.memory.fit.verify import Verifier, first_rows
from loadmaster.executor.steps import drawn_once
from loadmaster.executor.steps.batch import batch_of
from loadmaster.models.fit_record import load_fit
from tests.executor.memory import schedules
from tests.executor.memory.fit.fakes import halves
from tests.executor.memory.hand_planner import HandPlanner
from tests.executor.memory.models import mlp_case
from tests.executor.memory.random_tower import OPERATORS, WIDTH, RandomTower

OFF = Difference("the gradient of a.weight", 0.25, "1 in norm", "0.8 in norm")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class GradientInside(nn.Module):
    """An autograd.Function inside torch.func.grad: what is traced of it has no gradient (PyTorch issue 193279)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        inside = torch.func.grad(lambda y: Cube.apply(y @ self.weight).sum())
        return inside(self.layer(x)).square().mean()


class ComplexPinv(nn.Module):
    """The pseudoinverse of a complex matrix (PyTorch issue 197084)."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, dtype=torch.complex128))

    def forward(self, x):
        return (torch.linalg.pinv(self.weight) @ x).abs().square().mean()


def fit_by_hand(model, batch, **options):
    options = {"backend": "eager", "knob_tries": 0} | options
    return fit(model, batch, budget_bytes="1GiB", planner=HandPlanner(), costs=roofline("cpu"), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "batch", "named"),
    [
        (GradientInside, lambda: (torch.randn(8, 4),), "the gradient of layer.weight is None"),
        (ComplexPinv, lambda: (torch.randn(6, 5, dtype=torch.complex128),), "the gradient of weight is"),
    ],
)
def test_a_step_that_was_traced_wrongly_is_not_handed_out(model, batch, named, tmp_path):
    torch.manual_seed(0)
    model, batch = model(), batch()
    twin = copy.deepcopy(model)
    fitted = fit_by_hand(model, batch)
    assert isinstance(fitted.step, PlainStep) and fitted.is_final
    assert (fitted.plan, fitted.chosen, fitted.chosen_knob) == (None, None, None)
    assert named in fitted.report and "where plain PyTorch has" in fitted.report
    assert fitted.measured.peak_bytes == fitted.plain.measured.peak_bytes > 0
    fitted.save(tmp_path / "record.json")
    assert load_fit(tmp_path / "record.json").plain == fitted.plain.record
    fitted.step(*batch).backward()
    twin(*batch).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def compared(model, batch, step, loss=None):
    return Verifier(model, batch_of(batch), loss, Phases()).compared(step)


def kept_nothing(model, batch, loss=None):
    problem = capture(model, batch, loss, hardware=None if batch[0].is_cuda else "cpu", backend="eager")
    plan = schedules.plan(problem, schedules.schedule(problem, lambda i: False))
    return apply(plan, model, loss, backend="eager")


@pytest.mark.slow
def test_every_random_operator_is_replayed():
    torch.manual_seed(0)
    model, batch = RandomTower(list(OPERATORS)), (torch.randn(16, WIDTH),)
    found = compared(model, batch, kept_nothing(model, batch))
    assert found.differs is None
    assert "operator by operator, with the same draws of bernoulli, exponential" in found.said


@pytest.mark.gpu
@pytest.mark.parametrize("planned", [True, False])
def test_every_random_operator_is_replayed_on_a_gpu(planned):
    torch.manual_seed(0)
    model, batch = RandomTower(list(OPERATORS)).cuda(), (torch.randn(64, WIDTH, device="cuda"),)
    step = kept_nothing(model, batch) if planned else KnobStep(model, knob=0.3)
    found = compared(model, batch, step)
    assert found.differs is None and "with the same draws of" in found.said


class Attending(nn.Module):
    """Fused attention with dropout, in half precision."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.layer(x).float().square().mean()


@pytest.mark.gpu
@pytest.mark.parametrize("planned", [True, False])
def test_fused_attention_has_plain_pytorchs_mask(planned):
    torch.manual_seed(0)
    model, batch = Attending().cuda().bfloat16(), (torch.randn(8, 64, 64, device="cuda", dtype=torch.bfloat16),)
    step = kept_nothing(model, batch) if planned else KnobStep(model, knob=0.3)
    found = compared(model, batch, step)
    assert found.differs is None and "with the same draws of" in found.said


@pytest.mark.gpu
def test_without_room_what_plain_pytorch_keeps_lies_in_host_memory(monkeypatch):
    model, batch = (
        nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).cuda(),
        (torch.randn(64, 64, device="cuda"),) * 2,
    )
    step, of_all = kept_nothing(model, batch, nn.functional.mse_loss), verify.values_of
    calls = []

    def no_room_at_first(*given):
        calls.append(given)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return of_all(*given)

    monkeypatch.setattr(verify, "values_of", no_room_at_first)
    found = compared(model, batch, step, nn.functional.mse_loss)
    assert found.differs is None and "kept its results in host memory" in found.said


@pytest.mark.slow
def test_masks_that_are_drawn_again_are_another_gradient(monkeypatch):
    monkeypatch.setattr(drawn_once, "keep_draws", lambda _graph: None)
    model, batch = RandomTower(["dropout"] * 4), (torch.randn(256, WIDTH),)
    found = compared(model, batch, KnobStep(model, knob=0.1))
    assert found.differs is not None and found.differs.what.startswith("the gradient of layers.")


class Noisy(nn.Module):
    """Dropout, running statistics, and a bias whose gradient is nothing but rounding."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.body(x), y)


@pytest.mark.slow
def test_it_leaves_no_trace_and_takes_rounding_for_what_it_is(monkeypatch):
    torch.manual_seed(0)
    model, batch = Noisy(), (torch.randn(64, 8), torch.randn(64, 1))
    model(*batch).backward()
    step = kept_nothing(model, batch)
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()))]
    states = torch.get_rng_state(), random.getstate()
    monkeypatch.setitem(verify.ALLOWED, torch.float32, 0.0)  # all but equal values are looked at once more
    found = compared(model, batch, step)
    assert found.differs is None and "12 buffers" not in found.said and "3 buffers" in found.said
    after = (*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()


@pytest.mark.slow
def test_where_there_is_no_room_the_first_rows_are_compared(monkeypatch):
    model, batch, loss = mlp_case()
    step, rows = kept_nothing(model, batch, loss), batch[0].shape[0]
    step(*batch)
    of_all = verify.values_of

    def no_room(call, module, given, *more):
        if given.args[0].shape[0] > rows // 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return of_all(call, module, given, *more)

    monkeypatch.setattr(verify, "values_of", no_room)
    found = compared(model, batch, step, loss)
    assert found.differs is None and f"on the first {rows // 4} of {rows} rows, operator by operator" in found.said


def test_what_is_no_plain_pytorch_is_said_not_raised():
    class Odd(nn.Module):
        def forward(self, x):
            raise ValueError("not in plain PyTorch")

    model = Odd()
    found = compared(model, (torch.randn(2),), PlainStep(model))
    assert found == Comparison("It was not compared with plain PyTorch: ValueError: not in plain PyTorch.")


def test_a_step_of_another_loss_each_time_is_left_out():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.calls = nn.Parameter(torch.ones(3)), 0

        def forward(self, x):
            self.calls += 1
            return (self.weight * x).sum() * self.calls

    model = Counting()
    found = compared(model, (torch.ones(3),), PlainStep(model))
    assert found.differs is None and "gives other values each time" in found.said


class _Restless(torch.autograd.Function):
    """One times the weight, and a gradient of the bias that is another one each time."""

    calls = 0

    @staticmethod
    def forward(ctx, weight, bias):
        return weight * 1

    @staticmethod
    def backward(ctx, gradient):
        _Restless.calls += 1
        return gradient, gradient * _Restless.calls


class Restless(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (_Restless.apply(self.weight, self.bias) * x).sum()


def test_a_gradient_that_is_another_each_time_hides_no_other_one():
    model = Restless()
    assert compared(model, (torch.ones(3),), PlainStep(model)).differs is None
    differs = compared(model, (torch.ones(3),), Off(model)).differs
    assert differs is not None and differs.what == "the loss"


class Off(PlainStep):
    """A quarter too much."""

    def forward(self, *args):
        return super().forward(*args) * 1.25


@pytest.mark.slow
def test_a_quarter_too_much_is_found_in_every_precision():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)
        batch, loss = (torch.randn(32, 16, dtype=dtype), torch.randn(32, 1, dtype=dtype)), nn.MSELoss()
        assert compared(model, batch, PlainStep(model, loss), loss).differs is None
        found = compared(model, batch, Off(model, loss), loss).differs
        assert found is not None and found.share == pytest.approx(0.25, abs=0.01)


def test_differences_in_words_and_order():
    one, two = torch.ones(4), torch.full((4,), 2.0)
    plain = {LOSS: torch.tensor(2.0), "a": one, "b": two, "c": None, "d": torch.zeros(4), "e": torch.tensor(torch.nan)}
    found = {LOSS: torch.tensor(2.0), "a": 1.5 * one, "b": None, "c": torch.zeros(4), "d": None, "e": torch.tensor(1.0)}
    assert [str(d) for d in differences(found, plain, 0.1)] == [
        "b is None, where plain PyTorch has 4 in norm: off by 1 of it",
        "a is 3 in norm, where plain PyTorch has 2 in norm: off by 0.5 of it",
    ]
    assert [d.what for d in differences(found | {"c": one}, plain, 0.1)] == ["c", "b", "a"]
    assert next(d.what for d in differences(found | {"a": torch.full((4,), torch.nan)}, plain, 0.1)) == "a"


def test_first_rows_of_what_has_as_many():
    batch = batch_of({"x": torch.randn(8, 2, requires_grad=True), "y": [torch.arange(8), torch.arange(3)], "z": 8})
    part = first_rows(batch, 2, 8).kwargs
    assert part["x"].shape == (2, 2) and part["x"].requires_grad and part["x"].is_leaf
    assert [len(t) for t in part["y"]] == [2, 3] and part["z"] == 8


def hold_back(monkeypatch, kind):
    """As if every step of a kind differed."""
    wrong = Comparison(f"{OFF}.", OFF)
    found = Comparison("Compared.")
    monkeypatch.setattr(trial_runs.TrialRuns, "compared", lambda _, step: wrong if isinstance(step, kind) else found)


def fitted_by_hand(budget, **options):
    fitter = Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu")))
    return fitter.fit(HandPlanner(), budget, **options)


def test_the_other_side_is_taken_where_one_differs(monkeypatch, runs, budget):
    runs.curve = halves(budget)
    hold_back(monkeypatch, KnobStep)
    fitted = fitted_by_hand(budget)
    assert fitted.chosen is not None and fitted.chosen_knob is None
    assert f"activation_memory_budget 0.5, {OFF}" in fitted.report and fitted.report.count("Compared.") == 1
    assert len(fitted.knob_tries) <= 2  # and no other one is tried


def test_plain_pytorch_is_taken_where_both_differ(monkeypatch, runs, budget, caplog):
    runs.curve = halves(budget)
    hold_back(monkeypatch, nn.Module)
    monkeypatch.setattr(
        trial_runs.TrialRuns, "run_plain", lambda _self, _step, budget: trial_runs.ran_out(torch.device("cpu"), budget)
    )
    fitted = fitted_by_hand(budget)
    assert isinstance(fitted.step, PlainStep) and not fitted.plain.kept
    assert "more than the budget of" in fitted.report and str(OFF) in caplog.text


def test_a_budget_below_1_of_the_users_own_is_said(recwarn):
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        Fitter(*mlp_case())
    assert "activation_memory_budget is 0.5" in str(recwarn.pop(UserWarning).message)
