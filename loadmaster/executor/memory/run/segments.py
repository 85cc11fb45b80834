"""A graph cut into segments, so that a compiler orders and fuses inside a segment only.

Inductor orders and fuses as it sees fit, and would pull a recomputation to where its result is first thought of, or
what reads it later to where it is made, and all between with it. A stage that recomputes or fetches something is a
segment of its own: what the plan brings late is compiled late; in the forward pass a segment begins where an operator
waits until what is sent to the host is gone. Identical segments (the layers of a transformer) are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import fx

from loadmaster.executor.memory.run.repeats import repeated_pieces
from loadmaster.executor.steps.step_graph import is_alias
from loadmaster.executor.torch_private.tracing import boxed

Runner = Callable[[list[Any]], Any]
"""Callable on a list of arguments, which it empties. It may have ``direct``: what to call from the second time on."""
STAGE = "loadmaster_stage"
"""Metadata key of a node: (stage, whether the stage is a segment of its own)."""


@dataclass(frozen=True)
class Segment:
    """Part of a graph: its own graph module, and the names it reads and makes in order.

    Attributes:
        frees: names that it reads last; what the graph returns is not among them.
    """

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
    """Run segments one after another; every value is let go at its last reader.

    It runs as Python written for these segments: a step has a hundred, and the host must stay ahead of the device.
    """
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
