"""Plain PyTorch and a planned step of one model, side by side: the oracle of tests of planned steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from loadmaster.executor.training import layers as layers_module
from loadmaster.executor.training.layers import ModelLayers, layers_of
from loadmaster.executor.training.step import TrainingStep
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.checker import check
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.ways import TRAINED, Way
from tests.executor.training.planned_nets import Net, problem_of, schedule_of, with_loss_in_chunks

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
STEPS = 4
# All ways in one model, and each by itself.
WAYS = [TRAINED, *(pytest.param((way,), marks=pytest.mark.slow) for way in TRAINED)]
EACH_WAY = pytest.mark.parametrize("ways", WAYS, ids=lambda ways: ways[0].name if len(ways) == 1 else "mixed")


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW as most recipes have it: no weight decay for norms and biases."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-2)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def small_layers_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, blocks: Sequence[nn.Module] | None = None
) -> ModelLayers:
    """Find the layers of a small model, as if its weights were worth a move; norms and biases are not."""
    with mock.patch.object(layers_module, "SMALL_ELEMENTS", 64):
        return layers_of(model, optimizer, blocks)


class Both:
    """Plain PyTorch and a planned step of the same model, side by side."""

    def __init__(
        self,
        *ways: Way,
        make: MakeOptimizer = adamw,
        accumulate: int = 1,
        max_norm: float | None = None,
        max_value: float | None = None,
        autocast: torch.dtype | None = None,
        device: str = "cpu",
        width: int = 16,
        frozen: bool = False,
        compiled: bool = False,
        loss_in_chunks: bool = False,
        disk: Path | None = None,
        disk_buffers: int = 2,
    ) -> None:
        torch.manual_seed(0)
        self.loss_in_chunks = loss_in_chunks
        self.disk, self.disk_buffers = disk, disk_buffers
        self.accumulate, self.max_norm, self.max_value, self.autocast = accumulate, max_norm, max_value, autocast
        self.device = torch.device(device)
        self.plain = Net(width).to(device)
        if frozen:
            self.plain.blocks[0].requires_grad_(requires_grad=False)
        self.model = copy.deepcopy(self.plain)
        self.plain_optimizer, self.optimizer = make(self.plain), make(self.model)
        self.compiled = compiled
        self.planned = self.plan(*ways)
        self.batches = [torch.randint(0, 40, (4, 8), device=device) for _ in range(STEPS * accumulate)]
        self.seed = 0

    def plan(self, *ways: Way) -> TrainingStep:
        """Plan the model's step."""
        problem = self.problem()
        schedule = schedule_of(problem, *ways, disk_buffers=self.disk_buffers)
        if self.loss_in_chunks:
            problem, schedule = with_loss_in_chunks(problem, schedule)
        verdict = check(problem, schedule, 1 << 40)
        assert verdict.ok, verdict.violations
        return self.under(problem, schedule)

    def problem(self) -> TrainingProblem:
        """The problem of the model's step."""
        layers = small_layers_of(self.model, self.optimizer)
        problem = problem_of(layers, micro_batches=self.accumulate, clips=self.max_norm is not None)
        return problem if self.disk is None else replace(problem, disk=Tier("disk", 5.0, 5.0))

    def under(self, problem: TrainingProblem, schedule: Schedule) -> TrainingStep:
        """Make the model's step under a schedule."""
        return TrainingStep(
            self.model,
            None,
            small_layers_of(self.model, self.optimizer),
            problem,
            schedule,
            self.optimizer,
            self.device,
            copy_dtype=self.autocast,
            max_norm=self.max_norm,
            max_value=self.max_value,
            compiled=self.compiled,
            disk=self.disk,
        )

    @contextmanager
    def cast(self) -> Iterator[None]:
        """The user's autocast."""
        dtype = self.autocast or torch.bfloat16
        with torch.autocast(self.device.type, dtype, enabled=self.autocast is not None):
            yield

    def step(self) -> tuple[list[float], list[float]]:
        """One step of both on the same batches and random numbers; returns their losses."""
        self.seed += 1
        plain = self._losses(self.plain)
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.plain.parameters(), self.max_norm)
        if self.max_value is not None:
            nn.utils.clip_grad_value_(self.plain.parameters(), self.max_value)
        self.plain_optimizer.step()
        self.plain_optimizer.zero_grad()
        planned = self._losses(self.planned)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return plain, planned

    def _losses(self, step: Callable[[Tensor], Tensor]) -> list[float]:
        torch.manual_seed(self.seed)
        losses = []
        for batch in self.batches[: self.accumulate]:
            with self.cast():
                loss = step(batch) / self.accumulate
            loss.backward()
            losses.append(float(loss.detach()))
        return losses

    def expect_equal(self) -> None:
        """Hold weights and optimizer state, as users save them, against plain PyTorch's."""
        found = self.model.state_dict()
        for name, value in self.plain.state_dict().items():
            torch.testing.assert_close(found[name].to(value.device), value, rtol=1e-5, atol=1e-6)
        states = self.optimizer.state_dict()["state"]
        expected = self.plain_optimizer.state_dict()["state"]
        assert states.keys() == expected.keys()
        for number, state in expected.items():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    torch.testing.assert_close(states[number][name].to(value), value, rtol=1e-4, atol=1e-6)


def trained_equally(both: Both) -> None:
    """Train both, and hold all against each other."""
    for _ in range(STEPS):
        plain, planned = both.step()
        torch.testing.assert_close(planned, plain, rtol=1e-5, atol=1e-6)
    both.expect_equal()
