"""Layers whose calls are captured: here by a stand-in that runs a function again into the buffers of its first run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from loadmaster.executor.graph.compiled import captured as captured_module
from loadmaster.executor.graph.compiled import module as compiled_module
from loadmaster.executor.graph.compiled.captured import WARM_CALLS, CudaGraphs, GraphLaunches
from loadmaster.executor.graph.compiled.compiling import compile as compile_layer
from loadmaster.executor.graph.compiled.module import CompiledLayer
from loadmaster.executor.graph.structure.graph import Graph

GRAPH = Graph([0, 1, 2, 3, 0], [1, 2, 0, 0, 2], node_count=5, relation=[0, 0, 1, 1, 1], relations=2)


class RunAgain:
    """Does what graphs do: a replay writes where the first run's results lie."""

    replays = 0

    def __init__(self, device: torch.device) -> None:
        pass

    def is_under_way(self) -> bool:
        return False

    def wait(self) -> None:
        pass

    def warm_up(self, function: Callable[[], object]) -> None:
        with torch.no_grad():
            function()

    def capture(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        with torch.no_grad():
            made = pytree.tree_map_only(Tensor, torch.clone, function())

        def replay() -> None:
            RunAgain.replays += 1
            with torch.no_grad():
                for buffer, x in zip(pytree.tree_leaves(made), pytree.tree_leaves(function()), strict=True):
                    if buffer is not None:
                        buffer.copy_(x)

        return made, replay


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> tuple[CompiledLayer, CompiledLayer]:
    """One whose calls are captured, and one with the same weights whose calls are not."""
    captured, plain = (compile_layer("rgat", GRAPH, width=4, out=4).double() for _ in range(2))
    plain.load_state_dict(captured.state_dict())
    run_of = CompiledLayer._run

    def run(self: CompiledLayer, *args: Any) -> Any:
        found = run_of(self, *args)
        if self is captured and not isinstance(found, GraphLaunches):
            runs = next(runs for runs in self._runs.values() if found in runs.values())
            key = next(key for key, value in runs.items() if value is found)
            found = runs[key] = GraphLaunches(*found.args)
        return found

    monkeypatch.setattr(compiled_module.CompiledLayer, "_run", run)
    monkeypatch.setattr(captured_module, "CudaGraphs", RunAgain)
    RunAgain.replays = 0
    return captured, plain


def drawn(seed: int) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def gradients(module: CompiledLayer, h: Tensor, out: Tensor, **more: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.square().sum(), [h, *module.parameters()], **more)


def expect_equal(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_replays_give_what_kernels_give_and_keep_what_the_caller_holds(layers: Any) -> None:
    captured, plain = layers
    held, expected = [], []
    for step in range(WARM_CALLS + 4):
        h = drawn(step)
        for module, found in ((captured, held), (plain, expected)):
            out = module(h)
            found += [out.detach(), *gradients(module, h, out)]
        with torch.no_grad():
            for a, b in zip(captured.parameters(), plain.parameters(), strict=True):
                a.mul_(0.9)
                b.mul_(0.9)
    assert RunAgain.replays == 2 * 4
    expect_equal(tuple(held), tuple(expected))


def warmed(module: CompiledLayer) -> None:
    for step in range(WARM_CALLS + 1):
        h = drawn(step)
        gradients(module, h, module(h))
    assert RunAgain.replays == 2


def test_two_calls_before_their_backward_passes_do_not_mix(layers: Any) -> None:
    captured, plain = layers
    warmed(captured)
    a, b = drawn(8), drawn(9)
    first, second = captured(a), captured(b)
    expect_equal(gradients(captured, b, second), gradients(plain, b, plain(b)))
    expect_equal(gradients(captured, a, first), gradients(plain, a, plain(a)))


def test_a_backward_pass_that_may_run_again_holds_its_turn(layers: Any) -> None:
    captured, _ = layers
    warmed(captured)
    h = drawn(8)
    out = captured(h)
    first = gradients(captured, h, out, retain_graph=True)
    before = RunAgain.replays
    other = drawn(9)
    captured(other)
    assert RunAgain.replays == before
    expect_equal(gradients(captured, h, out), first)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(captured, h, out)
    captured(other)
    assert RunAgain.replays == before + 2


def test_an_output_without_a_backward_pass_gives_its_turn_back_when_it_goes(layers: Any) -> None:
    captured, _ = layers
    warmed(captured)
    out = captured(drawn(8))
    del out
    before = RunAgain.replays
    captured(drawn(9))
    assert RunAgain.replays == before + 1


def test_a_call_without_gradients_between_both_passes_changes_nothing(layers: Any) -> None:
    captured, plain = layers
    warmed(captured)
    h = drawn(8)
    out = captured(h)
    with torch.no_grad():
        for step in range(WARM_CALLS + 2):
            expect_equal((captured(drawn(step)),), (plain(drawn(step)),))
    expect_equal(gradients(captured, h, out), gradients(plain, h, plain(h)))


def test_parameters_that_move_are_captured_anew_and_a_changed_one_is_noticed(layers: Any) -> None:
    captured, plain = layers
    warmed(captured)
    for module in (captured, plain):
        module.W.data = module.W.data * 2
    h = drawn(8)
    expect_equal((captured(h).detach(),), (plain(h).detach(),))
    out = captured(h)
    with torch.no_grad():
        captured.W.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(captured, h, out)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_cuda_graphs_give_what_kernels_give(name: str) -> None:
    captured, plain = (
        compile_layer(name, GRAPH, width=16, out=16, launch=launch).cuda() for launch in ("graph", "eager")
    )
    plain.load_state_dict(captured.state_dict())
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (captured, plain)]
    for step in range(8):
        h = torch.randn(5, 16, generator=torch.Generator().manual_seed(step)).cuda().requires_grad_()
        outs, slopes = [], []
        for module, optimizer in zip((captured, plain), optimizers, strict=True):
            optimizer.zero_grad()
            outs.append(module(h))
            (slope,) = torch.autograd.grad(outs[-1].square().sum(), h, retain_graph=True)
            slopes.append(slope)
            outs[-1].square().sum().backward(inputs=list(module.parameters()))
            optimizer.step()
        torch.testing.assert_close(outs[0], outs[1])
        torch.testing.assert_close(slopes[0], slopes[1])
        for a, b in zip(captured.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a, b)
    (runs,) = captured._runs.values()
    launches = next(iter(runs.values()))
    assert isinstance(launches, GraphLaunches) and isinstance(launches._graphs, CudaGraphs)


def test_what_was_captured_in_inference_mode_serves_calls_outside_of_it(layers: Any) -> None:
    captured, plain = layers
    with torch.inference_mode():
        for step in range(WARM_CALLS + 1):
            captured(drawn(step))
    h = drawn(9)
    with torch.no_grad():
        torch.testing.assert_close(captured(h), plain(h), rtol=1e-12, atol=1e-12)
    assert RunAgain.replays == 2
