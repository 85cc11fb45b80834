"""g-SpMM and g-SDDMM in Triton's interpreter, on a CPU, against their plain PyTorch forms.

A program of its own, as :mod:`tests.executor.memory.implementations.interpreted_kernels` is and for its reasons. What
kernels allocate lies between guards. Prints {name of the case: what went wrong, or nothing} as one line of JSON.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch import Tensor

from loadmaster.executor.graph.kernels import operators, spmm_schedule, spmm_triton
from loadmaster.executor.graph.kernels.operators import Matrix, sddmm, spmm
from loadmaster.executor.graph.kernels.softmax import edge_softmax_op
from loadmaster.executor.graph.kernels.spmm_messages import Message, Side, width
from loadmaster.executor.graph.structure.adjacency import Adjacency
from tests.executor.interpreted_cases import Cases, Guarded

case = Cases()
U, E, V = (Side(target, "full") for target in ("u", "e", "v"))


@contextlib.contextmanager
def kernels_run(most: int = 8) -> Iterator[None]:
    """Operators take their kernels; small graphs have rows of every sort, small features several blocks."""
    guarded = Guarded(torch.empty)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(operators, "has_kernels", lambda device: True))
        for name, value in {"TINY_DEGREE": 1, "SMALL_DEGREE": 3, "CHUNK_EDGES": 5, "RARE": 100}.items():
            stack.enter_context(mock.patch.object(spmm_schedule, name, value))
        stack.enter_context(mock.patch.object(spmm_triton, "WIDEST_BLOCK", most))
        stack.enter_context(mock.patch.object(torch, "empty", guarded))
        yield
    assert guarded.made
    guarded.expect_whole()


def graph(dtype: torch.dtype = torch.int32) -> tuple[Adjacency, Matrix]:
    """Rows of 0 to 14 edges, so that none, some and many chunks come up."""
    degree = torch.tensor([2, 0, 14, 1, 3, 1, 6, 4, 0])
    destination = torch.arange(9).repeat_interleave(degree)
    shuffled = torch.randperm(destination.numel())
    source = torch.randint(0, 7, (destination.numel(),))
    made = Adjacency(source.to(dtype), destination[shuffled].to(dtype), 7, 9)
    return made, made.matrix(reverse=True)


def rows(adjacency: Adjacency, side: Side, outer: int, inner: int, dtype: torch.dtype) -> Tensor:
    count = {"u": adjacency.source_count, "v": adjacency.destination_count, "e": adjacency.edge_count}[side.target]
    signs = torch.randint(0, 2, (count, width(side.layout, outer, inner))) * 2 - 1
    return ((torch.rand(signs.shape, dtype=torch.float64) + 0.5) * signs).to(dtype)


def close(got: Tensor, want: Tensor) -> None:
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[want.dtype]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def both(run: Callable[[], tuple[Tensor, ...]]) -> None:
    want = run()
    with kernels_run():
        got = run()
    for one, other in zip(got, want, strict=True):
        close(one, other) if other.is_floating_point() else torch.testing.assert_close(one, other)


@case
def sums_of_every_message() -> None:
    adjacency, matrix = graph()
    sides = (U, Side("e", "outer"), Side("v", "inner"))
    for left, right in itertools.permutations(sides, 2):
        for join in ("add", "sub", "mul", "div"):
            x, y = (rows(adjacency, side, 3, 2, torch.float64) for side in (left, right))
            message = Message(join, left, right)
            both(lambda x=x, y=y, m=message: spmm(x, y, matrix, m, "sum", 3, 2)[:1])


@case
def every_reduction() -> None:
    for ids, dtype in ((torch.int32, torch.float32), (torch.int64, torch.float64), (torch.int32, torch.bfloat16)):
        adjacency, matrix = graph(ids)
        x = rows(adjacency, U, 1, 11, dtype)
        for reduce in ("sum", "mean", "max", "min", "logsumexp"):
            both(lambda x=x, m=matrix, r=reduce: spmm(x, None, m, Message("copy", U, None), r, 1, 11))


@case
def ties_infinities_and_nan_under_max_and_min() -> None:
    _, matrix = graph()
    x = torch.randint(-1, 2, (7, 5)).to(torch.float64)
    x[1], x[2, 1], x[4, 2] = -torch.inf, torch.nan, torch.inf
    for reduce in ("max", "min"):
        both(lambda r=reduce: spmm(x, None, matrix, Message("copy", U, None), r, 1, 5))


@case
def winners_decide_which_edges_count() -> None:
    adjacency, matrix = graph()
    x, w = rows(adjacency, U, 2, 3, torch.float64), rows(adjacency, Side("e", "outer"), 2, 3, torch.float64)
    message = Message("mul", U, Side("e", "outer"))
    _, winner = spmm(x, w, matrix, message, "max", 2, 3)
    gradient = rows(adjacency, V, 2, 3, torch.float64)
    back = Message("mul", U, Side("e", "outer"))
    both(lambda: spmm(gradient, w, matrix.reversed(), back, "sum", 2, 3, winner)[:1])
    onto_edges = Message("mul", V, U)
    both(lambda: (sddmm(gradient, x, matrix, onto_edges, 2, 3, True, winner),))
    both(lambda: (sddmm(gradient, x, matrix, onto_edges, 2, 3, False, winner),))


@case
def edges_values_of_every_shape() -> None:
    adjacency, matrix = graph()
    for outer, inner, summed in ((1, 5, False), (3, 2, False), (3, 4, True), (1, 19, True), (2, 1, False)):
        for left, right in ((U, V), (V, Side("e", "outer")), (Side("u", "one"), Side("v", "inner"))):
            x, y = (rows(adjacency, side, outer, inner, torch.float32) for side in (left, right))
            message = Message("mul", left, right)
            both(lambda x=x, y=y, m=message, o=outer, i=inner, s=summed: (sddmm(x, y, matrix, m, o, i, s),))


@case
def softmax_and_its_gradient() -> None:
    _, matrix = graph()
    scores = (3 * torch.randn(31, 2, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(31, 2, dtype=torch.float64)

    def run() -> tuple[Tensor, ...]:
        made = edge_softmax_op(scores, *matrix[:4], matrix.source, matrix.destination, [])
        return (made.detach(), *torch.autograd.grad((made * weights).sum(), scores))

    both(run)


@case
def a_graph_without_edges() -> None:
    none = torch.empty(0, dtype=torch.int32)
    matrix = Adjacency(none, none, 3, 4).matrix(reverse=True)
    both(lambda: spmm(torch.ones(3, 2), None, matrix, Message("copy", U, None), "max", 1, 2))


if __name__ == "__main__":
    case.run()
