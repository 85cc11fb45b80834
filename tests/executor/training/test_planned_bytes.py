"""A planned step takes the device memory that its plan says, byte by byte as operators make tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.training import rates as rates_module
from loadmaster.executor.training.step import TrainingStep
from loadmaster.executor.training.trial import measured_problem
from loadmaster.models.training.checker import check
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.residency import residency
from loadmaster.models.training.ways import TRAINED, Way
from tests.executor.training.counting_meter import CountingMeter
from tests.executor.training.planned_nets import STREAMED_UPDATED_HERE, Net, schedule_of
from tests.executor.training.side_by_side import small_layers_of

BATCH = torch.arange(24).view(4, 6)
# Width and words: most bytes are those of the embedding, of the blocks, or of both.
SIZES = {"many words": (16, 4000), "wide": (64, 40), "both": (64, 1000)}
# State of norms and biases of at most 16 elements, and counts of steps: they stay where the update runs.
SMALL_BYTES = 1400


class Counted(NamedTuple):
    """Most bytes in each phase, and while moves and updates are launched before each, and after the last."""

    phases: list[int]
    between: list[int]


class Case:
    """A model with the head's weights of its own or the embedding's, and its optimizer, which has begun."""

    def __init__(self, size: str, *, tied: bool) -> None:
        torch.manual_seed(0)
        width, words = SIZES[size]
        self.model = Net(width, 3, words)
        if not tied:
            self.model.head.weight = nn.Parameter(torch.randn(words, width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.layers = small_layers_of(self.model, self.optimizer)

    def problem(self, autocast: torch.dtype | None) -> TrainingProblem:
        """Measure the problem, and remember what is known of the layers then."""
        state = [v for of in self.optimizer.state.values() for v in of.values()]
        meter = CountingMeter([BATCH, *self.model.parameters(), *state])
        with meter:
            found, self.layers = measured_problem(
                "net",
                self.model,
                Batch((BATCH,)),
                None,
                self.layers,
                self.optimizer,
                meter,
                autocast=autocast,
                accumulate=1,
                clips=False,
                compiled=False,
                say=lambda _: None,
            )
        return found

    def counted(self, problem: TrainingProblem, schedule: Schedule, autocast: torch.dtype | None) -> Counted:
        """Run steps under a schedule, and count the most bytes that are on the device in each phase of the last."""
        device = torch.device("cpu")
        step = TrainingStep(
            self.model, None, self.layers, problem, schedule, self.optimizer, device, copy_dtype=autocast
        )
        for _ in range(2):
            self._run(step, autocast)
        meter = CountingMeter([BATCH, *_held(step)])
        marks: list[int] = []
        step._on_position = lambda position, launched: marks.append(meter.mark().most_bytes)
        with meter:
            self._run(step, autocast)
        step.release()
        return Counted(marks[2::2], [*marks[1::2], meter.mark().most_bytes])

    def _run(self, step: TrainingStep, autocast: torch.dtype | None) -> None:
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            loss = step(BATCH)
        loss.backward()
        del loss
        self.optimizer.step()
        self.optimizer.zero_grad()


def _held(step: TrainingStep) -> list[Tensor]:
    """What is on the device between two steps."""
    actions, found = step._actions, []
    for weights, update in zip(actions.weights, actions._updates, strict=True):
        found += [getattr(weights, "_memory", None)] if hasattr(weights, "host") else list(weights.masters)
        # Of updates on the device: state, gradients for the next step, and what has come for an update or goes back.
        kept = vars(update)
        found += [kept.get(name) for name in ("_state", "_masters", "_copy")]
        found += kept.get("_sent", [])
        if "_is_streamed" in kept:
            found += [value for state in update.optimizer.states for value in state.values()]
            found += [] if update._taken is None else update._taken[0]
    return [t.detach() for t in found if t is not None]


def with_points(problem: TrainingProblem, schedule: Schedule, number: int) -> Schedule:
    """Return the schedule with all blocks at one of their points (of even numbers), or each at the next one."""
    last = len(problem.layers) - 1
    points = ((number // 2 + number % 2 * n) % len(problem.points(n)) if 0 < n < last else 0 for n in range(last + 1))
    return replace(schedule, points=tuple(points))


def _beyond(counted: list[int], planned: list[int]) -> int:
    return max(c - p for c, p in zip(counted, planned, strict=True))


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["plain", "autocast"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("size", list(SIZES))
def test_a_step_takes_the_bytes_that_its_plan_says(
    monkeypatch: pytest.MonkeyPatch, size: str, tied: bool, autocast: torch.dtype | None
) -> None:
    monkeypatch.setattr(rates_module, "SAMPLE_ELEMENTS", 1 << 14)
    problem = Case(size, tied=tied).problem(autocast)
    mixed: tuple[tuple[Way, ...], ...] = (TRAINED, TRAINED[::-1])
    for number, ways in enumerate([*((way,) for way in TRAINED), *mixed]):
        case = Case(size, tied=tied)
        case.layers = case.layers.with_uses(
            {of.parameters[0]: group.layers for of, group in zip(case.layers.groups, problem.groups, strict=True)}
        )
        schedule = with_points(problem, schedule_of(problem, *ways), number)
        assert check(problem, schedule, 1 << 40).ok
        planned = [int(size) for size in residency(problem, schedule).phase_bytes]
        counted = case.counted(problem, schedule, autocast)
        assert _beyond(counted.phases, planned) <= SMALL_BYTES, ways
        either = [max(pair) for pair in zip([planned[-1], *planned], [*planned, planned[0]], strict=True)]
        assert _beyond(counted.between, either) <= SMALL_BYTES, ways
        # A copy that an update on the device makes counts as long as what has come for the update.
        is_close = autocast is None and STREAMED_UPDATED_HERE not in ways
        assert not is_close or max(planned) <= 1.06 * max(counted.phases), ways
