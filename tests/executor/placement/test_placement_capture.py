"""Captured traces: what is alive, what is read and written, and that nothing of the model is touched."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from loadmaster.errors import InputError
from loadmaster.executor.placement.capture import capture
from loadmaster.executor.placement.operands import NUMBER_BYTES
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.documents import read_problem, write_problem
from loadmaster.models.placement.problem import PlacementProblem, Tier

ROWS, WIDTH = 32, 64


class Mlp(nn.Module):
    def __init__(self, *, tied: bool = False, checkpointed: bool = False, in_place: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if tied:
            self.second.weight = self.first.weight
        self.act: Callable[[Tensor], Tensor] = nn.ReLU(inplace=in_place)
        self.checkpointed = checkpointed

    def body(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)
        return (hidden.view(-1) * 2).view(ROWS, WIDTH)


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    """Unlike ``mse_loss``, whose scalar result has a storage of all elements, which fake tensors do not know."""
    return (output - target).square().mean()


BATCH = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
MODELS = {
    "plain": Mlp,
    "tied": lambda: Mlp(tied=True),
    "checkpointed": lambda: Mlp(checkpointed=True),
    "in place": lambda: Mlp(in_place=True),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=False),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), foreach=False),
}


class Counting(TorchDispatchMode):
    """Bytes of what an operator touches and of what PyTorch still holds after it, counted with real tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs, out))
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in leaves if isinstance(t, Tensor)}
        mutates = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        inputs = torch.utils._pytree.tree_leaves((args, kwargs))
        known = {t.untyped_storage()._cdata for t in inputs if isinstance(t, Tensor)}
        runs = mutates or bool(set(storages) - known)
        if "_like" in str(func):  # which asks for the shape only
            storages = {key: size for key, size in storages.items() if key not in known}
        sizes = [size for size in storages.values() if size > NUMBER_BYTES]
        if runs and sizes:
            self.needed.append(sum(sizes))
        return out


def traced(name: str, optimizer: str, **options: object) -> PlacementProblem:
    torch.manual_seed(0)
    model = MODELS[name]()
    return capture(model, BATCH, mean_square, optimizer=OPTIMIZERS[optimizer](model), small_bytes=1, **options)  # type: ignore[arg-type]


# Not the tied ones: autograd copies a sum of two gradients where tensors are fake, and keeps it where they are not.
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["plain", "checkpointed", "in place"])
def test_operators_need_what_the_same_operators_touch_in_a_real_step(name: str, optimizer: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    stepper = OPTIMIZERS[optimizer](model)
    counting = Counting()
    for mode in (contextlib.nullcontext(), counting):
        with mode:
            mean_square(model(BATCH[0]), BATCH[1]).backward()
            stepper.step()
            stepper.zero_grad()
    problem = traced(name, optimizer)
    assert [sum(problem.blocks[b].size_bytes for b in o.blocks) for o in problem.operators] == counting.needed


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_read_was_written_or_lasts(name: str, optimizer: str) -> None:
    problem = traced(name, optimizer)
    lasting = {"parameter", "state", "input"}
    written: set[int] = set()
    for operator in problem.operators:
        for block in operator.reads:
            assert block in written or problem.blocks[block].role in lasting
        written.update(operator.writes)


def test_blocks_are_named_and_have_roles() -> None:
    problem = traced("plain", "adamw")
    by_name = {b.name: b for b in problem.blocks}
    assert by_name["first.weight"].role == "parameter"
    assert by_name["gradient of first.weight"].role == "gradient"
    assert by_name["exp_avg of second.bias"].role == "state"
    assert by_name["exp_avg of first.weight"].size_bytes == WIDTH * WIDTH * 4
    assert any(o.module == "first" for o in problem.operators)


def test_a_tied_parameter_is_one_block() -> None:
    names = [b.name for b in traced("tied", "sgd").blocks if b.role == "parameter"]
    assert len(names) == 3


def test_what_lasts_is_alive_all_the_time() -> None:
    problem = traced("plain", "adamw")
    lasting = sum(b.size_bytes for b in problem.blocks if b.role in ("parameter", "state"))
    assert Accesses(problem).live_bytes.min() >= lasting


def test_the_model_and_its_optimizer_are_left_alone() -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture(model, BATCH, mean_square, optimizer=optimizer, small_bytes=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.state and all(p.grad is None for p in model.parameters())


def test_a_model_without_values_has_the_same_trace() -> None:
    with torch.device("meta"):
        model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    without = capture(model, BATCH, mean_square, optimizer=optimizer, small_bytes=1, name="Mlp")
    assert without == traced("plain", "sgd")


def test_foreach_is_written_down_parameter_by_parameter() -> None:
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    problem = capture(model, BATCH, mean_square, optimizer=optimizer, small_bytes=1)
    assert not any("foreach" in o.op for o in problem.operators)
    assert optimizer.param_groups[0]["foreach"] is True


def test_small_storages_do_not_move_and_are_counted() -> None:
    whole, large = traced("plain", "adamw"), capture(Mlp(), BATCH, mean_square, small_bytes=WIDTH * WIDTH * 4)
    assert {b.size_bytes for b in large.blocks} == {WIDTH * WIDTH * 4}
    assert min(o.workspace_bytes for o in large.operators) >= 2 * WIDTH * 4
    assert len(large.operators) < len(whole.operators)


def test_no_time_is_lost_with_small_operators() -> None:
    small = capture(Mlp(), BATCH, mean_square, small_bytes=WIDTH * WIDTH * 4)
    assert small.compute_us == pytest.approx(capture(Mlp(), BATCH, mean_square, small_bytes=1).compute_us)


def test_the_document_reads_back_equal() -> None:
    problem = traced("plain", "momentum", tiers=(Tier("disk", 2.0, 3.0),))
    assert problem.tiers[0].name == "disk"
    assert read_problem(json.loads(json.dumps(write_problem(problem)))) == problem


def test_what_cannot_be_captured_is_named() -> None:
    model = Mlp()
    with pytest.raises(InputError) as found:
        capture(model, BATCH, lambda output, _: output)
    assert found.value.field == "loss"
    with pytest.raises(InputError) as found:
        capture(model.requires_grad_(False), BATCH, mean_square)
    assert found.value.field == "model"
    with pytest.raises(InputError) as found:
        capture(Mlp(), BATCH, mean_square, optimizer=torch.optim.SGD(Mlp().parameters(), lr=0.1))
    assert found.value.field == "optimizer"
    with pytest.raises(InputError) as found:
        capture(Mlp(), BATCH, mean_square, small_bytes=1 << 30)
    assert found.value.field == "small_bytes"
