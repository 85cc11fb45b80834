"""Blocks give plain PyTorch's gradients at every point, keep what the point says, and compute the rest again."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.operators import TorchDispatchMode
from loadmaster.executor.training import layers as layers_module
from loadmaster.executor.training.layers import layers_of
from loadmaster.executor.training.points import BLOCK_POINTS, BlockPoints
from loadmaster.executor.training.step import TrainingStep
from loadmaster.models.training.problem import LayerClass, Point, TrainingProblem
from loadmaster.models.training.ways import Way
from tests.executor.training.planned_nets import HOST_UPDATED, RESIDENT, STREAMED, Net, problem_of, schedule_of

WIDTH = 16


@pytest.fixture(autouse=True)
def everything_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a small model are worth a move here."""
    monkeypatch.setattr(layers_module, "SMALL_ELEMENTS", 64)


class Attending(nn.Module):
    """A transformer's block, with dropout after its attention and within it."""

    def __init__(self, after: float = 0.2, within: float = 0.0) -> None:
        super().__init__()
        self.after, self.within = after, within
        self.norm, self.into, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(self.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(*parts, dropout_p=self.within, is_causal=True)
        x = x + F.dropout(self.out(read.transpose(1, 2).flatten(-2)), self.after)
        return x + self.down(F.dropout(F.gelu(self.up(x)), self.after))


class Convolving(nn.Module):
    """A convolutional network's block, with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm, self.last = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        return (x + self.last(self.other(F.relu(self.norm(self.one(x)), inplace=True)))).relu().transpose(1, 2)


class Overwriting(nn.Module):
    """A block that overwrites a product's result."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.other(self.one(x).add_(1.0).tanh())


class Breaking(Attending):
    """A block that does not compile as one graph."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.up(self.norm(x)).tanh())
        torch._dynamo.graph_break()
        return super().forward(x)


class Model(nn.Module):
    """Three blocks."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()


class Planned:
    """A model's planned step beside plain PyTorch, on the same batches and random numbers."""

    def __init__(self, model: nn.Module, batch: Tensor, way: Way, dtype: torch.dtype | None = None) -> None:
        self.plain, self.model, self.batch, self.dtype = copy.deepcopy(model), model, batch, dtype
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (self.plain, model)]
        layers = layers_of(model, self.optimizers[1])
        problem = with_points(problem_of(layers))
        schedule = schedule_of(problem, way)
        self.step = TrainingStep(
            model, None, layers, problem, schedule, self.optimizers[1], torch.device("cpu"), copy_dtype=dtype
        )

    def train(self, inner: tuple[int, ...]) -> None:
        """One step of both with the blocks at these points, and all held against each other."""
        self.step.schedule = replace(self.step.schedule, points=(0, *inner, 0))
        losses = []
        for call, optimizer in zip((self.plain, self.step), self.optimizers, strict=True):
            torch.manual_seed(sum(inner))
            with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
                loss = call(self.batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        assert torch.equal(*losses), inner
        found = self.model.state_dict()
        for name, value in self.plain.state_dict().items():
            assert torch.equal(found[name], value), (inner, name)


def with_points(problem: TrainingProblem) -> TrainingProblem:
    """The problem, with all points."""
    points = tuple(Point(name, 10.0, 20.0, 1000) for name in BLOCK_POINTS)
    return replace(problem, classes=(LayerClass("layer", points),))


@contextmanager
def operators(results: list[tuple[str, StorageWeakRef]] | None = None) -> Iterator[Counter[str]]:
    """Count what runs, and note the memory of each first result."""
    found: Counter[str] = Counter()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.name().partition(".")[0].removeprefix("aten::")
            found[name] += 1
            result = func(*args, **(kwargs or {}))
            if results is not None:
                first = result[0] if isinstance(result, tuple | list) else result
                results.append((name, StorageWeakRef(first.untyped_storage())))
            return result

    with Counting():
        yield found


@pytest.mark.parametrize("way", [RESIDENT, STREAMED, HOST_UPDATED], ids=lambda way: way.name)
def test_every_mask_of_points_trains_as_plain_pytorch(way: Way) -> None:
    torch.manual_seed(0)
    planned = Planned(Net(), torch.randint(40, (2, 6)), way)
    for inner in product(range(len(BLOCK_POINTS)), repeat=3):
        planned.train(inner)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
@pytest.mark.parametrize(
    "make", [Attending, partial(Attending, 0.2, 0.3), Convolving], ids=["drops", "within", "norms"]
)
@pytest.mark.parametrize("way", [RESIDENT, STREAMED], ids=lambda way: way.name)
def test_random_numbers_statistics_and_streamed_weights(
    way: Way, make: Callable[[], nn.Module], dtype: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    planned = Planned(Model(make), torch.randn(2, 6, WIDTH), way, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        for inner in [(1, 1, 1), (2, 2, 2), (1, 2, 3), (0, 1, 2), (3, 0, 1), (2, 3, 0)]:
            planned.train(inner)


# Products of a block: into, out, up and down. Its last one is not asked for.
@pytest.mark.parametrize(
    ("point", "products", "attention"), [("keep", 0, 0), ("products", 0, 0), ("attention", 3, 0), ("checkpoint", 3, 1)]
)
def test_what_is_kept_does_not_run_again(point: str, products: int, attention: int) -> None:
    points, x = BlockPoints(Attending(), compiled=False), torch.randn(2, 6, WIDTH, requires_grad=True)
    for first in (True, False):
        result = points.run(point, x)
        with operators() as ran:
            result.sum().backward()
        if not first:  # it tells what is asked for
            assert ran["addmm"] == products
            assert ran["_scaled_dot_product_flash_attention_for_cpu"] == attention


@pytest.mark.parametrize(
    ("point", "products", "attention"), [("products", 3, 1), ("attention", 0, 1), ("checkpoint", 0, 0)]
)
def test_only_what_the_point_says_stays_in_memory(point: str, products: int, attention: int) -> None:
    points, x = BlockPoints(Attending(), compiled=False), torch.randn(2, 6, WIDTH, requires_grad=True)
    for first in (True, False):  # before a backward pass, nothing is known to be asked for
        results: list[tuple[str, StorageWeakRef]] = []
        with operators(results):
            result = points.run(point, x)
        there = Counter(name for name, storage in results if not storage.expired())
        assert there["addmm"] == (0 if first else products)
        assert there["_scaled_dot_product_flash_attention_for_cpu"] == (0 if first else attention)
        result.sum().backward()


@pytest.fixture
def by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile to what AOTAutograd makes, operator by operator."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))


@pytest.mark.slow
@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("make", [partial(Attending, 0.0), Convolving, Overwriting, partial(Breaking, 0.0)])
def test_compiled_blocks_have_plain_gradients_at_every_point(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    plain = make().double()
    block = copy.deepcopy(plain)
    points, x = BlockPoints(block, compiled=True), torch.randn(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    for point in BLOCK_POINTS:
        for of, call in ((plain, plain), (block, partial(points.run, point))):
            for p in (x, *of.parameters()):
                p.grad = None
            torch.manual_seed(1)
            call(x).square().sum().backward()
        for (name, p), q in zip(plain.named_parameters(), block.parameters(), strict=True):
            torch.testing.assert_close(
                q.grad, p.grad, msg=lambda said, name=name, point=point: f"{point} {name}: {said}"
            )
        for (name, b), c in zip(plain.named_buffers(), block.buffers(), strict=True):
            torch.testing.assert_close(c, b, msg=lambda said, name=name, point=point: f"{point} {name}: {said}")


def expect_one_mask(point: str) -> None:
    """Dropout between products with the unit matrix: y is x under the mask, and gradients tell which mask they had.
    Batches of other sizes make the compiler's shapes dynamic."""
    block = nn.Sequential(*map(nn.Linear, (8, 8), (8, 8)))
    block.insert(1, nn.Dropout(0.5))
    for n in (0, 2):
        nn.init.eye_(block[n].weight)
        nn.init.zeros_(block[n].bias)
    points = BlockPoints(block, compiled=True)
    for rows in (4, 4, 5, 6):
        x, block[2].weight.grad = torch.randn(rows, 8, requires_grad=True), None
        y = points.run(point, x)
        y.sum().backward()
        assert 0 < int((y == 0).sum()) < y.numel()
        assert x.grad is not None
        torch.testing.assert_close(x.grad * x, y)
        torch.testing.assert_close(block[2].weight.grad, y.sum(0).expand(8, 8))


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("point", BLOCK_POINTS)
def test_a_compiled_block_has_one_mask_in_both_passes(point: str) -> None:
    expect_one_mask(point)


@pytest.mark.slow
@pytest.mark.parametrize("point", BLOCK_POINTS)
def test_a_block_under_inductor_has_one_mask_in_both_passes(point: str) -> None:
    expect_one_mask(point)


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize(("point", "saved"), [("products", 6), ("attention", 3), ("checkpoint", 1)])
def test_what_a_compiled_block_saves(point: str, saved: int) -> None:
    """Its input; two results of attention; of the products into, out and up. Blocks of another type, which the compiler
    gives up, are no hindrance."""
    BlockPoints(Breaking(), compiled=True).run(point, torch.randn(2, 6, WIDTH, requires_grad=True))
    block, x = Attending(0.0), torch.randn(2, 6, WIDTH, requires_grad=True)
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    found = set()

    def note(t: Tensor) -> Tensor:
        if t.numel():
            found.add(t.untyped_storage().data_ptr())
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = BlockPoints(block, compiled=True).run(point, x)
    del result
    assert len(found - weights) == saved, found


@pytest.mark.slow
@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("point", BLOCK_POINTS)
def test_blocks_with_weights_in_many_formats_stay_compiled(point: str) -> None:
    """A plan may have each part of a block in another format. PyTorch runs code eagerly that it compiles too often."""
    for low in product((torch.float32, torch.bfloat16), repeat=2):
        block, x = Attending(0.0), torch.randn(2, 6, WIDTH, requires_grad=True)
        for layer, dtype in zip((block.into, block.up), low, strict=True):
            layer.to(dtype)
        limits = {"recompile_limit": 2, "fail_on_recompile_limit_hit": True}
        with torch.autocast("cpu", torch.bfloat16), torch._dynamo.config.patch(**limits):
            BlockPoints(block, compiled=True).run(point, x).float().sum().backward()
        assert block.into.weight.grad is not None


def test_a_kept_result_that_is_overwritten_is_never_read() -> None:
    points, x = BlockPoints(Overwriting(), compiled=False), torch.randn(2, WIDTH, requires_grad=True)
    points.run("products", x).sum().backward()
    with pytest.raises(RuntimeError, match="has been mutated"):
        points.run("products", x).sum().backward()


def test_a_problem_of_other_points_is_refused() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layers = layers_of(model, optimizer)
    problem = replace(problem_of(layers), classes=(LayerClass("layer", (Point("redo up", 1.0, 2.0, 3),)),))
    with pytest.raises(InputError, match="redo up"):
        TrainingStep(model, None, layers, problem, schedule_of(problem, RESIDENT), optimizer, torch.device("cpu"))
