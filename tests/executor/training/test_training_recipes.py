"""Loops as users write them around a planned step: equal to plain PyTorch, or refused with what to do."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.training.loop import expect_no_scaler
from loadmaster.executor.training.step import TrainingStep
from loadmaster.models.training.ways import TRAINED, Way
from tests.executor.training.planned_nets import (
    BOTH_AWAY,
    HOST_UPDATED,
    RESIDENT,
    STATE_AWAY,
    STREAMED,
    Net,
    problem_of,
    schedule_of,
)
from tests.executor.training.side_by_side import EACH_WAY, STEPS, Both, adamw, small_layers_of, trained_equally

# --- clipping


def test_the_norm_is_that_which_clipping_returns() -> None:
    both = Both(*TRAINED, max_norm=0.3)
    assert both.planned.grad_norm is None
    for _ in range(STEPS):
        torch.manual_seed(0)
        both.plain(both.batches[0]).backward()
        norm = nn.utils.clip_grad_norm_(both.plain.parameters(), 0.3)
        both.plain_optimizer.step()
        both.plain_optimizer.zero_grad()
        torch.manual_seed(0)
        both.planned(both.batches[0]).backward()
        assert both.planned.grad_norm is not None
        torch.testing.assert_close(both.planned.grad_norm, norm)
    both.expect_equal()


@EACH_WAY
def test_gradients_are_clipped_by_value(ways: tuple[Way, ...]) -> None:
    both = Both(*ways, max_value=1e-3, make=lambda model: torch.optim.SGD(model.parameters(), 0.5, momentum=0.9))
    trained_equally(both)
    assert both.planned.grad_norm is None


@pytest.mark.parametrize(
    "use",
    [
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False),
        lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
        lambda model: nn.utils.get_total_norm([p.grad for p in model.parameters()]),
        lambda model: model.zero_grad(set_to_none=False),
        lambda model: model.blocks[0].up.weight.grad.norm(),
        lambda model: torch.optim.SGD(model.parameters(), 1.0).step(),
    ],
)
@pytest.mark.parametrize("ways", [(RESIDENT,), TRAINED], ids=["resident", "mixed"])
def test_gradients_that_are_gone_are_not_passed_over(ways: tuple[Way, ...], use: Callable[[Net], Any]) -> None:
    both = Both(*ways)
    for _ in range(2):
        both.planned(both.batches[0]).backward()
        with pytest.raises(InputError, match="clip_grad_norm="):
            use(both.model)
        both.optimizer.step()
        both.optimizer.zero_grad()
    assert all(p.grad is None for p in both.model.parameters())


def test_gradients_that_are_gone_need_not_be_taken_away() -> None:
    both = Both(*TRAINED)
    for _ in range(STEPS):  # without the optimizer's calls
        both.seed += 1
        both._losses(both.plain)
        both.plain_optimizer.step()
        both.plain_optimizer.zero_grad()
        both._losses(both.planned)
    both.expect_equal()
    both.planned.release()
    assert all(p.grad is None for p in both.model.parameters())


# --- scaled losses


def test_a_loss_with_a_factor_is_honest() -> None:
    both = Both(*TRAINED, make=lambda model: torch.optim.SGD(model.parameters(), 1e-3))
    unused = torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        for step, optimizer in ((both.plain, both.plain_optimizer), (both.planned, both.optimizer)):
            torch.manual_seed(0)
            (step(both.batches[0]) * 8).backward()
            optimizer.step()
            optimizer.zero_grad()
    both.expect_equal()
    assert unused.is_enabled()


@pytest.mark.parametrize("scale", [65536.0, 2.0, 1.0, 0.5])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_grad_scaler_is_refused_before_any_update(scale: float, accumulate: int) -> None:
    both = Both(RESIDENT, accumulate=accumulate)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with pytest.raises(InputError, match=r"GradScaler.*bfloat16"):
        scaler.scale(both.planned(both.batches[0]) / accumulate).backward()
    del scaler
    both.optimizer.zero_grad()
    trained_equally(both)


def test_a_grad_scaler_that_is_off_is_no_fault() -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    expect_no_scaler(65536.0, 1)
    both = Both(RESIDENT)
    scaler.scale(both.planned(both.batches[0])).backward()


def test_a_grad_scaler_of_any_class_is_found() -> None:
    class OfFleet(torch.amp.GradScaler):
        pass

    class OfMine(OfFleet):
        pass

    scaler = OfMine("cpu", init_scale=8.0)
    with pytest.raises(InputError, match="GradScaler of scale 8"):
        expect_no_scaler(8.0, 1)
    assert scaler.is_enabled()


# --- calls of the optimizer


def losses_of(both: Both, step: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        torch.manual_seed(both.seed)
        loss = step(both.batches[0])
        loss.backward()
        return loss

    return closure


@EACH_WAY
@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_that_makes_the_step(ways: tuple[Way, ...], by_name: bool) -> None:
    both = Both(*ways, max_norm=None)
    for _ in range(STEPS):
        both.seed += 1
        plain = both.plain_optimizer.step(losses_of(both, both.plain, both.plain_optimizer))
        closure = losses_of(both, both.planned, both.optimizer)
        planned = both.optimizer.step(closure=closure) if by_name else both.optimizer.step(closure)
        torch.testing.assert_close(planned, plain)
    both.expect_equal()


def test_a_closure_that_would_make_a_second_step_is_refused() -> None:
    both = Both(RESIDENT)
    closure = losses_of(both, both.planned, both.optimizer)
    closure()
    before = copy.deepcopy(both.model.state_dict())
    with pytest.raises(InputError, match="second step"):
        both.optimizer.step(closure)
    for name, value in both.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_steps_that_the_optimizer_was_not_called_after_are_said() -> None:
    both = Both(RESIDENT)
    for _ in range(2):
        both.planned(both.batches[0]).backward()
    with pytest.raises(InputError, match="accumulate="):
        both.optimizer.step()


def test_the_optimizer_is_not_called_amid_an_accumulation() -> None:
    both = Both(RESIDENT, accumulate=3)
    both.planned(both.batches[0]).backward()
    with pytest.raises(InputError, match="after 1 of 3 micro-batches"):
        both.optimizer.step()


def test_a_loss_goes_backward_once() -> None:
    both = Both(STREAMED)
    loss = both.planned(both.batches[0])
    loss.backward(retain_graph=True)
    with pytest.raises(InputError, match="second time"):
        loss.backward()
    both.optimizer.step()
    first, _ = both.planned(both.batches[0]), both.planned(both.batches[1])
    with pytest.raises(InputError, match="latest call"):
        first.backward()


def test_a_gradient_after_its_update_is_said() -> None:
    class Early(Net):
        def forward(self, tokens: Tensor) -> Tensor:
            early = sum(block.up.weight.sum() for block in self.blocks)  # what comes first goes backward last
            return super().forward(tokens) + early

    model = Early()
    optimizer = adamw(model)
    layers = small_layers_of(model, optimizer)
    problem = problem_of(layers)
    step = TrainingStep(model, None, layers, problem, schedule_of(problem, RESIDENT), optimizer, torch.device("cpu"))
    with pytest.raises(InputError, match="gradients after their update"):
        step(torch.randint(0, 40, (4, 8))).backward()


# --- settings


@pytest.mark.parametrize("lr", [1e-2, torch.tensor(1e-2)], ids=["number", "tensor"])
@pytest.mark.parametrize("max_norm", [None, 0.3])
@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=2 * STEPS),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1.0 / (1 + step)),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.1, threshold=10.0),
    ],
    ids=["OneCycleLR", "LambdaLR", "ReduceLROnPlateau"],
)
def test_schedulers(make: Callable[[torch.optim.Optimizer], Any], max_norm: float | None, lr: Any) -> None:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        own = lr.clone() if isinstance(lr, Tensor) else lr
        return torch.optim.AdamW(model.parameters(), lr=own)

    both = Both(*TRAINED, make=optimizer, max_norm=max_norm)
    schedulers = [make(o) for o in (both.plain_optimizer, both.optimizer)]
    for _ in range(STEPS):
        losses = both.step()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
        for scheduler, (loss,) in zip(schedulers, losses, strict=True):
            plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(*([loss] if plateau else []))
    both.expect_equal()


@pytest.mark.parametrize("lr", [1e-2, torch.tensor(1e-2)], ids=["number", "tensor"])
def test_a_rate_that_changes_after_its_updates_is_said(lr: Any) -> None:
    both = Both(HOST_UPDATED, make=lambda model: torch.optim.AdamW(model.parameters(), lr=lr))
    both.planned(both.batches[0]).backward()
    group = both.optimizer.param_groups[0]
    if isinstance(lr, Tensor):
        group["lr"].fill_(0.5)
    else:
        group["lr"] = 0.5
    with pytest.raises(InputError, match=r"before loss\.backward\(\)"):
        both.optimizer.step()


def test_a_rate_that_is_set_before_the_step_is_read() -> None:
    both = Both(*TRAINED, max_norm=0.3)
    for step in range(STEPS):
        for optimizer in (both.plain_optimizer, both.optimizer):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        both.step()
    both.expect_equal()


# --- parameters


def test_parameters_that_the_optimizer_gets_later_are_refused() -> None:
    both = Both(RESIDENT)
    both.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4))]})
    with pytest.raises(InputError, match=r"step\.release\(\)"):
        both.planned(both.batches[0])
    both = Both(RESIDENT)
    both.planned(both.batches[0]).backward()
    both.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4))]})
    with pytest.raises(InputError, match=r"step\.release\(\)"):
        both.optimizer.step()


@pytest.mark.parametrize("way", [RESIDENT, STREAMED], ids=lambda way: way.name)
def test_a_block_that_is_trained_later_is_refused(way: Way) -> None:
    both = Both(RESIDENT, frozen=True)
    both.model.blocks[0].requires_grad_(requires_grad=True)
    with pytest.raises(InputError, match=r"blocks\.0.*requires_grad.*fit again"):
        both.planned(both.batches[0])
    both.planned.release()
    both.plain.blocks[0].requires_grad_(requires_grad=True)
    both.planned = both.plan(way)
    trained_equally(both)


@EACH_WAY
def test_a_block_that_is_frozen_for_a_while(ways: tuple[Way, ...]) -> None:
    both = Both(*ways)
    for requires_grad in (True, False, True):
        for model in (both.plain, both.model):
            model.blocks[0].requires_grad_(requires_grad=requires_grad)
            model.embedding.requires_grad_(requires_grad=requires_grad)
        trained_equally(both)


def test_a_parameter_that_is_replaced_is_not_trained_as_in_plain_pytorch() -> None:
    both = Both(STREAMED)
    both.step()
    for model in (both.plain, both.model):
        model.blocks[0].up.weight = nn.Parameter(torch.ones(32, 16))
    for _ in range(2):
        plain, planned = both.step()
        torch.testing.assert_close(planned, plain)
    assert torch.equal(both.model.state_dict()["blocks.0.up.weight"], torch.ones(32, 16))


def test_a_part_of_a_model_is_not_loaded_into_either() -> None:
    both = Both(HOST_UPDATED)
    with pytest.raises(InputError, match=r"release\(\)"):
        both.model.blocks.load_state_dict(both.plain.blocks.state_dict())
    with pytest.raises(InputError, match=r"release\(\)"):
        nn.Sequential(both.model).load_state_dict(nn.Sequential(both.plain).state_dict())


@EACH_WAY
def test_hooks_on_parameters_change_gradients(ways: tuple[Way, ...]) -> None:
    both = Both(*ways)
    for model in (both.plain, both.model):
        model.blocks[1].up.weight.register_hook(lambda gradient: gradient * 0.5)
    trained_equally(both)


# --- evaluation


@pytest.mark.parametrize(
    ("ways", "mode", "accumulate", "open_loss"),
    [
        *((TRAINED, torch.no_grad, 2, open_loss) for open_loss in (False, True)),
        *(pytest.param((way,), torch.no_grad, 2, True, marks=pytest.mark.slow) for way in TRAINED),
        *((TRAINED, torch.inference_mode, *case) for case in ((1, False), (2, False), (2, True))),
    ],
)
def test_evaluations_change_nothing(
    ways: tuple[Way, ...], mode: Callable[[], contextlib.AbstractContextManager[None]], accumulate: int, open_loss: bool
) -> None:
    """Evaluations before each pass, or between forward and backward: to the last bit."""

    def train(evaluates: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
        both = Both(*ways, accumulate=accumulate, max_norm=0.3)

        def evaluate() -> None:
            if not evaluates:
                return
            both.model.eval()
            with torch.random.fork_rng(), mode():
                found = both.model(both.batches[1])
                if both.accumulate == 1 and not open_loss:
                    torch.testing.assert_close(found, plain_eval(both))
            both.model.train()

        losses = []
        for step in range(STEPS):
            torch.manual_seed(step)
            for batch in both.batches[:accumulate]:
                if not open_loss:
                    evaluate()
                loss = both.planned(batch) / accumulate
                if open_loss:
                    evaluate()
                loss.backward()
                losses.append(loss.detach())
            both.optimizer.step()
            both.optimizer.zero_grad()
        return losses, both.model.state_dict()

    (with_losses, with_state), (losses, state) = train(evaluates=True), train(evaluates=False)
    assert all(torch.equal(one, other) for one, other in zip(with_losses, losses, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in with_state.items())


def plain_eval(both: Both) -> Tensor:
    """Loss of a plain model with the planned one's weights."""
    with torch.inference_mode(mode=False), torch.no_grad():
        model = Net()
        model.load_state_dict(both.model.state_dict())
        return model.eval()(both.batches[1])


@pytest.mark.parametrize("way", [STATE_AWAY, BOTH_AWAY, STREAMED], ids=lambda way: way.name)
def test_saving_amid_an_accumulation(way: Way) -> None:
    both = Both(way, accumulate=2)
    both.step()
    both.planned(both.batches[0]).backward()
    both.expect_equal()
