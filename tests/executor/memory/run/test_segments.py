"""Cutting a staged graph changes nothing but where it is cut."""

from __future__ import annotations

import inspect
import random
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch._guards import TracingContext, tracing
from torch._inductor.codecache import PyCodeCache
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from loadmaster.executor import apply
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import capture
from loadmaster.executor.memory.run import backends
from loadmaster.executor.memory.run.backends import eager, inductor
from loadmaster.executor.memory.run.segments import STAGE, Segment, chain, cut
from loadmaster.executor.steps.measure import cpu_peak_bytes
from tests.executor.memory.hand_planner import HandPlanner, keep_nothing_peak

aten = torch.ops.aten


def random_graph(seed: int, size: int, stages: int) -> fx.GraphModule:
    """A random graph of additions and products over two inputs, its nodes spread over stages in order."""
    draw = random.Random(seed)
    graph = fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    numbers = sorted(draw.randrange(1, stages + 1) for _ in range(size))
    recomputes = [draw.random() < 0.5 for _ in range(stages + 1)]
    for number in numbers:
        op = draw.choice([aten.add.Tensor, aten.mul.Tensor])
        node = graph.call_function(op, (draw.choice(values), draw.choice(values[-4:])))
        node.meta[STAGE] = (number, recomputes[number])
        values.append(node)
    graph.output((values[-1], None, draw.choice(values), values[-1]))
    return fx.GraphModule(torch.nn.Module(), graph)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 25), stages=st.integers(1, 6))
def test_segments_compute_what_the_graph_computes(seed, size, stages):
    module = random_graph(seed, size, stages)
    x, y = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    expected = module(x, y)
    segments = cut(module)
    assert sum(len(s.module.graph.find_nodes(op="call_function", target=aten.add.Tensor)) for s in segments) == len(
        module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    )
    run = chain(module, segments, [eager(s.module, ()) for s in segments])
    for _ in range(2):
        arguments = [x, y]
        got = run(arguments)
        assert arguments == []
        for g, e in zip(got, expected, strict=True):
            assert (g is None) == (e is None)
            assert g is None or torch.equal(g, e)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 25), stages=st.integers(1, 6))
def test_after_a_segment_only_what_is_read_later_or_returned_is_alive(seed, size, stages):
    module = random_graph(seed, size, stages)
    segments = cut(module)
    returned = {n.name for n in module.graph.output_node().all_input_nodes}
    alive: dict[str, weakref.ref[torch.Tensor]] = {}

    def watched(place: int, segment: Segment):
        run = eager(segment.module, ())
        later = returned.union(*(s.reads for s in segments[place + 1 :]))

        def watch(arguments):
            made = run(arguments)
            assert {name for name, value in alive.items() if value() is not None} == later & alive.keys()
            alive.update(zip(segment.makes, map(weakref.ref, made), strict=True))
            return made

        return watch

    run = chain(module, segments, [watched(n, s) for n, s in enumerate(segments)])
    for _ in range(2):
        alive.clear()
        arguments = [torch.randn(3), torch.randn(3)]
        alive.update(zip("xy", map(weakref.ref, arguments), strict=True))
        run(arguments)


def test_from_the_second_time_on_segments_are_called_directly():
    module = staged(("a", aten.exp.default, "x"), ("b", aten.sin.default, "a"))
    segments = cut(module)

    class Wrapped:
        def __init__(self, segment: Segment) -> None:
            self.direct = eager(segment.module, ())
            self.calls = 0

        def __call__(self, arguments):
            self.calls += 1
            return self.direct(arguments)

    wrapped = [Wrapped(s) for s in segments]
    run = chain(module, segments, wrapped)
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(run([x])[0], module(x)[0])
    assert [w.calls for w in wrapped] == [1, 1]


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_stage_that_recomputes_is_a_segment_and_values_die_in_time(recomputes):
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(aten.exp.default, (x,))
    first.meta[STAGE] = (1, False)
    second = graph.call_function(aten.sin.default, (first,))
    second.meta[STAGE] = (2, recomputes)
    third = graph.call_function(aten.cos.default, (second,))
    third.meta[STAGE] = (3, False)
    graph.output((third,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    segments = cut(module)
    assert len(segments) == (3 if recomputes else 1)
    alive: list[bool] = []
    value = torch.randn(3)
    reference = weakref.ref(value)

    def watch(run):
        def watched(arguments):
            result = run(arguments)
            alive.append(reference() is not None)
            return result

        return watched

    run = chain(module, segments, [watch(eager(s.module, ())) for s in segments])
    arguments = [value]
    del value
    run(arguments)
    assert not any(alive)


def staged(*rows, returned: tuple[str, ...] = ()) -> fx.GraphModule:
    """A graph over the input x, a segment for every row (name, operator, arguments); the last row is returned, too."""
    graph = fx.Graph()
    made = {"x": graph.placeholder("x")}
    for stage, (name, op, *arguments) in enumerate(rows, start=1):
        made[name] = graph.call_function(op, tuple(made.get(a, a) if isinstance(a, str) else a for a in arguments))
        made[name].meta[STAGE] = (stage, True)
    graph.output((made[rows[-1][0]], *(made[name] for name in returned)))
    return fx.GraphModule(torch.nn.Module(), graph)


def compiled(module: fx.GraphModule, value: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **options):
    """The graph through Inductor, and for each segment the places that it may write over."""
    donated: list[tuple[int, ...]] = []
    original = backends._compile

    def compile_(lowered, inputs, places, aligned):
        donated.append(tuple(places))
        return original(lowered, inputs, places, aligned)

    monkeypatch.setattr(backends, "_compile", compile_)
    return through_inductor(module, value, **options), donated


def through_inductor(module: fx.GraphModule, *values: torch.Tensor, static: tuple[int, ...] = (), **options):
    """The graph compiled as AOTAutograd has it compiled.

    Args:
        static: places of parameters.
    """
    fake_mode = FakeTensorMode()
    context = TracingContext(fake_mode)
    context.fw_metadata = SimpleNamespace(bw_donated_idxs=[0], static_input_indices=[*static])
    with tracing(context):
        run = inductor(module, [fake_mode.from_tensor(value) for value in values], **options)
    assert context.fw_metadata.bw_donated_idxs == [0]
    return run


@pytest.mark.slow
def test_a_segment_writes_over_what_dies_in_it_and_nothing_else_holds(monkeypatch):
    x = torch.randn(1000, 1000)
    kept = x.clone()
    module = staged(
        ("a", aten.exp.default, "x"),  # the graph's input is not ours
        ("view", aten.view.default, "a", [-1]),
        ("b", aten.mul.Tensor, "a", 2.0),  # its view is read later
        ("c", aten.sin.default, "b"),
        ("d", aten.cos.default, "c"),
        ("e", aten.add.Tensor, "c", "d"),
        ("f", aten.sum.default, "view"),  # a is read last here, but its view is returned
        ("g", aten.add.Tensor, "e", "f"),
        returned=("view",),
    )
    run, donated = compiled(module, x, monkeypatch)
    assert donated == [(), (), (), (0,), (), (0, 1), (), (0, 1)]
    torch.testing.assert_close(run([x]), module(kept))
    assert torch.equal(x, kept)
    # a, with b turned into c, and d: the fourth of a size would be c beside b, or e beside c and d.
    assert cpu_peak_bytes(lambda: run([x])) < 3.5 * x.nbytes


@pytest.mark.slow
def test_code_that_writes_over_its_input_is_for_inputs_that_die(monkeypatch):
    """The same segment, once for a value that dies and once for one that does not: caches keep them apart."""
    x = torch.randn(64, 64)
    dies = staged(("a", aten.exp.default, "x"), ("b", aten.sin.default, "a"))
    stays = staged(("a", aten.exp.default, "x"), ("b", aten.sin.default, "a"), ("c", aten.mul.Tensor, "a", "b"))
    for module, places in ((dies, [(), (0,)]), (stays, [(), (), (0, 1)]), (dies, [(), (0,)])):
        run, donated = compiled(module, x, monkeypatch)
        assert donated == places
        torch.testing.assert_close(run([x.clone()])[0], module(x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [True, False])
def test_a_backward_graph_writes_over_what_was_saved_for_it(cut, monkeypatch):
    x = torch.rand(1000, 1000)  # the sine of a large number shows the last bit of exp
    module = staged(("a", aten.exp.default, "x"), ("b", aten.sin.default, "a"))
    if not cut:
        for node in module.graph.nodes:
            node.meta.pop(STAGE, None)
    run, donated = compiled(module, x, monkeypatch, half="backward")
    assert donated == ([(0,), (0,)] if cut else [(0,)])
    expected = module(x)[0]
    assert cpu_peak_bytes(lambda: run([x])) < 0.5 * x.nbytes
    torch.testing.assert_close(x, expected)  # it lies where x did


def products(*rows) -> fx.GraphModule:
    """Products in one segment over the inputs x and y; the last two are returned."""
    graph = fx.Graph()
    made = {name: graph.placeholder(name) for name in "xy"}
    for name, left, right in rows:
        made[name] = graph.call_function(aten.mm.default, (made[left], made[right]))
    graph.output((made[rows[-2][0]], made[rows[-1][0]]))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.slow
def test_a_buffer_that_nobody_reads_any_more_is_reused():
    """a's for d, though c comes between, as in a graph that Inductor reorders: the peak is b, c and d."""
    module = products(("a", "x", "x"), ("b", "a", "x"), ("c", "b", "y"), ("d", "b", "x"))
    x, y, known = torch.randn(64, 64), torch.randn(64, 8), len(PyCodeCache.modules)
    FakeTensorProp(module).propagate(x, y)
    run = through_inductor(module, x, y)
    torch.testing.assert_close(run([x, y]), list(module(x, y)), rtol=1e-4, atol=1e-2)
    assert any("# reuse" in inspect.getsource(m) for m in PyCodeCache.modules[known:] if hasattr(m, "call"))


@pytest.mark.slow
def test_only_what_a_caller_gives_is_looked_at_for_where_it_begins(monkeypatch):
    """And what shares memory with it. Parameters and what segments make begin where a memory access may."""
    begins: list[list[bool]] = []
    original = backends.compile_fx_inner

    def compiling(lowered, inputs, *, static_input_idxs, **options):
        begins.append([place in static_input_idxs for place in range(len(inputs))])
        return original(lowered, inputs, static_input_idxs=static_input_idxs, **options)

    monkeypatch.setattr(backends, "compile_fx_inner", compiling)
    rows = (("a", aten.exp.default, "x"), ("b", aten.mul.Tensor, "a", "x"), ("c", aten.sin.default, "b"))
    x = torch.randn(16)
    for half, static, expected in (
        ("forward", (), [[False], [True, False], [True]]),
        ("forward", (0,), [[True], [True, True], [True]]),
        ("backward", (), [[True], [True, True], [True]]),  # saved by the forward graph
    ):
        begins.clear()
        run = through_inductor(staged(*rows), x, half=half, static=static)
        torch.testing.assert_close(run([x.clone()])[0], staged(*rows)(x)[0])
        assert begins == expected
    begins.clear()
    shared = staged(("a", aten._unsafe_view.default, "x", [4, 4]), ("b", aten.exp.default, "a"))
    torch.testing.assert_close(through_inductor(shared, x)([x.clone()])[0], shared(x)[0])
    assert begins == [[False], [False]]


@pytest.mark.slow
def test_a_saved_batch_is_looked_at_and_saved_parameters_are_not(monkeypatch):
    model, batch, loss = nn.Sequential(nn.Linear(8, 8), nn.GELU()), (torch.randn(4, 8), torch.randn(4, 8)), nn.MSELoss()
    looked_at = []
    original = backends._run_by_inductor

    def running(module, inputs, *more, new, **options):
        looked_at.append({tuple(i.shape) for i, n in zip(inputs, module.graph.nodes, strict=False) if n.name in new})
        return original(module, inputs, *more, new=new, **options)

    monkeypatch.setattr(backends, "_run_by_inductor", running)
    problem = capture(model, batch, loss, costs=roofline("cpu"))
    apply(HandPlanner(1)(problem.with_budget(4 * keep_nothing_peak(problem))), model, loss)(*batch).backward()
    assert looked_at == [{(4, 8)}, {(4, 8), ()}]  # the batch, and with it the tangent of the loss


class Halves(nn.Module):
    """What is saved of it are views of one tensor, and other names of the same."""

    def __init__(self):
        super().__init__()
        self.wide, self.out = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x):
        left, right = self.wide(x).exp().chunk(2, -1)
        return self.out(left.tanh() * right.view(4, -1, 8).flatten(0, 1).sin() * left).exp()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_gradients_are_right_where_saved_tensors_share_memory(share):
    model, batch, loss = Halves(), (torch.randn(32, 8), torch.randn(32, 8)), nn.MSELoss()
    problem = capture(model, batch, loss, costs=roofline("cpu"))
    low, high = keep_nothing_peak(problem), 4 * keep_nothing_peak(problem)
    step = apply(HandPlanner(1)(problem.with_budget(int(low + share * (high - low)))), model, loss)
    for _ in range(2):
        model.zero_grad()
        step(*batch).backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        torch.testing.assert_close(found, [p.grad for p in model.parameters()])


@pytest.mark.slow
def test_a_sum_that_the_compiler_returns_without_its_kept_dimensions_has_them_again(monkeypatch):
    """As Inductor of PyTorch 2.11 returns, on GPUs, the gradient of an RMSNorm's weight that another segment views."""
    original = backends.compile_fx_inner

    def dropping(lowered, inputs, **options):
        places = [
            n for n, made in enumerate(lowered.graph.output_node().args[0]) if made.target == aten.sum.dim_IntList
        ]
        run = original(lowered, inputs, **options)
        return lambda given: [t.view(-1) if n in places else t for n, t in enumerate(run(given))]

    monkeypatch.setattr(backends, "compile_fx_inner", dropping)
    x = torch.randn(2, 3, 8)
    module = staged(
        ("a", aten.sum.dim_IntList, "x", [0, 1], True),
        ("b", aten.exp.default, "x"),
        ("c", aten.mul.Tensor, "a", "b"),
        ("d", aten.view.default, "a", [8]),
        ("e", aten.mul.Tensor, "c", "d"),
    )
    run, _ = compiled(module, x, monkeypatch)
    for _ in range(2):
        torch.testing.assert_close(run([x])[0], module(x)[0])
