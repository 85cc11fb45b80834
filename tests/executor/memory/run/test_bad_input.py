"""What cannot be planned or run under a plan is refused in words: what, where, and what to do about it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch._inductor.exc import InvalidCxxCompiler
from torch.nn import functional as F

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture
from loadmaster.executor.memory.run import backends
from tests.executor.memory.models import Mlp, convnet_case, mlp_case, transformer_case
from tests.executor.memory.schedules import plan, schedule


def planned_for(model, inputs, loss=None):
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager")
    return plan(problem, schedule(problem, lambda i: i % 2 == 0))


def planned(model, inputs, loss=None):
    return apply(planned_for(model, inputs, loss), model, loss, backend="eager")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Breaking(Layer):
    def forward(self, x):
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y.sum()


class Branching(Layer):
    def forward(self, x):
        y = self.layer(x)
        return y.sum() if y.max() > 0 else y.mean()


class Looping(Layer):
    def forward(self, x):
        y = self.layer(x)
        while y.norm() > 1:
            y = y / 2
        return y.sum()


class Selecting(Layer):
    def forward(self, x):
        y = self.layer(x)
        return y[y > 0].sum()


@pytest.mark.parametrize("model", [Breaking, Branching, Looping, Selecting])
def test_what_no_single_graph_holds_is_refused_with_its_line(model):
    with pytest.raises(InputError) as found:
        capture(model(), (torch.randn(3, 4),), hardware="cpu")
    assert found.value.field == "model"
    assert "test_bad_input.py" in found.value.problem
    assert found.value.remedy


class Growing(Layer):
    """Every call sees one row more."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 1

    def forward(self, x):
        self.rows += 1
        return self.layer(x[: self.rows]).sum()


class Counting(Layer):
    """Another constant in every call, which no tensor holds."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return (self.layer(x) * (self.calls / 2)).sum()


@pytest.mark.parametrize("model", [Growing, Counting])
def test_models_that_change_from_call_to_call_are_refused(model):
    model = model()
    first, x = copy.deepcopy(model), torch.randn(8, 4)
    step = apply(planned_for(first, (x,)), model, backend="eager")
    step(x).backward()
    with pytest.raises(InputError, match="the model itself changes from call to call"):
        step(x)


class Narrow(Layer):
    """Counts its calls in Python, though no result depends on it: every call is traced again."""

    def forward(self, x):
        self.layer.calls = getattr(self.layer, "calls", 0) + 1
        return self.layer(x).sum() + 0 * self.layer.calls


@pytest.mark.slow
def test_steps_that_are_traced_again_and_again_end_in_words():
    model, x = Narrow(), torch.randn(3, 4)
    step = planned(model, (x,))
    with pytest.raises(InputError, match="8 kinds of calls, and becomes another graph again"):
        for _ in range(20):
            step(x)


class Cube(torch.autograd.Function):
    """With a backward pass that is not its derivative."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3 * factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 5 * gradient * x.square() * ctx.factor, None


class Traceable(Layer):
    def forward(self, x):
        return Cube.apply(self.layer(x), 0.5).sum()


class Scaled(torch.autograd.Function):
    """Decides by the value of a tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.scale = 2.0 if x.sum().item() > 0 else 3.0
        return x * ctx.scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale


class Untraceable(Layer):
    def forward(self, x):
        return Scaled.apply(self.layer(x)).sum()


def test_custom_functions_keep_their_own_backward_pass():
    torch.manual_seed(0)
    model, x = Traceable(), torch.randn(3, 4)
    twin = copy.deepcopy(model)
    planned(model, (x,))(x).backward()
    twin(x).backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_custom_functions_that_look_at_values_are_refused():
    with pytest.raises(InputError, match="cannot be traced as one graph"):
        capture(Untraceable(), (torch.randn(3, 4),), hardware="cpu")


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_hooks_on_a_modules_backward_pass_are_refused(register):
    model, inputs, loss = mlp_case()
    step = planned(model, inputs, loss)
    getattr(model.layers[1], register)(lambda *_: None)
    for refused in (
        lambda: capture(model, inputs, loss, hardware="cpu"),
        lambda: apply(step.plans, model, loss),
        lambda: step(*inputs),
    ):
        with pytest.raises(InputError, match=r"model\.layers\.1: has a hook on its backward pass.*Hook its parameters"):
            refused()


LOSSES = {
    "one for each row": lambda y, t: F.mse_loss(y, t, reduction="none").mean(1),
    "a matrix": lambda y, t: y - t,
    "with an extra": lambda y, t: (F.mse_loss(y, t), y),
    "two": lambda y, t: (F.mse_loss(y, t), F.l1_loss(y, t)),
    "in a dictionary": lambda y, t: {"loss": F.mse_loss(y, t), "scores": y},
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_are_not_one_scalar_are_refused(name):
    model, inputs, _ = mlp_case()
    with pytest.raises(InputError, match="does not return one scalar loss"):
        capture(model, inputs, LOSSES[name], hardware="cpu")


@pytest.mark.parametrize("returned", [lambda y, t: None, lambda y, t: F.mse_loss(y, t).item()])
def test_a_loss_that_is_no_tensor_is_refused(returned):
    model, inputs, _ = mlp_case()
    with pytest.raises(InputError, match=r"^loss: returned (NoneType|float), no tensor"):
        capture(model, inputs, returned, hardware="cpu")


def test_sparse_gradients_are_refused():
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4))
    with pytest.raises(InputError, match=r"makes a tensor that is not dense.*sparse=False"):
        capture(model, (torch.arange(6), torch.randn(6, 4)), F.mse_loss, hardware="cpu")


def test_a_scripted_model_is_refused_and_left_as_it_was():
    model, inputs, loss = nn.Linear(4, 4), (torch.randn(2, 4), torch.randn(2, 4)), F.mse_loss
    scripted = torch.jit.script(model)
    with pytest.raises(InputError, match="cannot be traced as one graph"):
        capture(scripted, inputs, loss, hardware="cpu")
    assert torch.equal(scripted(inputs[0]), model(inputs[0]))


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (
            InvalidCxxCompiler(),
            InputError,
            "^backend: could not compile the planned step: InvalidCxxCompiler: No",
        ),
        (ImportError("a.so: invalid ELF header"), InputError, "ImportError: a.so: invalid ELF header.*delete /.*eager"),
        (torch.OutOfMemoryError("1 GiB"), torch.OutOfMemoryError, "1 GiB"),
    ],
)
def test_a_compiler_that_fails_is_said_and_not_the_model_blamed(monkeypatch, raised, expected, said):
    def failing(*_arguments: object, **_settings: object) -> None:
        raise raised

    model, batch = Mlp(), (torch.randn(2, 16), torch.randn(2, 16))
    problem = capture(model, batch, F.mse_loss, hardware="cpu")
    step = apply(plan(problem, schedule(problem, lambda i: True)), model, F.mse_loss)
    monkeypatch.setattr(backends, "compile_fx_inner", failing)
    with pytest.raises(expected, match=said):
        step(*batch)


@pytest.mark.slow
def test_recurrent_layers_are_planned_where_pytorch_traces_them(monkeypatch: pytest.MonkeyPatch):
    """Its own switch: without it the refusal names it."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.GRU(4, 8, batch_first=True)

        def forward(self, x):
            return self.recurrent(x)[0][:, -1]

    model, inputs = Last().double(), (torch.randn(2, 3, 4).double(), torch.randn(2, 8).double())
    with pytest.raises(InputError, match=r"allow_rnn=True"):
        capture(model, inputs, F.mse_loss, hardware="cpu")
    monkeypatch.setattr(torch._dynamo.config, "allow_rnn", True)
    alone = copy.deepcopy(model)
    F.mse_loss(alone(inputs[0]), inputs[1]).backward()
    planned(model, inputs, F.mse_loss)(*inputs).backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        # Gradients of the steps in time are added up in another order, which some processors round otherwise.
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)


def test_a_loss_that_no_parameter_moves_is_refused():
    model, inputs, _ = mlp_case()
    with pytest.raises(InputError, match=r"no gradient"):
        capture(model, inputs, lambda y, t: t.sum(), hardware="cpu")
    with pytest.raises(InputError, match="no gradient"):
        capture(model, inputs, lambda y, t: F.mse_loss(y.detach(), t), hardware="cpu")


@pytest.mark.slow
def test_plans_for_something_else_are_refused():
    cases = [case() for case in (mlp_case, convnet_case, transformer_case)]
    model, inputs, loss = cases[0]
    chosen = planned_for(model, inputs, loss)
    halves, singles = (tuple(t[:4] for t in inputs), tuple(t.float() for t in inputs))
    attempts = [
        *((other, batch, rule) for other, batch, rule in cases[1:]),
        (Mlp(depth=4).double(), inputs, loss),
        (Mlp().double(), inputs, F.l1_loss),
        (Mlp().double(), halves, loss),
        (Mlp(), singles, loss),
    ]
    for other, batch, rule in attempts:
        with pytest.raises(InputError, match="was made for the graph") as found:
            apply(chosen, other, rule, backend="eager")(*batch)
        assert found.value.field == "plan.name"
        assert found.value.value == chosen.name
        assert "Capture this model" in found.value.remedy
    apply(chosen, model, loss, backend="eager")(*inputs)


def test_operands_that_do_not_fit_are_refused_as_such():
    model, inputs, loss = mlp_case()
    step = planned(model, inputs, loss)
    step(*inputs).backward()
    there = tuple(t.to("meta") for t in inputs)
    for wrong in (there, (inputs[0][:, :7], inputs[1])):
        with pytest.raises(InputError, match="without a plan the step fails too"):
            step(*wrong)
    with pytest.raises(InputError, match=r"does not fit Mlp\.forward, which takes x: too many positional arguments"):
        step(*inputs, inputs[0])
    step(*inputs).backward()  # a refusal breaks nothing


@pytest.mark.slow
def test_arrays_become_tensors():
    model, inputs, loss = mlp_case()
    step = planned(model, inputs, loss)
    step(*inputs)
    arrays = tuple(np.asarray(t) for t in inputs)
    torch.testing.assert_close(step(*arrays), step(*inputs))


def test_choices_of_apply_are_checked():
    model, inputs, loss = mlp_case()
    chosen = planned_for(model, inputs, loss)
    with pytest.raises(InputError, match=r"unplanned: is unknown.*refuse, run"):
        apply(chosen, model, loss, unplanned="eager")
    with pytest.raises(InputError, match=r"backend: is unknown.*inductor, eager"):
        apply(chosen, model, loss, backend="onnx")
    with pytest.raises(InputError, match="at least one"):
        apply([], model, loss)
    with pytest.raises(InputError, match=r"parallel: is no wrapper.*ddp, fsdp2"):
        capture(model, inputs, loss, hardware="cpu", parallel="zero3")
    with pytest.raises(InputError, match="ranks"):
        capture(model, inputs, loss, hardware="cpu", parallel="ddp", ranks=0)


@pytest.mark.gpu
def test_plans_and_inputs_of_another_device_are_refused():
    model, inputs, loss = mlp_case()
    chosen = planned_for(model, inputs, loss)
    model.cuda()
    step = apply(chosen, model, loss, backend="eager")
    with pytest.raises(InputError, match="was made for the graph"):
        step(*(t.cuda() for t in inputs))
    with pytest.raises(InputError, match="without a plan the step fails too"):
        step(*inputs)
