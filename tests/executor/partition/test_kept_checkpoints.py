"""What the user checkpoints is computed again in the backward pass of a traced step, and gives the same results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from loadmaster.executor.partition.capture import capture
from loadmaster.executor.partition.checkpoints import with_checkpoints
from loadmaster.executor.partition.rewrites import rewritten
from loadmaster.executor.steps.batch import batch_of
from loadmaster.executor.steps.step_graph import StepGraph
from loadmaster.executor.steps.tracing import trace
from loadmaster.models.partition.sides import lives
from tests.models.partition.instances import axes

aten = torch.ops.aten


def keeps_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    products = (aten.mm.default, aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


class Blocks(nn.Module):
    """Two blocks with a batch norm and a dropout.

    Args:
        around: calls a block.
    """

    def __init__(self, around: Callable[..., Tensor]) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 16) for _ in range(2))
        self.norm = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(16, 8) for _ in range(2))
        self.around = around

    def block(self, n: int, x: Tensor) -> Tensor:
        hidden = functional.dropout(functional.gelu(self.norm[n](self.up[n](x))), 0.5)
        return x + self.down[n](hidden)

    def forward(self, x: Tensor) -> Tensor:
        for n in range(2):
            x = self.around(partial(self.block, n), x)
        return x


def plainly(block: Callable[..., Tensor], x: Tensor) -> Tensor:
    return block(x)


def checkpointed(block: Callable[..., Tensor], x: Tensor) -> Tensor:
    found: Tensor = checkpoint(block, x, use_reentrant=False)
    return found


def selectively(block: Callable[..., Tensor], x: Tensor) -> Tensor:
    contexts = partial(create_selective_checkpoint_contexts, keeps_products)
    found: Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return found


BATCH = (torch.ones(6, 8), torch.ones(6, 8))


def traced(around: Callable[..., Tensor]) -> StepGraph:
    return trace(Blocks(around), batch_of(BATCH), functional.mse_loss, passes=rewritten)


def calls(graph: StepGraph) -> Counter[Any]:
    return Counter(node.target for node in graph.nodes if node.op == "call_function")


def results(graph: StepGraph) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    given = []
    for node in graph.module.graph.find_nodes(op="placeholder"):
        like = node.meta["val"]
        made = torch.rand(like.shape, generator=generator)
        given.append(made if like.is_floating_point() else made.to(like.dtype))
    torch.manual_seed(1)
    made = fx.Interpreter(graph.module).run(*given, enable_io_processing=False)
    return [one for one in made if one is not None]


@pytest.mark.slow
@pytest.mark.parametrize("around", [checkpointed, selectively])
def test_results_stay_the_same(around: Callable[..., Tensor]) -> None:
    before = traced(around)
    once, wanted = calls(before), results(before)
    after = with_checkpoints(before)
    again = calls(after)
    for found, one in zip(results(after), wanted, strict=True):
        torch.testing.assert_close(found, one, rtol=0, atol=0)
    assert once[aten.gelu.default] == 2 and again[aten.gelu.default] == 4
    assert again[aten.native_dropout.default] == 2, "no mask is drawn again"
    products = again[aten.mm.default] - once[aten.mm.default]
    # The last product of a block is added to what it is given: nothing of the backward pass reads it.
    assert products == (2 if around is checkpointed else 0)


@pytest.mark.slow
def test_a_captured_problem_counts_time_and_memory() -> None:
    """Between the passes nothing of a block is held but what it is given, and a mask."""
    problems = {
        around: capture(Blocks(around), BATCH, functional.mse_loss, axes=axes(2), hardware="h200")
        for around in (plainly, checkpointed)
    }
    held = {}
    for around, problem in problems.items():
        loss = next(
            n for n, operator in enumerate(problem.operators) if operator.op.startswith("aten.mse_loss_backward")
        )
        held[around] = sum(
            tensor.size_bytes
            for n, (tensor, (first, last)) in enumerate(zip(problem.tensors, lives(problem), strict=True))
            if tensor.role == "activation" and n not in problem.copied and first < loss < last
        )
        counted = [operator.op for operator in problem.operators]
        assert counted.count("aten.gelu") == (4 if around is checkpointed else 2)
    # Of each block plainly: the normalized rows, what goes into GELU, its result and the dropped one, of 16 floats.
    assert held[checkpointed] < held[plainly] / 2
