"""What every rank does in tests of the recipes of training: the oracle of each is one device in plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from loadmaster.errors import InputError
from loadmaster.executor.partition.apply import apply
from loadmaster.executor.partition.capture import capture
from loadmaster.executor.partition.graph_step import PartitionedStep
from loadmaster.executor.partition.module_step import ModuleStep
from loadmaster.executor.partition.traced import TracedStep, traced_step
from loadmaster.executor.steps.batch import batch_of
from loadmaster.executor.steps.step import Loss
from loadmaster.models.partition.choices import coarsened
from loadmaster.models.partition.documents import read_problem, write_problem
from loadmaster.models.partition.plan import PartitionPlan, Splits
from loadmaster.models.partition.problem import PartitionProblem
from tests.executor.partition.module_scenarios import Roles, under
from tests.executor.partition.step_scenarios import Sizes, plan_of
from tests.models.partition.instances import axes

LENGTH, EVERY, DECAY, MOST = 10, 2, 0.9, 0.05
AnyStep = PartitionedStep | ModuleStep
Saves = Callable[[AnyStep, torch.optim.Optimizer], None]


class Tied(nn.Module):
    """A head that is the embedding, a frozen layer, a parameter that nothing uses, a buffer; extents of many sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(24, 16)
        self.up = nn.Linear(16, 24)
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.down = nn.Linear(24, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.tokens.weight
        self.spare = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.linspace(-1, 1, 16))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.shift
        found: Tensor = self.head(self.norm(x + self.down(self.frozen(functional.gelu(self.up(x))))))
        return found


def rows_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


Batches = list[tuple[Tensor, Tensor]]


@cache
def batches(dtype: torch.dtype) -> Batches:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randint(24, (8, 6), generator=generator), torch.randint(24, (8, 6), generator=generator))
        for _ in range(EVERY)
    ]


def tied(dtype: torch.dtype) -> Tied:
    torch.manual_seed(0)
    return Tied().to(dtype)


@dataclass
class Trained:
    """What became of some steps of training."""

    losses: list[Tensor]
    norms: list[float]
    averages: dict[str, Tensor]


@dataclass
class Recipe:
    """Clipping, accumulation, a schedule, and averages of parameters, around one model or step.

    Attributes:
        run: from a batch to the loss.
        named: the parameters.
    """

    run: Callable[..., Tensor]
    named: list[tuple[str, nn.Parameter]]
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler

    @classmethod
    def of(cls, run: Callable[..., Tensor], named: Iterator[tuple[str, nn.Parameter]]) -> Recipe:
        # A parameter without a gradient has no optimizer state, which checkpoints of optimizers expect of all.
        every = [(name, p) for name, p in named if name != "spare"]
        decayed = [p for _, p in every if p.dim() > 1]
        others = [p for _, p in every if p.dim() < 2]
        optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.02)
        return cls(run, every, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LENGTH))

    def train(self, steps: int, given: Batches) -> Trained:
        found = Trained([], [], {name: p.detach().clone() for name, p in self.named})
        average = get_ema_multi_avg_fn(DECAY)
        for _ in range(steps):
            for batch in given:
                loss = self.run(*batch)
                (loss / EVERY).backward()
                found.losses.append(loss.detach())
            norm = torch.nn.utils.clip_grad_norm_([p for _, p in self.named], MOST)
            found.norms.append(float(norm))
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            average([*found.averages.values()], [p.detach() for _, p in self.named], 1)
        return found


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


@cache
def on_one_device(dtype: torch.dtype, steps: int) -> tuple[Trained, dict[str, Tensor]]:
    model = tied(dtype)
    recipe = Recipe.of(lambda ids, targets: rows_loss(model(ids), targets), model.named_parameters())
    return recipe.train(steps, batches(dtype)), copy.deepcopy(model.state_dict())


@cache
def traced_tied(dtype: torch.dtype) -> TracedStep:
    return traced_step(tied(dtype), batch_of(batches(dtype)[0]), rows_loss)


def captured(model: nn.Module, batch: tuple[Tensor, Tensor], loss: Loss) -> PartitionProblem:
    """One rank captures for all, whatever the mesh."""
    said: list[object] = [None]
    if dist.get_rank() == 0:
        said = [write_problem(capture(model, batch, loss, axes=axes(2)))]
    dist.broadcast_object_list(said)
    return read_problem(said[0])


@cache
def captured_tied(dtype: torch.dtype) -> PartitionProblem:
    return captured(tied(dtype), batches(dtype)[0], rows_loss)


def problem_of(dtype: torch.dtype, of: Sizes) -> PartitionProblem:
    return replace(captured_tied(dtype), axes=axes(*of, latency_us=1.0))


def divided(problem: PartitionProblem, seed: int) -> Splits:
    """A random plan that splits some parameter along every axis, and leaves another one whole."""
    choices, rng = coarsened(problem), Random(seed)
    while True:
        splits = choices.splits([rng.randrange(len(variable.states)) for variable in choices.variables])
        lie = [p for t, p in zip(problem.tensors, splits.placements, strict=True) if t.role == "parameter"]
        if any("R" not in p for p in lie) and any(set(p) == {"R"} for p in lie):
            return splits


def split_tied(dtype: torch.dtype, of: Sizes, seed: int) -> PartitionedStep:
    problem = problem_of(dtype, of)
    mesh = init_device_mesh("cpu", tuple(axis.size for axis in problem.axes))
    plan = plan_of(problem, divided(problem, seed))
    return PartitionedStep(tied(dtype), rows_loss, traced_tied(dtype), problem, plan, mesh, "eager")


def modules_tied(dtype: torch.dtype, of: tuple[int, ...], roles: Roles) -> ModuleStep:
    problem = replace(problem_of(dtype, of), axes=axes(*of, gbps=1e6))
    plan: PartitionPlan = under(problem, roles)
    step = apply(tied(dtype), batches(dtype)[0], rows_loss, problem=problem, plan=plan, executor="module")
    assert isinstance(step, ModuleStep)
    return step


def expect_alike(step: AnyStep, found: Trained, wanted: Trained, state: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Norms, losses and parameters are those of one device, and of all ranks."""
    close: dict[str, float] = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    assert found.norms[0] == pytest.approx(wanted.norms[0], rel={torch.float64: 1e-10, torch.float32: 1e-6}[dtype])
    torch.testing.assert_close(found.norms, wanted.norms, **close)
    torch.testing.assert_close(found.losses, wanted.losses, **close)
    own = step.state_dict()
    assert own.keys() == state.keys()
    torch.testing.assert_close(own, state, **close)
    for name, parameter in step.named_parameters():
        if name == "spare":
            continue
        if dtype == torch.float64:
            torch.testing.assert_close(step_whole(step, found.averages[name]), wanted.averages[name], **close)
        said: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(said, step_whole(step, parameter.detach()))
        assert all(torch.equal(one, said[0]) for one in said), name


def step_whole(step: AnyStep, value: Tensor) -> Tensor:
    return step._whole(value) if isinstance(step, PartitionedStep) else whole(value)


def trains_alike(made: Callable[[], AnyStep], dtype: torch.dtype, rank: int) -> None:
    step = made()
    found = Recipe.of(step, step.named_parameters()).train(LENGTH, batches(dtype))
    expect_alike(step, found, *on_one_device(dtype, LENGTH), dtype)


def saves(made: Callable[[], AnyStep], folder: Path, rank: int) -> None:
    """Half of the training, and all that the other half needs, as PyTorch saves it."""
    step = made()
    recipe = Recipe.of(step, step.named_parameters())
    recipe.train(LENGTH // 2, batches(torch.float64))
    dcp.save(_state_of(step, recipe), checkpoint_id=folder)


def resumes(made: Callable[[], AnyStep], folder: Path, rank: int) -> None:
    """The other half, on another mesh, ends where one device ends that never stopped."""
    step = made()
    for parameter in step.parameters():
        with torch.no_grad():
            parameter.zero_()
    recipe = Recipe.of(step, step.named_parameters())
    state = _state_of(step, recipe)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(step.module, recipe.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    recipe.schedule.load_state_dict(state["schedule"])
    expect_resumed(recipe.train(LENGTH // 2, batches(torch.float64)), step.state_dict())


def resumes_on_one_device(folder: Path) -> None:
    """In plain PyTorch."""
    model = tied(torch.float64)
    recipe = Recipe.of(lambda ids, targets: rows_loss(model(ids), targets), model.named_parameters())
    weights, moments = get_state_dict(model, recipe.optimizer)
    state = {"model": weights, "optimizer": moments, "schedule": recipe.schedule.state_dict()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    set_state_dict(model, recipe.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    recipe.schedule.load_state_dict(state["schedule"])
    expect_resumed(recipe.train(LENGTH // 2, batches(torch.float64)), model.state_dict())


def expect_resumed(found: Trained, state: dict[str, Tensor]) -> None:
    wanted, whole_state = on_one_device(torch.float64, LENGTH)
    assert found.norms == pytest.approx(wanted.norms[LENGTH // 2 :], rel=1e-9)
    torch.testing.assert_close(found.losses, wanted.losses[LENGTH // 2 * EVERY :], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state, whole_state, rtol=1e-9, atol=1e-11)


def _state_of(step: AnyStep, recipe: Recipe) -> dict[str, Any]:
    model, optimizer = get_state_dict(step.module, recipe.optimizer)
    return {"model": model, "optimizer": optimizer, "schedule": recipe.schedule.state_dict()}


def resumes_plainly(made: Callable[[], AnyStep], folder: Path, rank: int) -> None:
    """``optimizer.state_dict()`` by itself goes out and in, too."""
    step = made()
    recipe = Recipe.of(step, step.named_parameters())
    recipe.train(LENGTH // 2, batches(torch.float64))
    state = {"model": step.module.state_dict(), "optimizer": recipe.optimizer.state_dict()}
    dcp.save(state, checkpoint_id=folder)
    other = made()
    resumed = Recipe.of(other, other.named_parameters())
    resumed.train(1, batches(torch.float64))
    state = {"model": other.module.state_dict(), "optimizer": resumed.optimizer.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    other.module.load_state_dict(state["model"])
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.schedule.load_state_dict(recipe.schedule.state_dict())
    expect_resumed(resumed.train(LENGTH // 2, batches(torch.float64)), other.state_dict())


def averages(made: Callable[[], PartitionedStep], rank: int) -> None:
    """``swa_utils`` averages shares as it does whole parameters, and what it makes has a loss."""
    step, model = made(), tied(torch.float64)
    (ids, targets), *_ = batches(torch.float64)
    optimizers = [torch.optim.SGD(of.parameters(), lr=0.5) for of in (step, model)]
    for how in ({}, {"multi_avg_fn": get_ema_multi_avg_fn(DECAY)}):
        found, wanted = AveragedModel(step.module, **how), AveragedModel(model, **how)
        for _ in range(3):
            step(ids, targets).backward()
            rows_loss(model(ids), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            found.update_parameters(step.module)
            wanted.update_parameters(model)
        loss = rows_loss(wanted(ids), targets)
        torch.testing.assert_close(found(ids, targets), loss, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(step(ids, targets), rows_loss(model(ids), targets), rtol=1e-10, atol=1e-12)


def unfreezing_is_refused(made: Callable[[], PartitionedStep], rank: int) -> None:
    step = made()
    step.module.get_parameter("frozen.weight").requires_grad_(True)
    with pytest.raises(InputError, match=r"requires_grad: .*frozen\.weight.*Split"):
        step(*batches(torch.float64)[0])


def has_one_mode(of: Sizes, rank: int) -> None:
    """Evaluation is another step, under the same shares."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4)).double()
    batch = torch.randn(8, 8).double(), torch.randn(8, 4).double()
    step = _split(model, batch, of, 1)
    optimizer = torch.optim.AdamW(step.parameters(), lr=0.1)
    for _ in range(2):
        step(*batch).backward()
        optimizer.step()
    step.module.train()
    with pytest.raises(InputError, match=r"mode: .*eval.*model\.eval\(\)"):
        step.module.eval()
    with pytest.raises(InputError, match=r"running statistics.*model\.load_state_dict"):
        update_bn([batch[0]], step.module)
    model.load_state_dict(step.state_dict())
    other = _split(model.eval(), batch, of, 2)
    with torch.no_grad():
        for share in other.parameters():
            share.zero_()
    other.module.load_state_dict(step.module.state_dict())
    with torch.no_grad():
        wanted = functional.mse_loss(model(batch[0]), batch[1])
        torch.testing.assert_close(other(*batch), wanted, rtol=1e-10, atol=1e-12)
    other.module.eval()


def _split(model: nn.Module, batch: tuple[Tensor, Tensor], of: Sizes, seed: int) -> PartitionedStep:
    problem = replace(captured(model, batch, functional.mse_loss), axes=axes(*of, latency_us=1.0))
    step = apply(model, batch, functional.mse_loss, problem=problem, plan=plan_of(problem, divided(problem, seed)))
    assert isinstance(step, PartitionedStep)
    return step


class Checkpointed(nn.Module):
    """Four blocks, each checkpointed. With ReLU as ``act`` the result is homogeneous in each weight."""

    def __init__(self, act: Callable[[Tensor], Tensor], chance: float) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 16, bias=False) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(16, 8, bias=False) for _ in range(4))
        self.act, self.chance = act, chance

    def block(self, up: nn.Module, down: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = down(functional.dropout(self.act(up(x)), self.chance))
        return found

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = checkpoint(self.block, up, down, x, use_reentrant=False)
        return x


class _Calls(TorchDispatchMode):
    """Counts calls of an operator."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator, self.count = operator, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func == self.operator
        return func(*args, **(kwargs or {}))


def checkpoints_are_kept(of: Sizes, rank: int) -> None:
    """All that is checkpointed is computed again in the backward pass, with the same gradients."""
    torch.manual_seed(0)
    model = Checkpointed(functional.gelu, 0.0).double()
    batch = torch.randn(8, 8).double(), torch.randn(8, 8).double()
    step = _split(model, batch, of, 0)
    with _Calls(torch.ops.aten.gelu.default) as wanted:
        functional.mse_loss(model(batch[0]), batch[1]).backward()
    with _Calls(torch.ops.aten.gelu.default) as found:
        step(*batch).backward()
    assert found.count == wanted.count == 8
    for name, gradient in step.whole_gradients():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, rtol=1e-10, atol=1e-12)


def checkpoints_of_modules_are_kept(of: tuple[int, ...], roles: Roles, rank: int) -> None:
    """The model's own code runs, so that PyTorch computes again what is checkpointed."""
    torch.manual_seed(0)
    model = Checkpointed(functional.gelu, 0.0).double()
    batch = torch.randn(8, 8).double(), torch.randn(8, 8).double()
    problem = replace(captured(model, batch, functional.mse_loss), axes=axes(*of, gbps=1e6))
    plan = under(problem, roles)
    step = apply(model, batch, functional.mse_loss, problem=problem, plan=plan, executor="module")
    with _Calls(torch.ops.aten.gelu.default) as found:
        step(*batch).backward()
    assert found.count == 8


def drops_alike_again(of: Sizes, rank: int) -> None:
    """What is computed again drops what was dropped: every layer is homogeneous in its weights, whatever the mask."""
    torch.manual_seed(0)
    model = Checkpointed(functional.relu, 0.5).double()
    for parameter in model.parameters():
        parameter.detach().abs_()
    batch = torch.rand(8, 8).double(), torch.rand(8, 8).double()

    def loss(out: Tensor, weights: Tensor) -> Tensor:
        return (out * weights).sum()

    problem = replace(captured(model, batch, loss), axes=axes(*of, latency_us=1.0))
    for seed in range(2):
        plan = plan_of(problem, divided(problem, seed))
        step = apply(model, batch, loss, problem=problem, plan=plan)
        assert isinstance(step, PartitionedStep)
        first, second = step(*batch), step(*batch)
        # Not in the order in which they were drawn.
        for made in (second, first):
            made.backward()
            state = step.state_dict()
            for name, gradient in step.whole_gradients():
                assert float((gradient * state[name]).sum() / made) == pytest.approx(1.0, rel=1e-10), name
            for share in step.parameters():
                share.grad = None


class Lamb(torch.optim.Optimizer):
    """A trust ratio of the norms of whole tensors."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    def ratio(self, p: Tensor, update: Tensor) -> Any:
        return p.norm() / update.norm()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                    moment.mul_(0.9).add_(p.grad)
                    p.add_(moment * self.ratio(p, moment), alpha=-group["lr"])


class LocalNorms(Lamb):
    """It takes a share for the whole."""

    def ratio(self, p: Tensor, update: Tensor) -> Any:
        norms = [float(getattr(x, "_local_tensor", x).norm()) for x in (p, update)]
        return norms[0] / norms[1]


class Preconditioned(torch.optim.Optimizer):
    """Shampoo's left factor."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.dim() == 2:
                    factor = p.grad @ p.grad.T + 0.1 * torch.eye(len(p), dtype=p.dtype)
                    values, vectors = torch.linalg.eigh(factor)
                    p.add_(vectors * values.pow(-0.25) @ vectors.T @ p.grad, alpha=-group["lr"])


Makes = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Makes] = {
    "Muon": lambda ps: torch.optim.Muon([p for p in ps if p.dim() == 2], lr=0.01),
    "Lamb": Lamb,
    "LocalNorms": LocalNorms,
    "Preconditioned": Preconditioned,
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.01),
    "Rprop": lambda ps: torch.optim.Rprop(ps, lr=0.01),
    "Adamax": lambda ps: torch.optim.Adamax(ps, lr=0.01),
}
RIGHT = {"Muon", "Lamb", "Adamax"}


def updates_rightly(made: Callable[[], PartitionedStep], right: set[str], rank: int) -> None:
    """An optimizer updates shares as whole tensors, or its first step is refused by name."""
    with pytest.MonkeyPatch.context() as patched:
        # Muon rounds on its way, so that other orders of sums show in the second digit: here it does not.
        patched.setattr(Tensor, "bfloat16", lambda own: own)
        _updates_rightly(made(), right)


def _updates_rightly(step: PartitionedStep, right: set[str]) -> None:
    start = {name: value.clone() for name, value in step.state_dict().items()}
    (ids, targets), *_ = batches(torch.float64)
    for name, make in OPTIMIZERS.items():
        step.load_state_dict(start)
        model = tied(torch.float64)
        own, plain = (make([p for p in of.parameters() if p.requires_grad]) for of in (step, model))
        refused = ""
        for _ in range(3):
            step(ids, targets).backward()
            rows_loss(model(ids), targets).backward()
            try:
                own.step()
            except InputError as error:
                refused = str(error)
                break
            plain.step()
            step.module.zero_grad()
            model.zero_grad()
        step.module.zero_grad()
        assert (name in right) == (not refused), (name, refused)
        if refused:
            assert "Use" in refused or "Take" in refused
            continue
        for key, value in step.state_dict().items():
            wanted = model.state_dict()[key]
            update = (wanted - start[key]).norm()
            assert (value - wanted).norm() <= 1e-9 * update + 1e-12, (name, key)


def with_modules(dtype: torch.dtype, of: tuple[int, ...], roles: Roles) -> Callable[[], ModuleStep]:
    return partial(modules_tied, dtype, of, roles)


def with_graph(dtype: torch.dtype, of: Sizes) -> Callable[[], PartitionedStep]:
    return partial(split_tied, dtype, of, 0)
