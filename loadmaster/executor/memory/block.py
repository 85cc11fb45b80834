"""Planning one block of a model at a time, for wrappers that act between the blocks (``fully_shard`` on each).

A block keeps some of its results from its forward to its backward pass, while all the other blocks run. So it has two
limits: what it keeps, and what it takes at most while it runs itself. With N equal blocks, none of which keeps more
than ``kept_bytes``, a step's peak is at most that of everything else, (N - 1) * ``kept_bytes``, and ``budget_bytes``.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx, nn

from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel
from loadmaster.executor.memory.capture import CaptureOptions, capture_step
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.run.backends import Backend
from loadmaster.executor.renamed import renamed_keywords
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.resident import own_bytes
from loadmaster.executor.steps.step_graph import StepGraph, tensors
from loadmaster.models.memory.problem import ForwardOperator, Implementation, MemoryProblem
from loadmaster.models.units import bytes_of


@renamed_keywords(offer="implementations", inputs="batch")
def capture_block(
    block: nn.Module,
    batch: AnyBatch,
    *,
    kept_bytes: int | str,
    budget_bytes: int | str,
    hardware: str | None = None,
    costs: CostModel | None = None,
    backend: Backend = "inductor",
    implementations: ImplementationFilter = EVERYTHING,
    name: str | None = None,
) -> MemoryProblem:
    """The memory problem of one block: plan it under its own budget, and apply the plan to every equal block.

    Args:
        block: a module that returns one tensor.
        batch: what the model gives it, a tuple or a mapping of inputs by keyword, with ``requires_grad`` as it is
            there.
        kept_bytes: most that the block may keep from its forward to its backward pass, inputs left out: bytes, or a
            size (``"600MiB"``).
        budget_bytes: most that it may take while it runs: its parameters, inputs and gradients with what it keeps.
        hardware, costs, backend, implementations, name: as for :func:`~loadmaster.executor.memory.capture.capture`.

    Raises:
        InputError: the block cannot be traced as one graph, returns anything but one tensor, needs no gradient, or a
            limit is not a size.
    """
    kept, budget = bytes_of(kept_bytes, "kept_bytes"), bytes_of(budget_bytes, "budget_bytes")
    batch = batch_of(batch)
    options = CaptureOptions(
        hardware=hardware, costs=costs, backend=backend, implementations=implementations, name=name
    )
    captured = capture_step(block, batch, None, options, expect_one_tensor)
    step_graph = captured.operators.step_graph
    # What else is on the device is everything else's; the gradient of the result comes from there, too.
    gradient_bytes = sum(step_graph.bytes_of(tangent) for tangent in step_graph.tangents)
    own = replace(captured, resident_bytes=own_bytes(block, batch), caller_bytes=gradient_bytes)
    return _with_other_blocks(own.problem(), kept, budget)


def _with_other_blocks(problem: MemoryProblem, kept_bytes: int, budget_bytes: int) -> MemoryProblem:
    """The problem with a last forward operator, which no graph has (see
    :class:`~loadmaster.executor.memory.run.compiled_plans.CompiledPlans`): other blocks run in it, and leave
    ``kept_bytes`` of the budget for what this one keeps."""
    last = problem.forward[-1]
    workspace = Implementation(0.0, max(0, budget_bytes - last.fixed_bytes - kept_bytes))
    others = ForwardOperator(
        id=last.id + 1,
        op="everything else",
        inputs=(),
        output_bytes=0,
        live_inputs=(),
        live_bytes=0,
        fixed_bytes=last.fixed_bytes,
        implementations=(workspace,),
        recompute_implementations=(workspace,),
        recomputable=False,
        offloadable=False,
    )
    return replace(problem, forward=(*problem.forward, others), budget_bytes=budget_bytes)


def expect_one_tensor(step_graph: StepGraph) -> None:
    """Raise an InputError for a block that returns anything but one differentiable tensor, naming the shapes found."""
    results = step_graph.outcome
    found = [tuple(t.shape) for n in results if isinstance(n, fx.Node) for t in tensors(n.meta.get("val"))]
    if (
        len(results) != 1
        or len(step_graph.tangents) != 1
        or step_graph.producer(step_graph.roots[results[0]]).op != "call_function"
    ):
        remedy = "Plan a module that computes and returns a single tensor."
        raise InputError("block", found, "does not return one tensor that it computes", remedy)
