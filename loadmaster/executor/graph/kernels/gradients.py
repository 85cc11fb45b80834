"""Gradients of g-SpMM and g-SDDMM in closed form: each is a g-SpMM or a g-SDDMM again.

With m = left . right the message of an edge and G the gradient that reaches it (of its row in g-SpMM, of itself in
g-SDDMM), an operand gets the sum, over the edges that read its row and over what it is repeated along, of

    copy, add    G            sub    G, -G            mul    G right, G left            div    G / right, -G m / right

At u that is a g-SpMM on the reversed graph, at v one on the graph itself, at e a g-SDDMM. Under max and min, G is of
the one edge that was chosen. Gradients of those have no gradients of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from loadmaster.executor.graph.kernels.operators import Matrix, sddmm, sddmm_op, spmm, spmm_op
from loadmaster.executor.graph.kernels.spmm_messages import (
    SWAPPED,
    Layout,
    Message,
    Side,
    decode,
    narrow,
    spread,
    width,
)

MATRIX_TENSORS = 10  # of a Matrix, before its counts
NOT_DIFFERENTIABLE = 1 + MATRIX_TENSORS + 3  # arguments after the operands: winner, matrix, counts, work
Flow = tuple[Tensor, Side]  # rows that gradients or operands flow from, and where they are


def _onto(
    side: Side,
    flows: Sequence[Flow],
    join: Literal["copy", "mul", "div"],
    winner: Tensor | None,
    matrix: Matrix,
    outer: int,
    inner: int,
) -> Tensor:
    """The sum, for each row at ``side``, of its edges' gradients: the first flow, joined with the second if any."""
    value, at = flows[0]
    if len(flows) == 1 and winner is None and at.layout == "full":
        # Nothing tells the repeated features apart: sum them before they are sent.
        flows = [(narrow(value, side.layout, outer, inner), at)]
        outer, inner = 1, width(side.layout, outer, inner)
        side = Side(side.target, "full")
    if side.target == "e":
        return _onto_edges(side.layout, flows, join, winner, matrix, outer, inner)
    if side.target == "u":
        matrix = matrix.reversed()
        flows = [(value, Side(SWAPPED[at.target], at.layout)) for value, at in flows]
    total, _ = spmm(*_operands(flows), matrix, _message(join, flows), "sum", outer, inner, winner)
    return narrow(total, side.layout, outer, inner)


def _onto_edges(
    layout: Layout,
    flows: Sequence[Flow],
    join: Literal["copy", "mul", "div"],
    winner: Tensor | None,
    matrix: Matrix,
    outer: int,
    inner: int,
) -> Tensor:
    if layout == "inner":
        # The kernel sums over the inner dimension.
        flows = [_transposed(flow, outer, inner) for flow in flows]
        winner = None if winner is None else _transposed((winner, Side("v", "full")), outer, inner)[0]
        outer, inner = inner, outer
    elif layout == "one":
        flows = [(spread(value, side.layout, outer, inner), Side(side.target, "full")) for value, side in flows]
        outer, inner = 1, outer * inner
    return sddmm(*_operands(flows), matrix, _message(join, flows), outer, inner, layout != "full", winner)


def _operands(flows: Sequence[Flow]) -> tuple[Tensor, Tensor | None]:
    return flows[0][0], flows[1][0] if len(flows) == 2 else None


def _message(join: Literal["copy", "mul", "div"], flows: Sequence[Flow]) -> Message:
    return Message(join, flows[0][1], flows[1][1] if len(flows) == 2 else None)


def _transposed(flow: Flow, outer: int, inner: int) -> Flow:
    value, side = flow
    if side.layout == "full":
        turned = value.view(-1, outer, inner).transpose(1, 2).reshape(-1, outer * inner)
        return turned, side
    swapped: dict[Layout, Layout] = {"outer": "inner", "inner": "outer", "one": "one"}
    return value, Side(side.target, swapped[side.layout])


def _operand_gradients(
    ctx: Any, gradient: Flow, winner: Tensor | None, left: Tensor | None, right: Tensor | None, matrix: Matrix
) -> tuple[Tensor | None, Tensor | None]:
    message, _, outer, inner = ctx.work
    needs_left, needs_right = ctx.needs_input_grad[:2]
    fixed = (winner, matrix, outer, inner)
    of_left = of_right = None
    if left is None or right is None or message.right is None:
        if needs_left:
            of_left = _onto(message.left, [gradient], "copy", *fixed)
        if needs_right and message.right is not None:
            of_right = _onto(message.right, [gradient], "copy", *fixed)
            of_right = -of_right if message.join == "sub" else of_right
    else:
        divides = message.join == "div"
        if needs_left:
            of_left = _onto(message.left, [gradient, (right, message.right)], "div" if divides else "mul", *fixed)
        if needs_right:
            of_right = _onto(message.right, [gradient, (left, message.left)], "mul", *fixed)
            of_right = -of_right / (right * right) if divides else of_right
    return (
        None if of_left is None else of_left.to(ctx.dtypes[0]),
        None if of_right is None else of_right.to(ctx.dtypes[1]),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], winner: Tensor | None) -> None:
    left, right, given_winner, *rest = inputs
    ctx.work = decode(rest[-1])
    ctx.counts, ctx.reverse_counts = rest[-3:-1]
    ctx.differentiable = given_winner is None and ctx.work.message.join != "expsub" and ctx.work.reduce != "logsumexp"
    ctx.dtypes = (left.dtype, None if right is None else right.dtype)
    if ctx.work.message.join not in ("mul", "div"):
        left = right = None  # sums need no values again, and may be all that keeps them
    ctx.save_for_backward(left, right, winner, *rest[:MATRIX_TENSORS])


def _kept(ctx: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None, Matrix]:
    if not ctx.differentiable:
        raise RuntimeError("Gradients of max and min over messages cannot be differentiated again.")
    left, right, winner, *rest = ctx.saved_tensors
    return left, right, winner, Matrix._make([*rest, ctx.counts, ctx.reverse_counts])


def _keep_spmm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _keep(ctx, inputs, output[1] if output[1].numel() else None)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _spmm_backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * (2 + NOT_DIFFERENTIABLE)
    left, right, winner, matrix = _kept(ctx)
    if ctx.work.reduce == "mean":
        assert matrix.ptr is not None
        gradient = gradient / matrix.ptr.diff().clamp(min=1).to(gradient.dtype)[:, None]
    flow = (gradient.contiguous(), Side("v", "full"))
    return (*_operand_gradients(ctx, flow, winner, left, right, matrix), *(None,) * NOT_DIFFERENTIABLE)


def _sddmm_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    left, right, _, matrix = _kept(ctx)
    flow = (gradient.contiguous(), Side("e", "outer" if ctx.work.reduce == "inner" else "full"))
    return (*_operand_gradients(ctx, flow, None, left, right, matrix), *(None,) * NOT_DIFFERENTIABLE)


spmm_op.register_autograd(_spmm_backward, setup_context=_keep_spmm)
sddmm_op.register_autograd(_sddmm_backward, setup_context=lambda ctx, inputs, output: _keep(ctx, inputs, None))
