"""Steps called as libraries call their models: each gives the loss and gradients of plain PyTorch."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loadmaster.errors import InputError
from loadmaster.executor import apply, apply_to_blocks, capture, capture_block
from tests.executor.memory.schedules import plan, schedule


@dataclass
class Output:
    """A plain dataclass."""

    loss: Tensor | None
    logits: Tensor


class Named(NamedTuple):
    """A tuple whose first element is no loss."""

    logits: Tensor
    loss: Tensor


class Dictionary(OrderedDict):
    """As transformers' ModelOutput: a mapping and a dataclass' attributes at once."""

    def __getattr__(self, name: str) -> Tensor:
        return self[name]


OUTPUTS = {
    "scalar": lambda loss, logits: loss,
    "dataclass": Output,
    "dictionary": lambda loss, logits: {"logits": logits, "loss": loss},
    "attributes": lambda loss, logits: Dictionary(loss=loss, logits=logits),
    "tuple": lambda loss, logits: (loss, logits),
    "list": lambda loss, logits: [loss, logits],
    "named tuple": lambda loss, logits: Named(logits, loss),
    "row": lambda loss, logits: {"loss": loss.reshape(1)},
    "without a loss": lambda loss, logits: Output(None, logits),
    "logits": lambda loss, logits: logits,
    "no loss": lambda loss, logits: {"logits": logits, "states": (logits,)},
    "logits first": lambda loss, logits: (logits, None, loss, logits.numel()),
    "two scalars": lambda loss, logits: (logits, loss, 0.1 * loss),
    "nothing": lambda loss, logits: None,
}


HOLD_NO_LOSS = {
    "without a loss": "Output with logits",
    "logits": r"a tensor of shape \(4, 5, 3\)",
    "no loss": "dict with logits, states",
    "two scalars": "tuple of Tensor, Tensor, Tensor",
    "nothing": "NoneType",
}


class Model(nn.Module):
    """Called as transformers are: everything by name, most of it optional, the loss inside the output."""

    def __init__(self, output: str = "dataclass") -> None:
        super().__init__()
        self.embed, self.head, self.output = nn.Embedding(8, 6), nn.Linear(6, 3), output

    def forward(self, ids, mask=None, extra=None, *, labels=None, scale=1.0, reduction="mean"):
        x = self.embed(ids).tanh()
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        if extra is not None:
            x = x + extra["shift"][0] * scale
        logits = self.head(x)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)
        return OUTPUTS[self.output](loss, logits)


def model(output="dataclass"):
    torch.manual_seed(0)
    return Model(output).double()


def batch(rows=4, **more):
    torch.manual_seed(rows)
    ids, labels = torch.randint(8, (rows, 5)), torch.randint(3, (rows, 5))
    return {"ids": ids, "mask": (ids % 3 > 0).double(), "labels": labels, **more}


def planned(model, batch, loss=None, backend="eager", **options):
    problem = capture(model, batch, loss, hardware="cpu", backend=backend)
    return apply(plan(problem, schedule(problem, lambda i: i % 3 == 0)), model, loss, backend=backend, **options)


def assert_as_plain(model, twin, value, expected):
    """The loss, and the gradients that its backward pass leaves, are those of plain PyTorch on the twin."""
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("output", [name for name in OUTPUTS if name not in HOLD_NO_LOSS])
def test_the_loss_is_found_in_what_the_model_returns(output):
    ours, given = model(output), batch()
    twin = model("scalar")
    step = planned(ours, given)
    assert_as_plain(ours, twin, step(**given).reshape(()), twin(**given))


@pytest.mark.slow
@pytest.mark.parametrize(("output", "found"), HOLD_NO_LOSS.items())
def test_an_output_without_a_loss_is_refused(output, found):
    message = rf"loss: the model's output holds no scalar loss \(found '{found}'\).*lambda output, batch"
    with pytest.raises(InputError, match=message):
        capture(model(output), batch(), hardware="cpu")


def mse(output, target):
    return (output.logits - target).pow(2).mean()


def masked(output, batch):
    return ((output.logits - batch["noise"]) * batch["mask"].unsqueeze(-1)).pow(2).mean()


NOISE = torch.randn(4, 5, 3, dtype=torch.float64)
EXTRA = {"shift": [NOISE[..., :1]]}


@pytest.mark.parametrize(
    ("make", "loss", "expected"),
    [
        # A tuple, the target last.
        pytest.param(
            lambda: (batch()["ids"], batch()["mask"], NOISE),
            mse,
            lambda m, b: mse(m(b["ids"], b["mask"]), NOISE),
            marks=pytest.mark.slow,
        ),
        # The model's inputs by keyword, then the target.
        pytest.param(
            lambda: (UserDict(ids=batch()["ids"], mask=batch()["mask"]), NOISE),
            mse,
            lambda m, b: mse(m(b["ids"], b["mask"]), NOISE),
            marks=pytest.mark.slow,
        ),
        # All by keyword: what forward does not name is for the loss alone, which gets everything.
        (
            lambda: UserDict(ids=batch()["ids"], mask=batch()["mask"], noise=NOISE),
            masked,
            lambda m, b: masked(m(b["ids"], b["mask"]), {**b, "noise": NOISE}),
        ),
        # None, nested inputs, numbers and words.
        (
            lambda: batch(mask=None, extra=EXTRA, scale=0.5, reduction="sum"),
            None,
            lambda m, b: m(b["ids"], None, EXTRA, labels=b["labels"], scale=0.5, reduction="sum").loss,
        ),
        pytest.param(
            lambda: (batch()["ids"], None, EXTRA, NOISE),
            mse,
            lambda m, b: mse(m(b["ids"], extra=EXTRA), NOISE),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["tuple", "mapping and target", "keywords and loss", "optional and nested", "tuple with None"],
)
def test_batches_of_every_form(make, loss, expected):
    ours, twin, given = model(), model(), make()
    step = planned(ours, given, loss)
    is_tuple = isinstance(given, tuple)
    assert_as_plain(ours, twin, step(*given) if is_tuple else step(**given), expected(twin, batch()))
    if not is_tuple:
        assert_as_plain(ours, twin, step(given), expected(twin, batch()))


class Wrapper(nn.Module):
    """Passes on what it is given, as adapters do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


@pytest.mark.slow
def test_a_forward_that_names_nothing_gets_everything():
    ours, twin, given = model(), model(), batch()
    loss = lambda output, batch: F.cross_entropy(output.logits.flatten(0, 1), batch["labels"].flatten())  # noqa: E731
    wrapped = Wrapper(ours)
    assert_as_plain(ours, twin, planned(wrapped, given, loss)(**given), twin(**given).loss)
    # What only the loss takes goes apart from it.
    pair = ({"ids": given["ids"]}, {"noise": NOISE})
    step = planned(wrapped, pair, lambda output, target: (output.logits - target["noise"]).pow(2).mean())
    assert_as_plain(ours, twin, step(*pair), mse(twin(given["ids"]), NOISE))


@pytest.mark.slow
def test_one_plan_for_every_way_to_say_the_same():
    ours, twin, given = model(), model(), batch()
    step = planned(ours, given)
    backwards = dict(reversed(given.items()))
    positional = step(given["ids"], given["mask"], labels=given["labels"])
    for value in (step(given), step(UserDict(given)), step(**backwards), positional):
        assert_as_plain(ours, twin, value, twin(**given).loss)


@pytest.mark.slow
def test_differences_are_told_by_name():
    ours, given = model(), batch(scale=0.5)
    step = planned(ours, given)
    step(**given).backward()
    for changed, message in (
        (batch(5, scale=0.5), r"input ids is \(5, 5\) int64 on cpu, planned for \(4, 5\) int64"),
        (batch(scale=0.25, extra=EXTRA), "input scale is 0.25, planned for 0.5; input extra"),
        (batch(mask=None, scale=0.5), r"input mask is None, planned for \(4, 5\) float64"),
    ):
        with pytest.raises(InputError, match=message):
            step(**changed)
    with pytest.raises(InputError, match=r"Model.forward, which takes ids, .* 'token_type_ids'"):
        step(**given, token_type_ids=given["ids"])
    step(**given).backward()  # a refusal breaks nothing


@pytest.mark.slow
def test_the_place_of_a_target_is_the_users():
    ours, given = model(), ({"ids": batch()["ids"]}, NOISE)
    step = planned(ours, given, mse)
    step(*given)
    with pytest.raises(InputError, match=r"input \[1\] is \(1, 4, 5, 3\) float64.*planned for \(4, 5, 3\)"):
        step(given[0], NOISE[None])


@pytest.mark.slow
def test_larger_batches_run_without_a_plan_and_evaluation_takes_keywords():
    ours, twin = model(), model()
    step = planned(ours, batch(), unplanned="run")
    assert_as_plain(ours, twin, step(**batch()), twin(**batch()).loss)
    with pytest.warns(UserWarning, match=r"without a plan.*input ids is \(6, 5\)"):
        assert_as_plain(ours, twin, step(**batch(6)), twin(**batch(6)).loss)
    assert_as_plain(ours, twin, step(**batch(6)), twin(**batch(6)).loss)
    with torch.no_grad():
        torch.testing.assert_close(step(batch(3)), twin(**batch(3)).loss)


@pytest.mark.slow
def test_a_copied_step_takes_keywords():
    ours = model()
    step = planned(ours, batch())
    twin = copy.deepcopy(step)
    twin(**batch()).backward()
    assert all(p.grad is None for p in ours.parameters())
    assert all(p.grad is not None for p in twin.parameters())


class Block(nn.Module):
    """A layer as libraries write them: a mask and options by keyword, a tuple back."""

    def __init__(self, whole):
        super().__init__()
        self.layer, self.whole = nn.Linear(4, 4).double(), whole

    def forward(self, x, *, mask=None, caching=False):
        y = self.layer(x).tanh() * mask
        return y if self.whole else (y,)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_blocks_take_keywords_and_return_what_they_return(whole):
    block, x = Block(whole), torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    twin = copy.deepcopy(block)
    given = {"x": x, "mask": torch.tensor([[1.0], [0.5]], dtype=torch.float64), "caching": False}
    problem = capture_block(block, given, kept_bytes=1 << 20, budget_bytes=2 << 20, hardware="cpu", backend="eager")
    (step,) = apply_to_blocks(plan(problem, schedule(problem, lambda i: True)), [block], backend="eager")
    ours, theirs = step(x, mask=given["mask"]), twin(x, mask=given["mask"])
    assert type(ours) is type(theirs)
    ours, theirs = (ours, theirs) if whole else (ours[0], theirs[0])
    assert_as_plain(block, twin, ours.sum(), theirs.sum())


def test_what_is_no_loss_or_no_call_is_refused():
    with pytest.raises(InputError, match=r"loss: cannot be called \(found 'SGD'\).*None where the model computes"):
        capture(model(), batch(), torch.optim.SGD(model().parameters()), hardware="cpu")
    with pytest.raises(InputError, match=r"batch: does not fit Model.forward.*missing a required argument: 'ids'"):
        capture(model(), {"mask": NOISE}, hardware="cpu")
    with pytest.raises(InputError, match=r"does not fit Linear.forward, which takes input: .*'x'"):
        capture(nn.Linear(2, 2), {"x": torch.ones(2), "y": torch.ones(2)}, F.mse_loss, hardware="cpu")


@pytest.mark.slow
def test_the_old_keyword_still_works():
    with pytest.warns(DeprecationWarning, match=r"capture\(inputs=...\) is called capture\(batch=...\)"):
        problem = capture(model=model(), inputs=batch(), hardware="cpu", backend="eager")
    assert problem.sha256 == capture(model(), batch(), hardware="cpu", backend="eager").sha256


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, masked])
def test_inductor(loss):
    ours, twin, given = model(), model(), batch(noise=NOISE)
    if loss is None:
        del given["noise"]
    value = planned(ours, given, loss, backend="inductor")(**given)
    output = twin(**batch())
    assert_as_plain(ours, twin, value, output.loss if loss is None else loss(output, given))
