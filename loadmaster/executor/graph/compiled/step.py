"""One call of a compiled layer as an operation of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from loadmaster.executor.graph.compiled.run import Run


def call(run: Run, numbers: Sequence[int], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a layer.

    Args:
        numbers: of the features and parameters.
        given: of these, as the caller knows them: edges in the caller's order, weights for all without a row.
    """
    if run.passes.gradients:
        found: tuple[Tensor, ...] = _Step.apply(run, tuple(numbers), *given)  # type: ignore[no-untyped-call]
        return found
    return tuple(forward_pass(run, numbers, given)[0])


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, numbers: tuple[int, ...], *given: Tensor) -> tuple[Tensor, ...]:
        outputs, saved = forward_pass(run, numbers, given)
        ctx.run, ctx.numbers, ctx.dtypes = run, numbers, [x.dtype for x in given]
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        saved = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()  # so that each goes after the last kernel that reads it
        return (None, None, *backward_pass(ctx.run, ctx.numbers, saved, upstream, ctx.dtypes))


def forward_pass(run: Run, numbers: Sequence[int], given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, as the caller wants them, and what the backward pass needs."""
    with torch.autocast(run.indices.device.type, enabled=False):
        held = {n: _taken(run, n, x) for n, x in zip(numbers, given, strict=True)}
        outputs, saved = run.forward(held)
        lie = {x.data_ptr() for x in given}
        # A feature that is an output as it was given: the caller's own tensor must not change with the result.
        return [x.clone() if x.data_ptr() in lie else x for x in (_returned(run, x) for x in outputs)], saved


def backward_pass(
    run: Run, numbers: Sequence[int], saved: list[Tensor], upstream: Sequence[Tensor], dtypes: Sequence[torch.dtype]
) -> list[Tensor | None]:
    """The gradients of what was given; None where none was asked for.

    Args:
        saved: by :func:`forward_pass`; is emptied.
        dtypes: of what was given.
    """
    with torch.autocast(run.indices.device.type, enabled=False):
        held = dict(zip(run.passes.saved, saved, strict=True))
        saved.clear()
        held.update(_received(run, upstream))
        made = run.backward(held)
        found = {of: _given_back(run, of, x) for (of, _), x in zip(run.passes.gradients, made, strict=True)}
        return [found[n].to(dtype) if n in found else None for n, dtype in zip(numbers, dtypes, strict=True)]


def _taken(run: Run, n: int, x: Tensor) -> Tensor:
    """Bring a feature or parameter to the dtype, order and shape that runners take."""
    x = x.to(run.dtype)
    space = run.program.types[n].space
    if space == "edge":
        return x.index_select(0, run.indices.edge_order)
    return (x.unsqueeze(0) if space == "one" else x).contiguous()


def _given_back(run: Run, n: int, gradient: Tensor) -> Tensor:
    """A gradient as the caller knows what it is a gradient of."""
    space = run.program.types[n].space
    if space == "edge":
        return torch.empty_like(gradient).index_copy_(0, run.indices.edge_order.long(), gradient)
    return gradient.squeeze(0) if space == "one" else gradient


def _returned(run: Run, output: Tensor) -> Tensor:
    """An output in the rows that the caller asked for; for autograd it is not a view of what is saved."""
    rows = run.indices.result_rows
    return (output if rows is None else output.index_select(0, rows)).to(run.dtype).detach()


def _received(run: Run, upstream: Sequence[Tensor]) -> dict[int, Tensor]:
    """The gradients of the outputs by number; their sum for an output that is returned twice."""
    rows = run.indices.result_rows
    sums: dict[int, Tensor] = {}
    for output, gradient in zip(run.program.outputs, upstream, strict=True):
        wide = gradient.to(run.dtype)
        if rows is not None:
            every = wide.new_zeros(run.indices.rows("node"), *wide.shape[1:])
            wide = every.index_copy_(0, rows, wide)
        sums[output] = sums[output] + wide if output in sums else wide
    numbers = [n for n, value in enumerate(run.program.values) if value.op == "gradient"]
    return {n: x.contiguous() for n, x in zip(numbers, sums.values(), strict=True)}
