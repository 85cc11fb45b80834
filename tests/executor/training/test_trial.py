"""A training problem measured on the CPU, by a meter that counts operators and memory; the model stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.training import chunked_loss
from loadmaster.executor.training import layers as layers_module
from loadmaster.executor.training import rates as rates_module
from loadmaster.executor.training.layers import layers_of
from loadmaster.executor.training.trial import measured_problem
from loadmaster.models.training.problem import TrainingProblem
from tests.executor.training.counting_meter import CountingMeter

WIDTH, BATCH, LENGTH, WORDS = 16, 2, 6, 40
RESULT_BYTES = 4 * BATCH * LENGTH * WIDTH


@pytest.fixture(autouse=True)
def everything_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are worth a move here, and samples of updates are short."""
    monkeypatch.setattr(layers_module, "SMALL_ELEMENTS", 64)
    monkeypatch.setattr(rates_module, "SAMPLE_ELEMENTS", 1 << 14)
    monkeypatch.setattr(rates_module, "LEAST_HOST_US", 0)


class Attending(nn.Module):
    """A transformer's block, with a buffer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        parts = self.into(self.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(x)))


class Overwriting(nn.Module):
    """A block that overwrites a product's result, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.other(F.dropout(self.one(x).relu_(), 0.1))


class Computing(nn.Module):
    """What reads the logits themselves."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)


class Model(nn.Module):
    """Blocks of two classes between an embedding and a head."""

    def __init__(self, last: type[nn.Module] = Overwriting) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Attending(), Attending(), last()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class Failing(Overwriting):
    """A block that fails in its forward or its backward pass, after some calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = super().forward(x)
        if self.calls > 5:
            x.register_hook(self.fail)
        return x

    def fail(self, _: Tensor) -> Tensor:
        """Fail."""
        raise ValueError("of the user's own")


class FailingForward(Failing):
    """A block that fails in its forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fail(x) if self.calls > 3 else Overwriting.forward(self, x)


class RunningOut(Overwriting):
    """A block that has no room."""

    def forward(self, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def measured(
    model: nn.Module,
    said: Callable[[str], None] = lambda _: None,
    limit_bytes: int = 1 << 40,
    device: str = "cpu",
    **given: Any,
) -> TrainingProblem:
    """The problem of a model, measured by a meter of the CPU."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    batch = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    meter = CountingMeter([batch, *model.parameters(), *model.buffers(), *gradients], limit_bytes)
    meter.device = torch.device(device)
    settings: dict[str, Any] = {"autocast": None, "accumulate": 1, "clips": False, "compiled": False, **given}
    with meter:
        layers = layers_of(model, optimizer, list(model.blocks))
        of = measured_problem("net", model, Batch((batch,)), None, layers, optimizer, meter, say=said, **settings)
    return of[0]


def kept_by_plain_pytorch(block: nn.Module) -> int:
    """Bytes that autograd saves for a block, and its result, without weights and its input."""
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    found = {}

    def note(t: Tensor) -> Tensor:
        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = block(x)
    found[y.untyped_storage().data_ptr()] = y.untyped_storage().nbytes()
    for t in (x, *block.parameters()):
        found.pop(t.untyped_storage().data_ptr(), None)
    return sum(found.values())


def test_points_of_a_transformers_block() -> None:
    problem = measured(Model())
    assert [layer.layer_class for layer in problem.layers] == [0, 1, 1, 2, 3]
    points = {point.name: point for point in problem.points(1)}
    assert list(points) == ["keep", "products", "attention", "checkpoint"]
    attention = RESULT_BYTES + 4 * BATCH * LENGTH * 2  # and a number for each row of each head
    assert points["keep"].kept_bytes == kept_by_plain_pytorch(Attending())
    aside = 4  # the count of calls, as it was before the block ran
    kept = RESULT_BYTES * (1 + 3 + 1 + 2) + attention + aside  # result; into, out, up
    assert points["products"].kept_bytes == kept
    assert points["attention"].kept_bytes == RESULT_BYTES + attention + aside
    assert points["checkpoint"].kept_bytes == RESULT_BYTES + aside
    times = [point.backward_us for point in points.values()]
    assert times[0] < times[1] < times[2] < times[3]
    assert all(point.forward_us > 0 for point in points.values())


def test_a_checkpointed_block_under_autocast_keeps_its_result_alone() -> None:
    """Autocast gives a weight's cast to all that read it. Such casts would stay until the forward pass ends."""
    points = {point.name: point for point in measured(Model(), autocast=torch.bfloat16).points(1)}
    assert points["checkpoint"].kept_bytes == RESULT_BYTES + 4  # and the count of calls


@pytest.mark.slow
def test_layers_whose_weights_are_on_the_host_keep_what_they_keep_of_weights_on_the_device() -> None:
    """Autograd keeps casts of weights on the device, and there are none of copies in autocast's format."""
    there = measured(Model(Attending), autocast=torch.bfloat16)
    # The same device by another name, to which weights must come.
    away = measured(Model(Attending), autocast=torch.bfloat16, device="cpu:0")
    for number in range(len(there.layers)):
        kept = [point.kept_bytes for point in there.points(number)]
        assert [point.kept_bytes for point in away.points(number)] == kept


def test_parameters_outside_of_the_blocks_are_of_the_layers_that_read_them() -> None:
    groups = {group.name: group.layers for group in measured(Model()).groups}
    assert groups["embedding.weight"] == (0,)
    assert groups["head.weight"] == (4,)
    model = Model()
    model.head.weight = model.embedding.weight
    assert {group.name: group.layers for group in measured(model).groups}["embedding.weight"] == (0, 4)


def test_the_loss_in_chunks_keeps_the_gradient_of_the_logits_and_makes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS", WORDS)  # of a row
    keep, chunked = measured(Model()).points(4)
    assert [keep.name, chunked.name] == ["keep", "chunked loss"]
    assert abs(keep.kept_bytes - chunked.kept_bytes) < RESULT_BYTES  # logarithms of shares; the gradient of the logits
    assert chunked.forward_bytes < keep.forward_bytes / 2
    # The gradient of the rows, and the rows times the gradient of the loss: no more logits. (The weight's own gradient
    # counts by itself.)
    assert chunked.backward_bytes == 2 * RESULT_BYTES


def test_a_loss_that_cannot_run_in_chunks_is_no_point() -> None:
    model = Model()
    model.head = nn.Sequential(model.head, nn.Identity(), Computing())
    assert [point.name for point in measured(model).points(4)] == ["keep"]


def test_points_that_gain_nothing_are_left_out() -> None:
    said: list[str] = []
    problem = measured(Model(), said.append)
    # It overwrites the result of a product, and has no attention.
    assert [point.name for point in problem.points(3)] == ["keep", "checkpoint"]
    assert any("products is left out" in line and "mutated" in line for line in said)


@pytest.mark.slow
def test_groups_link_and_fixed_bytes() -> None:
    model = Model(Attending)
    problem = measured(model)
    assert (problem.host.to_gbps, problem.host.from_gbps) == (40.0, 50.0)
    assert all(group.update_us > 0 and group.host_update_us for group in problem.groups)
    # Tokens and counts of calls, and what a scalar or two take; gradients that are there belong to the step.
    fixed = 8 * BATCH * LENGTH + 3 * 4
    assert fixed <= problem.fixed_bytes < fixed + RESULT_BYTES
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert measured(model).fixed_bytes == problem.fixed_bytes


@pytest.mark.slow
def test_a_phase_has_room_for_the_cast_of_a_gradient() -> None:
    """Gradients of copies in bfloat16 are cast for their update, after a phase whose own bytes are free by then."""
    plain, cast = measured(Model(Attending)), measured(Model(Attending), autocast=torch.bfloat16)
    assert cast.fixed_bytes == plain.fixed_bytes
    room = max(g.weight_bytes for g in cast.groups if g.copy_bytes < g.weight_bytes)
    points = [point for of in cast.classes for point in of.points]
    assert points and all(min(point.forward_bytes, point.backward_bytes) >= room for point in points)
    assert any(point.forward_bytes < room for of in plain.classes for point in of.points)


@pytest.mark.slow
def test_classes_take_turns_where_the_budget_is_small() -> None:
    said: list[str] = []
    problem = measured(Model(Overwriting), said.append, budget_bytes=1)
    assert sum("1 classes" in line and "point keep" in line for line in said) == 2
    together = measured(Model(Overwriting))
    for number in range(len(problem.layers)):
        assert [p.kept_bytes for p in problem.points(number)] == [p.kept_bytes for p in together.points(number)]


def state_of(model: nn.Module) -> list[Any]:
    """Everything of a model that a user could see."""
    modules = list(model.modules())
    return [
        [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training, "forward" in vars(m)) for m in modules],
        len(model._state_dict_hooks),
        [(p.data_ptr(), p.requires_grad, len(p._post_accumulate_grad_hooks or ())) for p in model.parameters()],
        [b.data_ptr() for b in model.buffers()],
    ]


@pytest.mark.parametrize(
    ("last", "error"),
    [(Overwriting, None), (Failing, ValueError), (FailingForward, ValueError), (RunningOut, InputError)],
)
def test_the_model_stays_as_it_was(last: type[nn.Module], error: type[Exception] | None) -> None:
    model, ran = Model(last), []
    model.blocks[0].eval()
    model.blocks[1].norm.weight.requires_grad_(False)
    for n, p in enumerate(model.parameters()):
        if n % 2 == 0 and p.requires_grad:
            p.grad = torch.full_like(p, float(n))
            p.register_post_accumulate_grad_hook(lambda _: ran.append(1))
    gradients = [p.grad for p in model.parameters()]
    values, before, random = copy.deepcopy(model.state_dict()), state_of(model), torch.get_rng_state()
    copied = [None if g is None else g.clone() for g in gradients]
    if error is None:
        measured(model)
    else:
        with pytest.raises(error):
            measured(model)
    assert state_of(model) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert not ran
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name]), name
    for p, gradient, value in zip(model.parameters(), gradients, copied, strict=True):
        assert p.grad is gradient
        assert gradient is None or torch.equal(gradient, value)


def test_a_model_without_room_is_told_what_to_do() -> None:
    with pytest.raises(InputError, match=r"does not fit the device .* model\.cpu\(\)"):
        measured(Model(RunningOut))


def test_a_block_that_does_something_else_when_it_runs_again() -> None:
    class Remembering(Overwriting):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) + (torch.tanh(x) if self.calls % 2 else 0.0)

    with pytest.raises(InputError, match="use_cache=False"):
        measured(Model(Remembering))
