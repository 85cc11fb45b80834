"""A planned training step gives the losses, weights and optimizer state of plain PyTorch, in every way."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor.training.step import TrainingStep
from loadmaster.executor.training.train import fit_training
from loadmaster.executor.training.weights import InterruptedStepError
from loadmaster.models.training.problem import Group
from loadmaster.models.training.ways import FROZEN, TRAINED, Way
from tests.executor.training.planned_nets import (
    HOST_UPDATED,
    RESIDENT,
    STATE_AWAY,
    STREAMED,
    Net,
    problem_of,
    schedule_of,
)
from tests.executor.training.side_by_side import (
    STEPS,
    Both,
    MakeOptimizer,
    adamw,
    momentum,
    small_layers_of,
    trained_equally,
)


@pytest.mark.parametrize("make", [adamw, momentum])
@pytest.mark.parametrize("way", TRAINED, ids=lambda way: way.name)
def test_every_way_trains_as_plain_pytorch(way: Way, make: MakeOptimizer) -> None:
    trained_equally(Both(way, make=make))


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("max_norm", [None, 0.3])
def test_accumulated_and_clipped_gradients(accumulate: int, max_norm: float | None) -> None:
    trained_equally(Both(*TRAINED, accumulate=accumulate, max_norm=max_norm))


@pytest.mark.parametrize("way", TRAINED, ids=lambda way: way.name)
def test_copies_in_low_precision_change_nothing_under_autocast(way: Way) -> None:
    both = Both(way, autocast=torch.bfloat16)
    for _ in range(STEPS):
        plain, planned = both.step()
        assert planned == plain
    both.expect_equal()


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "RMSprop", "Adafactor"])
def test_other_optimizers(name: str) -> None:
    trained_equally(Both(*TRAINED, make=lambda model: getattr(torch.optim, name)(model.parameters(), lr=1e-2)))


@pytest.mark.parametrize("way", FROZEN, ids=lambda way: way.name)
def test_a_frozen_block(way: Way) -> None:
    both = Both(RESIDENT, frozen=True)
    both.planned.release()
    ways = [
        way if group.updated_by is None else STREAMED for group in small_layers_of(both.model, both.optimizer).groups
    ]
    assert way in ways
    both.planned = both.plan(*ways)
    trained_equally(both)


def test_schedulers_change_what_updates_read() -> None:
    both = Both(*TRAINED, max_norm=0.3)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (both.plain_optimizer, both.optimizer)]
    for _ in range(STEPS):
        both.step()
        for scheduler in schedulers:
            scheduler.step()
    both.expect_equal()


def test_evaluation_between_two_steps_sees_the_latest_weights() -> None:
    both = Both(*TRAINED, max_norm=0.3)
    for _ in range(STEPS):
        both.step()
        for model in (both.plain, both.model):
            model.eval()
        with torch.no_grad():
            torch.testing.assert_close(both.model(both.batches[0]), both.plain(both.batches[0]))
        for model in (both.plain, both.model):
            model.train()
    both.expect_equal()


@pytest.mark.parametrize("checkpointed", [2, 99])
def test_running_statistics_count_each_batch_once(checkpointed: int) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(4)))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).square().mean()

    torch.manual_seed(0)
    plain, batch = Normed(), torch.randn(32, 8)
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, model)]
    layers = small_layers_of(model, optimizers[1])
    problem = problem_of(layers)
    schedule = schedule_of(problem, RESIDENT, checkpointed=checkpointed)
    step = TrainingStep(model, None, layers, problem, schedule, optimizers[1], torch.device("cpu"))
    for _ in range(3):
        plain(batch).backward()
        step(batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_a_loss_that_is_dropped_changes_nothing() -> None:
    both = Both(*TRAINED)
    both.step()
    both.planned(both.batches[0])  # not finite, say: the loop goes on with the next batch
    for _ in range(2):
        plain, planned = both.step()
        torch.testing.assert_close(planned, plain)
    both.expect_equal()


@pytest.mark.parametrize("way", TRAINED, ids=lambda way: way.name)
def test_training_resumes_under_another_plan(way: Way) -> None:
    both = Both(STREAMED, STATE_AWAY, HOST_UPDATED)
    both.step()
    both.planned.release()
    both.planned = both.plan(way)
    trained_equally(both)


def test_training_resumes_from_files(tmp_path: Any) -> None:
    both = Both(STREAMED, STATE_AWAY, HOST_UPDATED)
    both.step()
    torch.save({"model": both.model.state_dict(), "optimizer": both.optimizer.state_dict()}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    both.model = Net()
    both.optimizer = adamw(both.model)
    both.model.load_state_dict(saved["model"])
    both.optimizer.load_state_dict(saved["optimizer"])
    both.planned = both.plan(HOST_UPDATED, STREAMED)
    trained_equally(both)


def test_a_trial_without_updates_leaves_everything_as_it_was() -> None:
    both = Both(RESIDENT)
    both.step()
    both.planned.release()
    layers = small_layers_of(both.model, both.optimizer)
    problem = problem_of(layers)
    frozen = replace(
        problem, groups=tuple(Group(g.name, g.layers, g.weight_bytes, g.copy_bytes) for g in problem.groups)
    )
    schedule = schedule_of(frozen, FROZEN[-1])
    trial = TrainingStep(both.model, None, layers, frozen, schedule, both.optimizer, both.device)
    for _ in range(2):
        trial(both.batches[0]).backward()
        for p in both.model.parameters():
            p.grad = None
    trial.release()
    both.planned = both.plan(*TRAINED)
    trained_equally(both)


@pytest.mark.parametrize(
    ("field", "given"),
    [("device", {"device": "cpu"}), ("accumulate", {"accumulate": 0}), ("optimizer", {"lbfgs": True})],
)
def test_what_cannot_be_planned_is_refused(field: str, given: dict[str, Any]) -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters()) if given.pop("lbfgs", False) else adamw(model)
    with pytest.raises(InputError, match=f"^{field}"):
        fit_training(
            model, (torch.zeros(1, 8),), optimizer=optimizer, budget_bytes="1GiB", planner=loadmaster.plan, **given
        )


def test_a_released_model_is_plain_again() -> None:
    both = Both(*TRAINED)
    both.step()
    both.planned.release()
    both.planned = both.model  # type: ignore[assignment]
    trained_equally(both)


def test_weights_that_are_away_show_it() -> None:
    both = Both(STREAMED)
    both.step()
    (block, *_) = both.model.blocks
    assert torch.isnan(block.up.weight).all()
    torch.testing.assert_close(both.model.state_dict()["blocks.0.up.weight"], both.plain.blocks[0].up.weight)


def test_nothing_is_loaded_into_a_planned_model() -> None:
    both = Both(RESIDENT)
    with pytest.raises(InputError, match=r"release\(\)"):
        both.model.load_state_dict(both.plain.state_dict())
    with pytest.raises(InputError, match=r"release\(\)"):
        both.optimizer.load_state_dict(both.plain_optimizer.state_dict())


def test_the_model_is_not_called_apart_from_its_step() -> None:
    both = Both(STREAMED)
    with pytest.raises(InputError, match="no_grad"):
        both.model(both.batches[0])


def test_a_step_that_breaks_amid_its_updates_says_so() -> None:
    both = Both(RESIDENT)
    both.step()

    def fail(gradient: Tensor) -> None:
        raise RuntimeError("of the user's own")

    handle = both.model.embedding.register_forward_hook(lambda _, __, output: output.register_hook(fail) and None)
    with pytest.raises(RuntimeError, match="of the user's own"):
        both.planned(both.batches[0]).backward()
    handle.remove()
    with pytest.raises(InterruptedStepError, match="Load the last checkpoint"):
        both.planned(both.batches[0])


def test_a_failure_of_the_hosts_update_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(HOST_UPDATED)
    both.step()

    def fail(*_: Any) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(torch.optim.AdamW, "step", fail)
    with pytest.raises(InterruptedStepError, match="MemoryError: none left"):
        for _ in range(2):  # those of the step before may be under way
            both._losses(both.planned)


def test_a_model_without_blocks_is_refused() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(InputError, match=r"blocks=\[...\]"):
        small_layers_of(model, torch.optim.SGD(model.parameters()))


def test_a_parameter_that_nothing_updates_is_refused() -> None:
    model = Net()
    with pytest.raises(InputError, match=r"norm\.weight"):
        small_layers_of(model, torch.optim.SGD([p for name, p in model.named_parameters() if name != "norm.weight"]))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", [*TRAINED, None], ids=lambda way: "mixed" if way is None else way.name)
def test_every_way_on_a_gpu(way: Way | None, compiled: bool) -> None:
    ways = TRAINED if way is None else (way,)
    both = Both(*ways, autocast=torch.bfloat16, device="cuda", width=64, compiled=compiled, max_norm=1.0)
    for module in (both.plain, both.model):
        module.train(mode=not compiled)  # compiled dropout draws other numbers
    for _ in range(STEPS):
        plain, planned = both.step()
        torch.testing.assert_close(planned, plain, rtol=2e-2 if compiled else 1e-5, atol=1e-6)
    if not compiled:
        both.expect_equal()
