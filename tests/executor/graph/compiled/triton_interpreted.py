"""The generated Triton kernels in Triton's interpreter, on a CPU, against plain PyTorch in float64.

A program of its own: Triton decides at its import whether to interpret, and the interpreter checks no bounds, so that a
store out of range may end the process. What kernels store lies between guards, which must be whole afterwards. Prints
{name of the case: what went wrong, or nothing} as one line of JSON.
"""

from __future__ import annotations

import warnings
from unittest import mock

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.reference import ReferenceRunner
from loadmaster.executor.graph.compiled.triton import TritonKernel, building, gemm
from loadmaster.models.graph import cut
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.operators import Value
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.program import Builder, Program
from loadmaster.models.graph.schedule import Kernel, Schedule
from loadmaster.models.graph.tracing import per_relation, shared, traced
from tests.executor.graph.compiled.plain_layers import PlainGraph, evaluated
from tests.executor.graph.compiled.random_layers import graphs, layers, schedules
from tests.executor.graph.compiled.triton_runs import (
    expect_as_plain,
    expect_close,
    generated_count,
    random_held,
    random_indices,
)
from tests.executor.interpreted_cases import Cases, Guarded

case = Cases()
EXACT = 1e-11


def shim_products() -> None:
    """The interpreter multiplies the bits of bfloat16 as if they were integers."""
    plain = interpreter.InterpreterBuilder.create_dot

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, *more):
        return plain(self, widened(a), widened(b), *more)

    interpreter.InterpreterBuilder.create_dot = create_dot


def check(program: Program, schedule: Schedule, indices: Indices, dtype=torch.float64, tolerance=EXACT, held=None):
    guarded = Guarded(torch.empty)
    with mock.patch.object(torch, "empty", guarded):
        found = expect_as_plain(program, schedule, indices, dtype, tolerance, held)
    guarded.expect_whole()
    return found


def trained(name: str, width: int, out: int, heads: int) -> tuple[Program, Schedule]:
    program = with_backward(layer(name, width, out, heads))
    return program, greedy_schedule(program)


def plain_graph(nodes: int, edges: int, relations: int) -> tuple[PlainGraph, Indices]:
    generator = torch.Generator().manual_seed(3)
    source, target = (torch.randint(0, nodes - at, (edges,), generator=generator) for at in (0, 2))
    relation = torch.randint(0, relations - 1, (edges,), generator=generator)
    types = (torch.arange(nodes) >= nodes // 3).long()
    ptr = [0, nodes // 3, nodes]
    indices = Indices.from_edges(source, target, relation, nodes, relations, ptr)
    return PlainGraph(source, target, relation, types), indices


@case
def layers_of_the_library_with_their_gradients() -> None:
    """From features to gradients, each kernel fed by those before, against autograd of a plain form."""
    plain, indices = plain_graph(12, 40, 4)
    for name, heads in (("rgcn", 1), ("rgat", 1), ("rgat", 2), ("hgt", 1), ("hgt", 2), ("gat", 1), ("gat", 2)):
        program, schedule = trained(name, 6, 16, heads)
        forward = layer(name, 6, 16, heads)
        held = random_held(program, indices, torch.float64)
        found = check(program, schedule, indices, held=held)
        leaves = {}
        for op in ("feature", "parameter"):
            for called, n in program.given(op).items():
                x = held[n][0] if program.types[n].space == "one" else held[n]
                leaves[called] = x.clone().requires_grad_()
        (want,) = evaluated(forward, plain, leaves)
        (of_output,) = program.given("gradient").values()
        want.backward(held[of_output])
        torch.testing.assert_close(shown(program, found, program.outputs[0]), want.detach(), rtol=1e-9, atol=1e-9)
        for of, gradient in program.gradients:
            expected = leaves[program.values[of].name].grad
            got = shown(program, found, gradient).view(expected.shape)
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def shown(program: Program, held: dict[int, Tensor], n: int) -> Tensor:
    """A value that is kept, or a view of one."""
    if n in held:
        return held[n]
    value, typed = program.values[n], program.types[n]
    inner = shown(program, held, value.inputs[0])
    if value.op == "transpose":
        return inner.transpose(-1, -2)
    assert value.op in ("as_node", "source", "target", "join_heads", "split_heads"), value.op
    return inner.reshape(len(inner), *typed.shape)


@case
def random_layers_orders_and_schedules() -> None:
    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(graphs(), layers(), st.data())
    def run(plain: PlainGraph, forward: Program, data: st.DataObject) -> None:
        program = with_backward(data.draw(st.sampled_from(orders(forward))).program)
        if any(value.op == "equal" for value in program.values):
            return  # which row is the greatest is decided by rounding: see traversals_of_every_reduction
        schedule = data.draw(st.sampled_from([*schedules(program)]))
        sorted_numbers = data.draw(st.sampled_from([1, cut.SORTED_NUMBERS]))
        count = plain.node_count
        ptr = [0, int((plain.node_type == 0).sum()), count]
        indices = Indices.from_edges(plain.source, plain.target, plain.relation, count, 8, ptr)
        with mock.patch.object(cut, "SORTED_NUMBERS", sorted_numbers):
            check(program, schedule, indices)

    run()


@case
def one_kernel_on_several_graphs() -> None:
    """What was made for one graph and kept serves another with other rows."""
    program, schedule = trained("rgat", 6, 8, 2)
    kept = frozenset(schedule.kept)
    kernels = [TritonKernel(program, kernel, kept, torch.float64) for kernel in schedule.kernels]
    for edges, seed in ((40, 0), (0, 1), (55, 2), (40, 0)):
        indices = random_indices(9, edges, 4, seed)
        held = random_held(program, indices, torch.float64)
        for kernel, made in zip(schedule.kernels, kernels, strict=True):
            runner = made.on(indices)
            plain = ReferenceRunner(program, kernel, indices, torch.float64)
            want = plain(held)
            if runner is not None:
                expect_close(program, kernel, runner(held), want, 1e-9)
            held.update(zip(kernel.stores, want, strict=True))


@case
def long_rows_in_chunks() -> None:
    """Chunks of two rows: partial results, one pass or two."""
    indices = random_indices(9, 60, 4, hub_edges=20)
    with mock.patch.object(cut, "_bound", lambda widest, slots, steps: 2):
        for name, out, heads in (("rgat", 8, 2), ("hgt", 16, 1), ("gat", 16, 2)):
            check(*trained(name, 6, out, heads), indices)


@case
def traversals_of_every_reduction() -> None:
    """With ties of the greatest, rows without any, and chunks; (D,), (H, D) and numbers at once."""
    for reduce in ("sum", "mean", "max", "min", "logsumexp"):
        b = Builder()
        x = b.add(Value("x", "feature", space="edge", shape=(6,)))
        y = b.made("split_heads", x, count=2)
        z = b.made("row_sum", x)
        made = [b.made("aggregate", v, over="edge", space="target", reduce=reduce) for v in (x, y, z)]
        program = b.program([b.made("as_node", n) for n in made], len(b.values))
        schedule = Schedule(
            (Kernel("traverse", "target", tuple(program.values[n].inputs[0] for n in program.outputs), "edge"),), 1
        )
        indices = random_indices(7, 30, 3)
        held = {0: torch.randint(-2, 3, (30, 6)).double()}
        for rows in (64, 2):
            with mock.patch.object(cut, "_bound", lambda widest, slots, steps, rows=rows: rows):
                check(program, schedule, indices, held=held)
    for reduce in ("max", "min"):
        forward = traced(
            lambda nodes, edges, w, reduce=reduce: getattr(edges, reduce)(edges.source(nodes.h) * edges.e),
            nodes={"h": 3},
            edges={"e": ()},
        )
        program = with_backward(forward)
        check(program, greedy_schedule(program), random_indices(7, 30, 3))


@case
def great_scores_stay_finite() -> None:
    program = layer("gat", 4, 16, 2)
    indices = random_indices(6, 30, 3)
    held = random_held(program, indices, torch.float32)
    (h,) = program.given("feature").values()
    held[h] = held[h] * 3e4
    found = check(program, greedy_schedule(program), indices, torch.float32, 2e-5, held)
    assert all(bool(torch.isfinite(x).all()) for x in found.values())


@case
def maps_of_every_operator() -> None:
    b = Builder()
    x, y, w = (
        b.add(Value(n, "feature", space="edge", shape=s)) for n, s in (("x", (3, 5)), ("y", (3, 5)), ("w", (3,)))
    )
    made = [b.made(op, x) for op in ("neg", "exp", "relu", "elu", "gelu", "gelu_slope", "sigmoid", "tanh", "step")]
    made += [b.made("log", b.made("exp", x)), b.made("reciprocal", b.made("exp", y)), b.made("join_heads", x)]
    made += [b.made(op, x, other) for op in ("add", "sub", "mul", "equal", "dot", "concat") for other in (y, y, x)]
    made += [b.made("mul", w, x), b.made("div", x, b.made("exp", w)), b.made("row_sum", x), b.made("head_sum", x)]
    made += [b.made("scale", x, number=0.3), b.made("shift", x, number=-0.7), b.made("leaky_relu", x, number=0.1)]
    made += [b.made("part", x, number=2.0, count=3), b.made("pad", x, number=1.0, count=9)]
    made += [b.made("repeat_heads", w, count=4), b.made("repeat_last", w, count=3)]
    kept = tuple(n for n in dict.fromkeys(made) if b.values[n].op != "join_heads")
    total = b.made("aggregate", b.made("row_sum", b.made("row_sum", x)), over="edge", space="target", reduce="sum")
    output = b.made("as_node", total)
    program = Program(tuple(b.values), (output,), len(b.values))
    indices = random_indices(5, 11, 3)
    check(program, Schedule((Kernel("map", "edge", kept),), 1), indices, tolerance=1e-12)
    held = random_held(program, indices, torch.float64)
    held[x] = held[x] * 1e-3  # where tanh of exponentials would cancel
    check(program, Schedule((Kernel("map", "edge", kept),), 1), indices, tolerance=1e-9, held=held)


@case
def weights_longer_than_a_program() -> None:
    b = Builder()
    a = b.add(Value("a", "parameter", space="relation", shape=(2, 30, 40)))
    c = b.add(Value("c", "parameter", space="relation", shape=(2, 40, 30)))
    total = b.made("add", a, b.made("scale", b.made("transpose", c), number=2.0))
    b.add(Value("h", "feature", space="node", shape=(4,)))
    program = Program(tuple(b.values), (total,), len(b.values))
    check(program, Schedule((Kernel("map", "relation", (total,)),), 1), random_indices(5, 11, 3))


@case
def products_in_parts() -> None:
    """Rows and weights too long to be read at once, columns of several programs, sums for the last columns masked."""
    with mock.patch.multiple(gemm, WHOLE_BYTES=64, SIDE=16):
        indices = random_indices(9, 50, 4)
        for name, heads in (("rgcn", 1), ("rgat", 2), ("hgt", 2)):
            program, schedule = trained(name, 20, 36, heads)
            check(program, schedule, indices)
            check(program, schedule, indices, torch.float32, 2e-5)
    program, schedule = trained("rgcn", 6, 140, 1)
    check(program, schedule, random_indices(5, 9, 3), torch.float32, 2e-5)


@case
def products_with_more_made_from_them() -> None:
    """Rows scaled before, an activation and sums of a row after: all in one kernel."""

    def forward(nodes, edges, weights):
        message = (edges.source(nodes.h) * edges.e) @ weights.W[edges.relation]
        return edges.sum(message * (message * weights.v).made("row_sum"))

    program = traced(forward, nodes={"h": 6}, edges={"e": ()}, weights={"W": per_relation(6, 10), "v": shared(10)})
    linear = next(n for n, value in enumerate(program.values) if value.op == "linear")
    row_sum = next(n for n, value in enumerate(program.values) if value.op == "row_sum")
    aggregate = next(n for n, value in enumerate(program.values) if value.op == "aggregate")
    kernels = (Kernel("gemm", "edge", (linear, row_sum)), Kernel("traverse", "target", (aggregate,), "edge"))
    schedule = Schedule(kernels, 2)
    indices = random_indices(9, 40, 4)
    assert generated_count(program, schedule, indices, torch.float64) == 2
    check(program, schedule, indices)


@case
def offsets_of_64_bits() -> None:
    with mock.patch.object(building, "NARROW_NUMBERS", 0):
        for name, heads in (("rgat", 2), ("hgt", 2), ("rgcn", 1)):
            check(*trained(name, 6, 8, heads), random_indices(9, 40, 4, hub_edges=5))


@case
def shorter_numbers() -> None:
    indices = random_indices(12, 50, 4)
    for name, heads in (("rgcn", 1), ("rgat", 2), ("hgt", 2)):
        program, schedule = trained(name, 16, 16, heads)
        check(program, schedule, indices, torch.float32, 2e-5)
        # The interpreter cuts what a GPU rounds to bfloat16.
        check(program, schedule, indices, torch.bfloat16, 4e-2)


@case
def graphs_without_edges() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    indices = Indices.from_edges(none, none, none, 3, 2, [0, 0, 3])
    for name, heads in (("rgcn", 1), ("rgat", 2), ("hgt", 1)):
        found = check(*trained(name, 4, 8, heads), indices)
        assert all(bool(torch.isfinite(x).all()) for x in found.values())


if __name__ == "__main__":
    shim_products()
    warnings.simplefilter("ignore")  # numpy's, for zeros that a mask drops
    torch.set_num_threads(1)
    case.run()
