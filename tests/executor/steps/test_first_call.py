"""What a model makes in its first call alone: it is called once where its trace ended, and left as it was."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor import apply, capture
from loadmaster.executor.steps import unchanged
from tests.executor.memory.schedules import plan, schedule

LOCK = threading.Lock()
BATCH = (torch.randn(4, 8),)


class Layer(nn.Module):
    """A layer, statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(nn.functional.dropout(self.layer(x), 0.5, self.training)).square().mean()


class Places(Layer):
    """As timm's ConViT, nearly."""

    places = None

    def forward(self, x):
        if self.places is None:
            self.places = torch.arange(8.0)
        return super().forward(x * self.places)


class PlacesInABuffer(Layer):
    """As it has it: the places of a size before are in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(1), persistent=False)

    def forward(self, x):
        if len(self.places) != x.shape[1]:
            self.places = torch.arange(8.0)
        return super().forward(x * self.places)


class Hooks(Layer):
    """As transformers' SegFormer: what its layers make is collected by hooks, which are set under a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.is_hooked = False

    def forward(self, x):
        if not self.is_hooked:
            with LOCK:
                self.layer.register_forward_hook(lambda _layer, _args, made: self.made.append(made))
                self.is_hooked = True
        made = self.made = []
        loss = super().forward(x)
        self.made = []
        return loss + made[0].square().sum()


class Locked(Layer):
    """Cannot be traced."""

    def forward(self, x):
        with LOCK:
            return super().forward(x)


@pytest.fixture
def calls(monkeypatch):
    """The models that were called for their first time, and whether that went well."""
    made = []
    original = unchanged.make_first_call

    def make_first_call(model, batch, loss):
        made.append((type(model), original(model, batch, loss)))
        return made[-1][1]

    monkeypatch.setattr("loadmaster.executor.memory.capture.make_first_call", make_first_call)
    return made


@pytest.mark.parametrize("kind", [Places, PlacesInABuffer, Hooks])
def test_the_step_is_the_one_that_trains(kind, calls, capsys):
    torch.manual_seed(0)
    model, twin = kind(), kind()
    twin.load_state_dict(model.state_dict())
    before, generator = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    capture(model, BATCH, hardware="cpu", backend="eager", progress=True)
    assert calls == [(kind, True)]
    assert "tracing ended, calling it once" in capsys.readouterr().err
    assert torch.equal(torch.get_rng_state(), generator)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(p.grad is None for p in model.parameters())
    for one in (model, twin):
        one.eval()  # nothing is drawn
    problem = capture(model, BATCH, hardware="cpu", backend="eager")
    assert len(calls) == 1
    step = apply(plan(problem, schedule(problem, lambda i: False)), model, backend="eager")
    step(*BATCH).backward()
    twin(*BATCH).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_what_every_call_does_is_refused_after_one(calls):
    with pytest.raises(InputError, match="with LOCK"):
        capture(Locked(), BATCH, hardware="cpu", backend="eager")
    assert calls == [(Locked, True)]


def test_a_model_that_can_be_traced_is_not_called(calls):
    capture(Layer(), BATCH, hardware="cpu", backend="eager")
    assert not calls


def test_a_model_without_values_is_not_called(calls):
    with torch.device("meta"):
        model = Hooks()
    with pytest.raises(InputError, match="with LOCK"):
        capture(model, (torch.randn(4, 8, device="meta"),), hardware="h200", backend="eager")
    assert not calls


def test_where_nothing_is_called_the_next_step_is_refused(monkeypatch):
    monkeypatch.setattr(unchanged, "is_among_ranks", lambda: True)
    model = Places().eval()

    def planned():
        problem = capture(model, BATCH, hardware="cpu", backend="eager")
        return apply(plan(problem, schedule(problem, lambda i: True)), model, backend="eager")

    step = planned()
    step(*BATCH).backward()
    with pytest.raises(InputError, match=r"the model itself changes from call to call.*plan again"):
        step(*BATCH)
    step = planned()
    for _ in range(2):
        step(*BATCH).backward()


def test_a_call_that_fails_leaves_the_first_error(calls):
    class Failing(Locked):
        def forward(self, x):
            super().forward(x)
            raise ValueError("no more")

    with pytest.raises(InputError, match="with LOCK"):
        capture(Failing(), BATCH, hardware="cpu", backend="eager")
    assert calls == [(Failing, False)]


def test_among_ranks_nothing_is_called(calls, monkeypatch):
    monkeypatch.setattr(unchanged, "is_among_ranks", lambda: True)
    with pytest.raises(InputError, match="with LOCK"):
        capture(Hooks(), BATCH, hardware="cpu", backend="eager")
    assert calls == [(Hooks, False)]
