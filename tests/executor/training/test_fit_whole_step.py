"""``fit`` plans activations alone or the whole step; one loop trains either as plain PyTorch does."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from loadmaster import load_fit
from loadmaster.errors import BudgetError, InputError, LimitReachedError
from loadmaster.executor import Fitted, PlannedTraining, capture, capture_training, fit
from loadmaster.executor import fitting as fitting_module
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.steps.optimizers import clip_at_step
from loadmaster.executor.training.layers import layers_of
from loadmaster.models.training.measurement import read_measurement
from tests.architecture.sources import ROOT
from tests.executor.training.planned_nets import Net, problem_of
from tests.executor.training.whole_steps import Meters, Planned, on_the_cpu, peak_of

STEPS = 3
AMPLE = 1 << 40


@pytest.fixture(autouse=True)
def meters(monkeypatch: pytest.MonkeyPatch) -> Meters:
    """Whole steps are planned for the CPU."""
    return on_the_cpu(monkeypatch)


@pytest.fixture
def planner() -> Planned:
    return Planned()


def make_net(make: type[Net] = Net) -> Net:
    """A net whose dropout draws nothing: plans draw other masks."""
    torch.manual_seed(0)
    net = make()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return net


class Recipe:
    """A user's model, optimizer and loop."""

    def __init__(self, accumulate: int = 1, clips_to: float | None = None, model: nn.Module | None = None) -> None:
        self.model = make_net() if model is None else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.accumulate, self.clips_to = accumulate, clips_to
        torch.manual_seed(1)
        self.batches = [torch.randint(0, 40, (4, 8)) for _ in range(STEPS * accumulate)]

    @property
    def batch(self) -> tuple[Tensor]:
        return (self.batches[0],)

    def tight(self) -> int:
        """A budget under which some of the state must be away."""
        problem = problem_of(layers_of(self.model, self.optimizer), micro_batches=self.accumulate)
        return peak_of(problem, 1)

    def train(self, step: Callable[[Tensor], Tensor], steps: int = STEPS) -> list[float]:
        """The loop of the docs."""
        losses = []
        for n in range(steps):
            for batch in self.batches[n * self.accumulate : (n + 1) * self.accumulate]:
                loss = step(batch) / self.accumulate
                loss.backward()
                losses.append(float(loss.detach()))
            if self.clips_to is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clips_to)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return losses

    def expect_equal(self, plain: Recipe) -> None:
        """Hold weights and state, as users save them, against another's."""
        found = self.model.state_dict()
        for name, value in plain.model.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
        state = self.optimizer.state_dict()["state"]
        for number, of in plain.optimizer.state_dict()["state"].items():
            for name, value in of.items():
                torch.testing.assert_close(state[number][name], value, rtol=1e-4, atol=1e-6)


def fit_eagerly(recipe: Recipe, planner: Planned, budget: int | str, /, **more: Any) -> Fitted | PlannedTraining:
    """Fit a recipe without compiling anything."""
    options: dict[str, Any] = {"optimizer": recipe.optimizer, "planner": planner, "budget_bytes": budget}
    return fit(recipe.model, recipe.batch, **options | {"backend": "eager"} | more)


@pytest.mark.parametrize("way", [pytest.param(Fitted, marks=pytest.mark.slow), PlannedTraining])
@pytest.mark.parametrize(("accumulate", "norm"), [(1, None), (1, 0.3), (3, 0.3)])
def test_one_loop_trains_both_ways_as_plain_pytorch(
    planner: Planned, way: type, accumulate: int, norm: float | None
) -> None:
    plain, recipe = Recipe(accumulate, norm), Recipe(accumulate)
    budget = AMPLE if way is Fitted else recipe.tight()
    quick = {"costs": roofline("cpu"), "verify": False} if way is Fitted else {}
    fitted = fit_eagerly(recipe, planner, budget, clip_grad_norm=norm, accumulate=accumulate, **quick)
    assert type(fitted) is way
    losses = recipe.train(fitted.step)
    torch.testing.assert_close(losses, plain.train(plain.model), rtol=1e-5, atol=1e-6)
    recipe.expect_equal(plain)


@pytest.mark.parametrize("way", [pytest.param(Fitted, marks=pytest.mark.slow), PlannedTraining])
def test_each_value_of_the_gradients_is_clipped(planner: Planned, way: type) -> None:
    plain, recipe = Recipe(), Recipe()
    clip = partial(nn.utils.clip_grad_value_, list(plain.model.parameters()), 1e-3)
    plain.optimizer.register_step_pre_hook(lambda *_: clip())
    budget = AMPLE if way is Fitted else recipe.tight()
    quick = {"costs": roofline("cpu"), "verify": False} if way is Fitted else {}
    fitted = fit_eagerly(recipe, planner, budget, clip_grad_value=1e-3, **quick)
    assert type(fitted) is way
    torch.testing.assert_close(recipe.train(fitted.step), plain.train(plain.model), rtol=1e-5, atol=1e-6)
    recipe.expect_equal(plain)


class Targeted(Net):
    """The docs' ``MyModel``: its batch has targets, too."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return super().forward(tokens)


def test_the_loop_on_the_page_trains_as_plain_pytorch(planner: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8").split("## Train a model of your own")[1]
    block = page.split("```python\n")[1].split("```")[0]
    replaced = ((".cuda()", ""), ('"cuda"', '"cpu"'), ("planner=loadmaster.plan", 'planner=planner, backend="eager"'))
    for there, here in (*replaced, ('"28GiB"', "budget")):
        assert there in block
        block = block.replace(there, here)
    plain, recipe = (Recipe(4, 1.0, make_net(Targeted)) for _ in range(2))
    loader = [(batch, batch) for batch in recipe.batches]
    schedulers = [torch.optim.lr_scheduler.StepLR(one.optimizer, 1, 0.5) for one in (plain, recipe)]
    (tokens, targets), budget = loader[0], recipe.tight()
    made = {"MyModel": lambda: recipe.model, "loss": None, "scheduler": schedulers[1]}
    block = block.replace("torch.optim.AdamW(model.parameters(), lr=1e-4)", "made_optimizer")
    more = {"made_optimizer": recipe.optimizer, "planner": planner, "loader": loader, "budget": budget}
    exec(compile(block, "docs/training.md", "exec"), made | more | {"tokens": tokens, "targets": targets})
    assert "The whole step is planned" in capsys.readouterr().out

    for n in range(STEPS):
        for batch in plain.batches[4 * n : 4 * n + 4]:
            with torch.autocast("cpu", torch.bfloat16):
                value = plain.model(batch, batch) / 4
            value.backward()
        nn.utils.clip_grad_norm_(plain.model.parameters(), 1.0)
        plain.optimizer.step()
        plain.optimizer.zero_grad()
        schedulers[0].step()
    recipe.expect_equal(plain)


def test_clipping_in_the_optimizers_step() -> None:
    plain, recipe = Recipe(clips_to=0.3), Recipe()
    for norm in (0.1, 0.3):  # the latest one counts
        clip_at_step(recipe.optimizer, norm)
    assert recipe.train(recipe.model) == plain.train(plain.model)
    recipe.expect_equal(plain)
    clip_at_step(recipe.optimizer, None)
    plain.clips_to = None
    assert recipe.train(recipe.model) == plain.train(plain.model)


def test_clipping_that_cannot_be_kept_is_refused() -> None:
    recipe = Recipe()
    clip_at_step(recipe.optimizer, 1.0)
    with pytest.raises(InputError, match="in the closure"):
        recipe.optimizer.step(lambda: 0.0)
    recipe.optimizer.grad_scale = torch.ones(())  # as GradScaler sets it for fused optimizers
    with pytest.raises(InputError, match="unscale_"):
        recipe.optimizer.step()


def test_accumulation_counts_the_gradients_that_are_held(planner: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    monkeypatch.setattr(Fitter, "fit", lambda self, *_, **__: held.append(self.runs.options.gradients_held))
    for accumulate in (1, 2):
        fit_eagerly(Recipe(), planner, AMPLE, accumulate=accumulate)
    assert held == [False, True]


def test_a_planned_model_is_released_first(planner: Planned) -> None:
    recipe = Recipe()
    fitted = fit_eagerly(recipe, planner, recipe.tight())
    for again in (fit_eagerly, lambda *_: capture_training(recipe.model, recipe.batch, optimizer=recipe.optimizer)):
        with pytest.raises(InputError, match=r"step\.release\(\)"):
            again(recipe, planner, AMPLE)
    fitted.step.release()
    assert isinstance(fit_eagerly(recipe, planner, AMPLE, blocks=list(recipe.model.blocks)), PlannedTraining)


def test_the_plan_of_a_whole_step_is_followed(planner: Planned) -> None:
    recipe = Recipe()
    fitted = fit_eagerly(recipe, planner, recipe.tight())
    assert isinstance(fitted, PlannedTraining) and fitted.plan.schedule is not None
    assert {group.weights for group in fitted.plan.schedule.groups} == {"copy", "streamed"}
    recipe.train(fitted.step)
    assert torch.isnan(recipe.model.blocks[1].up.weight).any() or fitted.step.now.streamed_bytes > 0


@pytest.mark.parametrize("share", [0.49, 0.51])
def test_state_of_more_than_half_the_budget_asks_for_the_whole_step(
    planner: Planned, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    recipe = Recipe()
    four_times = 4 * sum(p.numel() * p.element_size() for p in recipe.model.parameters())  # and a gradient, two moments
    counts = 4 * len(list(recipe.model.parameters()))  # AdamW's steps
    tokens = recipe.batches[0].numel() * 8
    monkeypatch.setattr(Fitter, "fit", lambda *_, **__: "activations alone")
    fitted = fit_eagerly(recipe, planner, round((four_times + counts + tokens) / share))
    assert isinstance(fitted, PlannedTraining) == (share > 0.5)
    if isinstance(fitted, PlannedTraining):
        assert "parameters, gradients and optimizer state take" in fitted.report


class Bare(nn.Module):
    """A model without a list of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.only(tokens.float()).square().mean()


@pytest.mark.parametrize("why", ["no blocks", "LBFGS", "half of the parameters", "scaled losses", "held gradients"])
def test_what_cannot_be_planned_whole_has_plans_of_activations_as_before(
    planner: Planned, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(Fitter, "fit", lambda *_, **__: why)
    recipe = Recipe(model=Bare() if why == "no blocks" else None)
    parameters = list(recipe.model.parameters())
    if why == "LBFGS":
        recipe.optimizer = torch.optim.LBFGS(parameters)
    elif why == "half of the parameters":
        recipe.optimizer = torch.optim.SGD(parameters[::2])
    with torch.autocast("cpu", torch.float16, enabled=why == "scaled losses"):
        assert fit_eagerly(recipe, planner, 1024, gradients_held=why == "held gradients") == why


def test_a_share_of_the_peak_means_the_same_bytes_both_ways(planner: Planned) -> None:
    recipe = Recipe()
    peak = capture(recipe.model, recipe.batch, optimizer=recipe.optimizer, hardware="h200", backend="eager").summary()
    fitted = fit_eagerly(recipe, planner, "75%", costs=roofline("cpu"))
    assert isinstance(fitted, PlannedTraining)
    assert fitted.plan.budget_bytes == int(0.75 * peak.figures["unconstrained_peak_bytes"])


@pytest.mark.parametrize("error", [BudgetError("none fits", 1, 2), LimitReachedError("no time")])
def test_a_budget_that_activations_alone_cannot_keep(
    planner: Planned, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Fitter, "fit", refuse)
    recipe = Recipe()
    fitted = fit_eagerly(recipe, planner, AMPLE)
    assert isinstance(fitted, PlannedTraining)
    assert "no plan of activations alone" in fitted.report

    model = nn.Linear(4, 4)  # no list of blocks
    loss = nn.MSELoss()
    options: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters()), "backend": "eager"}
    with pytest.raises(type(error)) as raised:
        fit(model, (torch.ones(2, 4), torch.ones(2, 4)), loss, budget_bytes=AMPLE, planner=planner, **options)
    assert raised.value is error
    assert "blocks" in " ".join(error.__notes__)


class Breaks(nn.Module):
    """A net that Dynamo cannot trace as one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, tokens: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.net(tokens)


def test_a_model_that_is_not_one_graph_goes_by_blocks(planner: Planned) -> None:
    plain, recipe = Recipe(model=Breaks()), Recipe(model=Breaks())
    fitted = fit_eagerly(recipe, planner, AMPLE)
    assert isinstance(fitted, PlannedTraining)
    fitted.step.release()
    fitted = fit_eagerly(recipe, planner, "60%")
    assert isinstance(fitted, PlannedTraining)
    assert fitted.plan.budget_bytes == int(0.6 * peak_of(fitted.problem, 0))
    torch.testing.assert_close(recipe.train(fitted.step), plain.train(plain.model))
    recipe.expect_equal(plain)


def test_a_budget_too_small_for_any_plan_names_the_bytes(planner: Planned) -> None:
    recipe = Recipe()
    least = peak_of(problem_of(layers_of(recipe.model, recipe.optimizer)), 2)
    with pytest.raises(BudgetError, match=f"Ask for at least {least} bytes") as raised:
        fit_eagerly(recipe, planner, least - 1)
    assert (raised.value.budget_bytes, raised.value.needed_bytes) == (least - 1, least)
    recipe.train(recipe.model)  # it is plain PyTorch's, as before


def test_blocks_ask_for_the_whole_step(planner: Planned) -> None:
    plain, recipe = Recipe(), Recipe()
    fitted = fit_eagerly(recipe, planner, AMPLE, blocks=list(recipe.model.blocks)[:2])
    assert isinstance(fitted, PlannedTraining)
    assert len(fitted.problem.layers) == 4
    torch.testing.assert_close(recipe.train(fitted.step), plain.train(plain.model))


def test_a_model_that_is_not_on_the_device_asks_for_the_whole_step(
    planner: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(fitting_module, "fit_training", lambda *_, **given: asked.update(given))
    recipe = Recipe()
    recipe.model.embedding.to("meta")  # as part of a model that was released is on the host
    for device in (None, "cpu"):
        fit_eagerly(recipe, planner, AMPLE, device=device)
        assert str(asked["device"]) == "cpu" and "since the model is on cpu and meta" in asked.pop("why")


def test_arguments_that_a_whole_step_does_not_use_are_named(planner: Planned, caplog: pytest.LogCaptureFixture) -> None:
    recipe = Recipe()
    with caplog.at_level(logging.WARNING, "loadmaster"):
        fit_eagerly(recipe, planner, recipe.tight(), repeats=3, verify=False, knob_tries=4)
    (said,) = [r.getMessage() for r in caplog.records]
    assert said == "repeats, verify: not used, for the whole step is planned"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("clip_grad_norm", {"optimizer": None, "clip_grad_norm": 1.0}),
        ("clip_grad_norm", {"clip_grad_norm": 0.0}),
        ("clip_grad_value", {"optimizer": None, "clip_grad_value": 1.0}),
        ("clip_grad_value", {"clip_grad_value": -1.0}),
        ("clip_grad_value", {"clip_grad_value": 1.0, "clip_grad_norm": 1.0}),
        ("accumulate", {"accumulate": 0}),
        ("blocks", {"optimizer": None, "blocks": []}),
        ("device", {"device": "meta"}),
        ("backend", {"backend": "fast"}),
        ("tries", {"tries": 0, "blocks": []}),
        ("budget_bytes", {"budget_bytes": "much"}),
        ("planner", {"planner": lambda problem: None, "blocks": None, "budget_bytes": "30KiB"}),
    ],
)
def test_what_does_not_go_together_is_refused(planner: Planned, field: str, given: dict[str, Any]) -> None:
    recipe = Recipe()
    if given.get("blocks") == []:
        given["blocks"] = list(recipe.model.blocks)
    with pytest.raises(InputError, match=f"^{field}"):
        fit_eagerly(recipe, planner, AMPLE, **given)


def test_a_machine_without_cuda_says_so(planner: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.executor.training.capture.MEASURED_ON", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = Recipe()
    with pytest.raises(InputError, match=r"^device: cannot be measured"):
        fit_eagerly(recipe, planner, AMPLE, device="cuda")
    with pytest.raises(InputError, match=r"^device: cannot be measured"):
        capture_training(recipe.model, recipe.batch, optimizer=recipe.optimizer)


def test_gradients_added_up_without_a_word_are_refused(planner: Planned) -> None:
    recipe = Recipe()
    fitted = fit_eagerly(recipe, planner, recipe.tight())
    for batch in recipe.batches[:2]:
        fitted.step(batch).backward()
    with pytest.raises(InputError, match=r"^optimizer\.step\(\): .* \(found 2\)\. .* accumulate: fit\("):
        recipe.optimizer.step()


def test_an_update_amid_the_micro_batches_is_refused(planner: Planned) -> None:
    recipe = Recipe(accumulate=3)
    fitted = fit_eagerly(recipe, planner, recipe.tight(), accumulate=3)
    (fitted.step(recipe.batches[0]) / 3).backward()
    with pytest.raises(InputError, match=r"^optimizer\.step\(\): is called after 1 of 3 micro-batches"):
        recipe.optimizer.step()


@pytest.mark.parametrize("planned_norm", [None, 0.3])
def test_clipping_outside_a_whole_step_is_refused(planner: Planned, planned_norm: float | None) -> None:
    recipe, clip = Recipe(clips_to=0.3), nn.utils.clip_grad_norm_
    fitted = fit_eagerly(recipe, planner, recipe.tight(), clip_grad_norm=planned_norm)
    fitted.step(recipe.batches[0]).backward()
    for parameters in (recipe.model.parameters(), recipe.model.blocks[0].up.weight):
        with pytest.raises(InputError, match=r"^gradient: .* Clip by fit\(\.\.\., clip_grad_norm=1\.0\)"):
            clip(parameters, 0.3)
    recipe.optimizer.step()
    fitted.step.release()
    recipe.model(recipe.batches[0]).backward()
    clip(recipe.model.parameters(), 0.3)  # of plain PyTorch's gradients, which are there
    norms = [p.grad.norm() for p in recipe.model.parameters() if p.grad is not None]
    assert float(torch.stack(norms).norm()) <= 0.3001


def test_a_loss_that_is_dropped_is_no_step(planner: Planned) -> None:
    plain, recipe = Recipe(), Recipe()
    fitted = fit_eagerly(recipe, planner, recipe.tight())
    fitted.step(recipe.batches[2])  # not finite, say
    torch.testing.assert_close(recipe.train(fitted.step), plain.train(plain.model))
    recipe.expect_equal(plain)


def test_steps_inside_the_optimizers_closure(planner: Planned) -> None:
    """Lightning's loop: forward and backward pass are in optimizer.step(closure)."""
    plain, recipe = Recipe(), Recipe()
    fitted = fit_eagerly(recipe, planner, recipe.tight())

    def closure(batch: Tensor) -> Tensor:
        recipe.optimizer.zero_grad()
        loss = fitted.step(batch)
        loss.backward()
        return loss

    found = [float(recipe.optimizer.step(partial(closure, batch)).detach()) for batch in recipe.batches]
    torch.testing.assert_close(found, plain.train(plain.model))
    recipe.expect_equal(plain)


def test_a_step_that_takes_more_than_the_budget_is_planned_again(
    planner: Planned, meters: Meters, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    plain, recipe = Recipe(), Recipe()
    problem = problem_of(layers_of(recipe.model, recipe.optimizer))
    budget, next_peak = peak_of(problem, 0), peak_of(problem, 1)
    # The first step, which compiles, is not counted; the third one is 5 bytes over the budget.
    meters.peaks = [budget + 900, budget, budget + 5, budget + 900, next_peak, next_peak + 5, next_peak]
    fitted = fit_eagerly(recipe, planner, budget, blocks=list(recipe.model.blocks))
    assert isinstance(fitted, PlannedTraining)
    first = fitted.plan
    assert first.check["peak_bytes"] == budget and fitted.tries == () and fitted.measured is fitted.measurement is None
    assert "nothing yet" in fitted.report and not fitted.finish().is_final
    with pytest.raises(InputError, match=r"fitted\.plan\.save"):
        fitted.save(tmp_path / "record.json")
    with caplog.at_level(logging.WARNING, "loadmaster"):
        losses = recipe.train(fitted.step) + recipe.train(fitted.step)
    torch.testing.assert_close(losses, plain.train(plain.model) + plain.train(plain.model))
    recipe.expect_equal(plain)

    assert fitted.problem.fixed_bytes == 5
    assert fitted.plan is not first and fitted.plan.check["peak_bytes"] == next_peak + 5
    over, kept = fitted.tries
    assert (over.used_bytes, over.kept, over.corrected_bytes) == (budget + 5, False, 0)
    assert (kept.used_bytes, kept.kept, kept.corrected_bytes) == (next_peak + 5, True, 5)
    assert fitted.measured == kept and 200 <= kept.step_us < 210
    assert "It was planned again once." in fitted.report and not fitted.is_final
    recipe.train(fitted.step, 1)
    assert fitted.is_final
    (said,) = [r.getMessage() for r in caplog.records]
    assert "planned again, for 5 B that its plan did not know" in said
    # Three steps, of which two count, and four of the next plan.
    assert meters.watched == [False, True, True, False, True, True, True]
    fitted.save(tmp_path / "record.json")
    record = load_fit(tmp_path / "record.json")
    assert (record.kind, record.tries, record.chosen) == ("training", fitted.tries, 1)
    assert (record.plan, record.problem) == (fitted.plan, fitted.problem)
    assert "tries" in repr(fitted)
    found = fitted.measurement
    assert found is not None and (found.peak_bytes, found.step_us) == (kept.peak_bytes, fitted.measured.step_us)
    assert len(found.times_us) == 2 * len(problem.layers) + 1  # a phase each, and the end
    found.save(tmp_path / "measured.json")
    assert read_measurement(json.loads((tmp_path / "measured.json").read_text()), fitted.plan) == found


def test_a_budget_that_no_plan_keeps_ends_the_training_between_two_steps(planner: Planned, meters: Meters) -> None:
    plain, recipe = Recipe(), Recipe()
    budget = peak_of(problem_of(layers_of(recipe.model, recipe.optimizer)), 0)
    meters.peaks = [budget + 7]
    fitted = fit_eagerly(recipe, planner, budget, blocks=list(recipe.model.blocks), tries=1)
    recipe.train(fitted.step, 2)
    for _ in range(2):
        with pytest.raises(BudgetError, match=f"Ask for at least {budget + 7} bytes, or allow more tries") as raised:
            fitted.step(recipe.batches[2])
        assert raised.value.measured_bytes == budget + 7
    plain.train(plain.model, 2)
    recipe.expect_equal(plain)
    fitted.step.release()
    torch.testing.assert_close(recipe.train(recipe.model), plain.train(plain.model))
    with pytest.raises(InputError, match="Call fit again"):
        fitted.step(recipe.batches[0])


def test_a_step_for_which_there_is_no_plan_any_more(planner: Planned, meters: Meters) -> None:
    recipe = Recipe()
    least = peak_of(problem_of(layers_of(recipe.model, recipe.optimizer)), 2)
    meters.peaks = [least + 9]
    fitted = fit_eagerly(recipe, planner, least + 8)
    recipe.train(fitted.step, 2)
    with pytest.raises(BudgetError, match=f"Ask for at least {least + 9} bytes"):
        fitted.step(recipe.batches[2])


@pytest.mark.parametrize("reserve", [100, None])
def test_what_the_allocator_reserves_counts_where_it_is_asked_for(
    planner: Planned, meters: Meters, reserve: int | None
) -> None:
    recipe = Recipe()
    budget = peak_of(problem_of(layers_of(recipe.model, recipe.optimizer)), 1) + 100
    meters.peaks, meters.reserved = [budget - 100], budget - 1
    fitted = fit_eagerly(recipe, planner, budget, fragmentation_reserve_bytes=reserve, blocks=list(recipe.model.blocks))
    assert isinstance(fitted, PlannedTraining)
    assert fitted.problem.fixed_bytes == (reserve or 0)
    recipe.train(fitted.step)
    assert fitted.measured is not None
    assert (fitted.measured.used_bytes, fitted.measured.peak_bytes) == (budget - (reserve is None), budget - 100)


def test_the_step_has_the_models_parameters_once(planner: Planned) -> None:
    recipe = Recipe()
    names = [name for name, _ in recipe.model.named_parameters()]
    fitted = fit_eagerly(recipe, planner, recipe.tight())
    assert [name for name, _ in fitted.step.named_parameters()] == [f"step.model.{name}" for name in names]
    assert copy.copy(fitted).plan is fitted.plan


def test_capture_gives_the_problem_and_changes_nothing(planner: Planned) -> None:
    recipe = Recipe()
    before = copy.deepcopy(recipe.model.state_dict())
    found = capture_training(
        recipe.model, recipe.batch, optimizer=recipe.optimizer, accumulate=2, clip_grad_norm=1.0, device="cpu"
    )
    assert found.budget_bytes is None and found.micro_batches == 2 and found.clip_grad_norm
    torch.testing.assert_close(recipe.model.state_dict(), before)


@pytest.mark.slow
def test_a_plan_takes_the_host_memory_that_it_is_allowed(
    planner: Planned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host: dict[str, Any] = {"host_memory_bytes": "64MiB", "disk": tmp_path}
    recipe = Recipe()
    fitted = fit_eagerly(recipe, planner, AMPLE, blocks=list(recipe.model.blocks), **host)
    assert isinstance(fitted, PlannedTraining)
    assert planner.asked[0].host.capacity_bytes == 64 << 20
    fit_eagerly(Recipe(), planner, AMPLE, costs=roofline("cpu"), verify=False, **host)
    for field in host:
        assert f"{field}: not used, for activations alone are planned" in caplog.text
