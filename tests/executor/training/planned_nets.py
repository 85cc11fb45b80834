"""A small language model, its training problem, and schedules in every way, for tests of the executor."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from loadmaster.executor.training.layers import ModelLayers
from loadmaster.executor.training.points import BLOCK_POINTS, CHECKPOINT, KEEP
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay
from loadmaster.models.training.problem import Group, Layer, LayerClass, Point, TrainingProblem
from loadmaster.models.training.ways import TRAINED, Way

# Every other one is checkpointed by hand.
POINTS_OF_BLOCKS = (KEEP, CHECKPOINT, *(name for name in BLOCK_POINTS if name not in (KEEP, CHECKPOINT)))
RESIDENT, STATE_AWAY, HOST_UPDATED, STREAMED, BOTH_AWAY, STREAMED_UPDATED_HERE = TRAINED


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """Embedding, blocks, and a head that shares the embedding's weights. Returns the loss."""

    def __init__(self, width: int = 16, blocks: int = 3, words: int = 40) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


def problem_of(layers: ModelLayers, *, micro_batches: int = 1, clips: bool = False) -> TrainingProblem:
    """A training problem of a model's layers and groups, with made-up times and activations."""
    points = tuple(Point(name, 10.0, 20.0, 1000) for name in POINTS_OF_BLOCKS)
    groups = []
    for of in layers.groups:
        size = of.weight_bytes
        trained = (size, size, 2 * size, 1.0, 5.0) if of.updated_by is not None else ()
        groups.append(Group(of.name, of.layers, size, size, *trained))
    return TrainingProblem(
        name="net",
        layers=tuple(Layer(name, 0) for name in layers.names),
        classes=(LayerClass("layer", points),),
        groups=tuple(groups),
        host=Tier("host", 50.0, 50.0),
        micro_batches=micro_batches,
        clip_grad_norm=clips,
    )


def plan_of(problem: TrainingProblem, number: int, way: Way) -> GroupPlan:
    """A plan of a group in a way. Groups of other numbers move a little earlier or later."""
    phases, group = Phases(problem), problem.groups[number]
    count, last, next_use = len(phases), phases.last_gradient(group), phases.next_use(group)
    stays = tuple(Stay(use, use + 1) for use in phases.uses[number]) if way.weights == "streamed" else ()
    if not group.is_trained:
        return GroupPlan(way.weights, update="none", stays=stays)
    if way.update == "host":
        gone_at = min(last + 2, phases.first_gradient(group) + count)
        load_at = min(last + 3, next_use) if way.weights == "copy" else None
        return GroupPlan(way.weights, way.state, "host", None, stays, None, gone_at, load_at)
    after = min(phases.update_from(group) + number % 3, next_use - 1)
    stay = Stay(after - 1, after + 2) if way.has_stay else None
    return GroupPlan(way.weights, way.state, "device", after, stays, stay)


def schedule_of(problem: TrainingProblem, *ways: Way, checkpointed: int = 2, disk_buffers: int = 2) -> Schedule:
    """A schedule whose groups take turns in these ways; every ``checkpointed``-th layer is checkpointed, and states in
    files have so many buffers at most."""
    points = tuple(int(n % checkpointed == 1) for n in range(len(problem.layers)))
    plans = tuple(plan_of(problem, g, ways[g % len(ways)]) for g in range(len(problem.groups)))
    return Schedule(points, plans, min(sum(plan.state == "disk" for plan in plans), disk_buffers))


def with_loss_in_chunks(problem: TrainingProblem, schedule: Schedule) -> tuple[TrainingProblem, Schedule]:
    """The same, with the loss in chunks."""
    *layers, last = problem.layers
    points = tuple(Point(name, 10.0, 20.0, 1000) for name in ("keep", "chunked loss"))
    classes = (*problem.classes, LayerClass("head", points))
    problem = replace(problem, layers=(*layers, replace(last, layer_class=len(classes) - 1)), classes=classes)
    return problem, replace(schedule, points=(*schedule.points[:-1], 1))
