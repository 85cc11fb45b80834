"""A graph cut into segments: for a plan's sake, and where the graph repeats itself.

A compiler orders and fuses inside a segment only. Inductor orders and fuses as it sees fit, and would pull a
recomputation to where its result is first thought of, or what reads it later to where it is made, and all between with
it. A stage that recomputes or fetches something is a segment of its own: what the plan brings late is compiled late; in
the forward pass a segment begins where an operator waits until what is sent to the host is gone.

A compiler takes a network of 24 equal layers for one graph and compiles each of them, which is most of the wait for a
step. Identical segments are compiled once. Before and after a product or a convolution values are in memory anyway, and
a cut costs no fusion.

Operators are compared by what they are: target, constants, and the shapes, types and strides of their results. Shifted
by one period, the part of a graph that repeats itself equals itself::

    operators             embed  mm gelu mm norm  mm gelu mm norm  mm gelu mm norm  loss
    the same, 4 later?    no     yes yes yes yes  yes yes yes yes  no ...

The period that saves the most operators is taken, then the same is asked of what is left before and after it. Within a
period the place is taken where the least is lost. Cutting is all that is done here: pieces may still differ in what
they read, and then each is compiled.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, fx

from loadmaster.executor.costs.traffic import value_bytes, value_of
from loadmaster.executor.memory.operators.fusion import is_fusible
from loadmaster.executor.steps.step_graph import is_alias, is_compute, is_mutating, tensors, views_of
from loadmaster.executor.torch_private.tracing import boxed

Runner = Callable[[list[Any]], Any]
"""Callable on a list of arguments, which it empties. It may have ``direct``: what to call from the second time on."""
STAGE = "loadmaster_stage"
"""Metadata key of a node: (stage, whether the stage is a segment of its own)."""
_LAGS = 16
"""A layer may have so many equal products: periods are the distances from each to as many after it."""
_KERNELS = 2
"""A period has at least this many kernels that do not fuse: less is not worth a call."""


@dataclass(frozen=True)
class Segment:
    """Part of a graph: its own graph module, and the names it reads and makes in order. ``frees`` are names that it
    reads last; what the graph returns is not among them."""

    module: fx.GraphModule
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    frees: frozenset[str]


def cut(module: fx.GraphModule) -> list[Segment]:
    """The graph's segments in order: as its nodes' :data:`STAGE` says, and where it repeats itself."""
    runs: list[list[fx.Node]] = [[]]
    stage, apart = 0, False
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        number, own = node.meta.get(STAGE, (stage, apart))
        if number != stage and (own or apart) and runs[-1]:
            runs.append([])
        stage, apart = number, own
        runs[-1].append(node)
    found: list[Segment] = []
    read_later = {n.name for n in module.graph.output_node().all_input_nodes}
    for run in reversed(runs):
        for piece in reversed(repeated_pieces(run)):
            found.append(_segment(module, piece, read_later))
            read_later.update(found[-1].reads)
    return found[::-1]


def _views_read(piece: Sequence[fx.Node]) -> list[fx.Node]:
    """Views made before a piece that it reads, to be made again in it: what is viewed is handed over, not the view."""
    held = set(piece)
    nodes: list[fx.Node] = []

    def bring(node: fx.Node) -> None:
        if is_alias(node) and node not in held:
            held.add(node)
            for source in node.all_input_nodes:
                bring(source)
            nodes.append(node)

    for node in piece:
        for source in node.all_input_nodes:
            bring(source)
    return nodes


def _segment(module: fx.GraphModule, piece: Sequence[fx.Node], later: set[str]) -> Segment:
    nodes = [*_views_read(piece), *piece]
    inside = set(nodes)
    reads = tuple(dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside))
    makes = [n for n in piece if n.name in later]
    graph = fx.Graph()
    held: dict[fx.Node, fx.Node] = {}
    for node in reads:
        held[node] = graph.placeholder(f"read_{len(held)}")
        held[node].meta = dict(node.meta)
    for node in nodes:
        held[node] = graph.node_copy(node, held.__getitem__)
    graph.output(tuple(held[n] for n in makes))
    names, made = tuple(n.name for n in reads), tuple(n.name for n in makes)
    return Segment(fx.GraphModule(module, graph), names, made, frozenset(names) - later)


def chain(module: fx.GraphModule, segments: Sequence[Segment], runners: Sequence[Runner]) -> Runner:
    """Run segments one after another; every value is let go at its last reader. It runs as Python written for these
    segments: a step has a hundred, and the host must stay ahead of the device."""
    called = [f"run_{n}" for n in range(len(segments))]
    namespace: dict[str, Any] = dict(zip(called, runners, strict=True))
    exec(_code(module, segments, called), namespace)
    written: Runner = namespace["run"]
    is_first = True

    def run(arguments: list[Any]) -> Any:
        nonlocal is_first
        made = written(arguments)
        if is_first:
            is_first = False
            namespace.update({name: getattr(namespace[name], "direct", namespace[name]) for name in called})
        return made

    return boxed(run)


def _code(module: fx.GraphModule, segments: Sequence[Segment], called: Sequence[str]) -> str:
    given = [n.name for n in module.graph.find_nodes(op="placeholder")]
    # A gradient that an input does not have is None.
    results = [
        n.name if isinstance(n, fx.Node) else None for n in cast(Sequence[Any], module.graph.output_node().args[0])
    ]
    variables = {name: f"v{n}" for n, name in enumerate((*given, *(m for s in segments for m in s.makes)))}

    def listed(names: Iterable[str | None]) -> str:
        return "".join(f"{None if name is None else variables[name]}, " for name in names)

    read = {*results, *(name for s in segments for name in s.reads)}
    lines = [
        f"({listed(given)}) = arguments",
        "arguments.clear()",
        *_letting_go(listed(n for n in given if n not in read)),
    ]
    for segment, name in zip(segments, called, strict=True):
        # The list alone holds what is read for the last time: the callee empties it.
        lines.append(f"given = [{listed(segment.reads)}]")
        lines += _letting_go(listed(n for n in segment.reads if n in segment.frees))
        lines.append(f"({listed(segment.makes)}) = {name}(given)")
    body = "\n    ".join([*lines, f"return ({listed(results)})"])
    return f"def run(arguments):\n    {body}\n"


def _letting_go(listed: str) -> list[str]:
    return [f"del {listed.rstrip(', ')}"] if listed else []


@dataclass(frozen=True, order=True)
class _Repeated:
    """Repetition of ``count`` periods from ``first`` on; the better, the more it saves, and the shorter its period."""

    saved: int
    negative_period: int
    first: int
    count: int

    @property
    def places(self) -> range:
        """Places where periods begin, and where the last one ends."""
        period = -self.negative_period
        return range(self.first, self.first + self.count * period + 1, period)


def repeated_pieces(run: Sequence[fx.Node]) -> list[Sequence[fx.Node]]:
    """The run of nodes, cut where it repeats itself; the whole run where it does not."""
    places = [0, *_Run(run).cuts(0, len(run)), len(run)]
    return [run[a:b] for a, b in itertools.pairwise(places) if a < b]


def described(node: fx.Node, named: Callable[[fx.Node], str] = lambda _: "") -> Hashable:
    """Key of a node without its name, the nodes that it reads ``named``: equal for operators that compile to the same
    code."""
    arguments = fx.node.map_arg((node.args, node.kwargs), named)
    target = node.target if node.op == "call_function" else None
    return node.op, target, str(arguments), described_tensors(tensors(value_of(node)))


def described_tensors(tensors: Iterable[Tensor]) -> Hashable:
    """Key of tensors, with all that a compiler knows of them."""
    return tuple((t.dtype, t.device, tuple(t.shape), t.stride(), t.storage_offset()) for t in tensors)


class _Run:
    def __init__(self, run: Sequence[fx.Node]) -> None:
        fusible = [is_fusible(n) for n in run]
        kernels = [is_compute(n) and not f and not is_mutating(n) for n, f in zip(run, fusible, strict=True)]
        self.kernels = np.array(kernels, np.int64)
        known: dict[Hashable, int] = {}
        self.kinds = np.array([known.setdefault(described(n), len(known)) for n in run], np.int64)
        self.losses = _losses(run, fusible, kernels)

    def cuts(self, start: int, end: int) -> list[int]:
        """Places to cut at between two, in ascending order."""
        best = max(self._repeated(start, end), default=None)
        if best is None:
            return []
        first, last = best.places[0], best.places[-1]
        inside = [p for p in best.places if start < p < end]
        return [*self.cuts(start, first), *inside, *self.cuts(last, end)]

    def _repeated(self, start: int, end: int) -> Iterator[_Repeated]:
        kinds, kernels = self.kinds[start:end], self.kernels[start:end]
        for period in _periods(kinds, kernels):
            for begin, stop in _stretches(kinds[:-period] == kinds[period:]):
                if stop - begin < period or kernels[begin : begin + period].sum() < _KERNELS:
                    continue
                first = start + begin
                first = min(range(first, first + period), key=self.losses.__getitem__)
                count = (start + stop + period - first) // period
                is_possible = not self.losses[first][0]
                if is_possible and count > 1:
                    yield _Repeated((count - 1) * period, -period, first, count)


def _periods(kinds: NDArray[np.int64], kernels: NDArray[np.int64]) -> set[int]:
    """Distances between kernels of a kind."""
    places = defaultdict(list)
    for place in np.flatnonzero(kernels).tolist():
        places[int(kinds[place])].append(place)
    return {
        later - place
        for equal in places.values()
        for n, place in enumerate(equal)
        for later in equal[n + 1 : n + 1 + _LAGS]
    }


def _stretches(same: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Stretches of True without a break: (begin, end) of each."""
    changes = np.flatnonzero(np.diff(same, prepend=False, append=False))
    return [(begin, end) for begin, end in changes.reshape(-1, 2).tolist()]


def _losses(run: Sequence[fx.Node], fusible: Sequence[bool], kernels: Sequence[bool]) -> list[tuple[int, int, int]]:
    """Cost of a cut before each node: values that cannot cross it, bytes that stay inside a fused kernel otherwise, and
    all that cross."""
    place = {node: n for n, node in enumerate(run)}
    changes = np.zeros((len(run) + 1, 3), np.int64)
    behind = _behind_kernels(run, place, kernels)
    for node in run:
        if is_alias(node):
            continue
        made = place[node]
        own = {node, *views_of(node)}
        readers = [place[u] for value in own for u in value.users if u in place and u not in own]
        fused = [p for p in readers if fusible[made] and fusible[p] and not behind[p] >> made & 1]
        # Of several results only the elements are handed over.
        stays = readers if not isinstance(value_of(node), Tensor) else []
        size = value_bytes(value_of(node))
        for column, (crossing, cost) in enumerate(((stays, 1), (fused, size), (readers, size))):
            if crossing:
                changes[made + 1, column] += cost
                changes[max(crossing) + 1, column] -= cost
    return [(stay, lost, crossing) for stay, lost, crossing in np.cumsum(changes, axis=0).tolist()]


def _behind_kernels(run: Sequence[fx.Node], place: Mapping[fx.Node, int], kernels: Sequence[bool]) -> list[int]:
    """Bits for each node: the nodes that it can be in no fused kernel with, since one that does not fuse is between."""
    before: list[int] = []
    behind: list[int] = []
    for node in run:
        sources = [place[source] for source in node.all_input_nodes if source in place]
        before.append(functools.reduce(operator.or_, (before[s] | 1 << s for s in sources), 0))
        apart = (before[s] if kernels[s] else behind[s] for s in sources)
        behind.append(functools.reduce(operator.or_, apart, 0))
    return behind
