"""Losses of interpolated scores: what a compiler computes where it is read, and what it writes to memory anyway."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from loadmaster.executor import apply, capture, measure
from loadmaster.executor.memory.operators.fusion import written_anyway
from loadmaster.executor.memory.operators.grouping import group
from loadmaster.executor.steps.step_graph import StepGraph
from loadmaster.models.memory import plain
from tests.executor.memory.plain_gradients import expect_plain_gradients
from tests.executor.memory.schedules import plan, schedule
from tests.executor.memory.tracing import trace
from tests.executor.tape import Tape

aten = torch.ops.aten
CLASSES, SIZE = 100, 64
LARGE = 2 * CLASSES * SIZE * SIZE * 4  # bytes of the scores


class Segmenter(nn.Module):
    """Scores of a small image, made four times as large, as SegFormer, DeepLab and UPerNet do."""

    def __init__(self, mode: str = "bilinear") -> None:
        super().__init__()
        self.scores, self.mode = nn.Conv2d(8, CLASSES, 1), mode

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = F.interpolate(self.scores(x), size=target.shape[-2:], mode=self.mode, align_corners=False)
        return F.cross_entropy(scores, target, ignore_index=3)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 8, SIZE // 4, SIZE // 4), torch.randint(CLASSES, (2, SIZE, SIZE))


def large_results(fused: bool) -> list[str]:
    operators = group(trace(Segmenter(), batch()), fused=fused)
    sizes = [(r.name, operators.step_graph.bytes_of(r)) for f in operators.forward for r in f.results]
    return [name for name, size in sizes if size == LARGE]


def test_a_compiler_writes_the_scores_once_and_computes_their_softmax_where_it_is_read() -> None:
    assert len(large_results(fused=True)) == 1
    assert "_log_softmax" in large_results(fused=False)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("keeps", [True, False], ids=["all kept", "all computed again"])
def test_gradients_are_those_of_plain_pytorch(mode: str, keeps: bool) -> None:
    torch.manual_seed(0)
    expect_plain_gradients(Segmenter(mode), batch(), keep=lambda i: keeps)


@pytest.mark.slow
def test_the_compiled_step_takes_what_is_planned() -> None:
    model, given = Segmenter(), batch()
    problem = capture(model, given, hardware="cpu", backend="inductor")
    step = apply(plan(problem, schedule(problem, lambda i: True)), model, backend="inductor")
    twin = Segmenter()
    twin.load_state_dict(model.state_dict())

    def run() -> None:
        model.zero_grad()
        step(*given).backward()

    measured = measure(run, resident=[*model.parameters(), *given], warmup=2, repeats=0).peak_bytes
    planned = plain.peak_bytes(problem)
    assert planned < 1.5 * LARGE
    assert measured <= 1.05 * planned
    twin(*given).backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def chain(tape: Tape, x: fx.Node, length: int) -> fx.Node:
    for _ in range(length):
        x = tape.call(aten.sin.default, x)
    return x


@pytest.mark.parametrize(
    ("length", "reads", "written"),
    [(4, 2, False), (11, 2, True), (11, 1, False)],
    ids=["short", "long", "read once"],
)
def test_what_is_long_and_read_twice_is_written(length: int, reads: int, written: bool) -> None:
    tape = Tape()
    x = chain(tape, tape.input(4, 8), length)
    ends = tuple(tape.call(aten.cos.default, x) for _ in range(reads))
    tape.graph.output(ends)
    step_graph = StepGraph(fx.GraphModule(nn.Module(), tape.graph), ends, ())
    assert written_anyway(step_graph, ()) == ({x} if written else set())


def test_a_softmax_reads_twice() -> None:
    tape = Tape()
    x = chain(tape, tape.input(4, 8), 11)
    end = tape.call(aten._softmax.default, x, -1, False)
    tape.graph.output((end,))
    step_graph = StepGraph(fx.GraphModule(nn.Module(), tape.graph), (end,), ())
    assert written_anyway(step_graph, ()) == {x}


def test_what_is_in_memory_is_read_from_there() -> None:
    tape = Tape()
    half = chain(tape, tape.input(4, 8), 6)
    x = chain(tape, half, 6)
    ends = tuple(tape.call(aten.cos.default, x) for _ in range(2))
    tape.graph.output(ends)
    step_graph = StepGraph(fx.GraphModule(nn.Module(), tape.graph), ends, ())
    assert written_anyway(step_graph, ()) == {x}
    assert written_anyway(step_graph, {half}) == set()
