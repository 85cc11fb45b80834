"""Overlap of a compiled pass's collectives with its kernels: moved together, begun early, waited for late.

A collective becomes two operators: one begins it, the other makes the stream wait for it. A gather of a given share,
most often of a parameter, is begun while earlier operators run; a result that nothing in the pass reads, most often a
gradient, is waited for while later ones run. What is on its way takes memory: at most so many bytes at once, and at
least one collective ahead.

A collective costs the host as much as several kernels, whatever it moves. So neighbours of one sort are joined in a
bucket where no reader has to wait for that: gathers, up to a part of the bytes that may be on their way, and sums that
are ready before the first of them is read. Small outputs that depend on a collective, such as the gradient of a norm in
another type, are computed at the end of the pass: there nothing waits for them, and their collectives share a bucket.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from loadmaster.executor.partition import collectives
from loadmaster.executor.partition.on_shares import results_of
from loadmaster.executor.steps.step_graph import is_view

# As many buckets may be on their way: the first waits for its bytes and hides nothing, and the last hides behind
# nothing.
_BUCKETS_AT_ONCE = 4


@dataclass(frozen=True)
class _Bucket:
    """Bucket of collectives, taken apart: the operator that begins them, then the rows that it begins; the operator
    that waits for all of them, then the rows; and the bytes that it moves on this rank, whole."""

    begun: tuple[fx.Node, ...]
    waited: tuple[fx.Node, ...]
    size_bytes: int


def overlapped(module: fx.GraphModule, at_once_bytes: int, *, alike: bool = True) -> fx.GraphModule:
    """Take the collectives of a pass apart and move them, in place, with at most ``at_once_bytes`` on their way. If not
    all ranks have the same pass, ``alike`` is false: each collective is a bucket of its own and begins where it is,
    since the rest depends on shapes, and all ranks must begin in one order."""
    graph = module.graph
    largest_bytes = at_once_bytes // _BUCKETS_AT_ONCE if alike else 0
    if alike:
        _postpone(graph, largest_bytes)
    buckets = [_taken_apart(graph, nodes) for nodes in _buckets(graph, largest_bytes)]
    place = _places(graph)
    buckets.sort(key=lambda bucket: place[bucket.begun[0]])
    if alike:
        _begin_early(graph, [bucket for bucket in buckets if _is_from_given(bucket.begun[0])], at_once_bytes)
    _wait_late(graph, [bucket for bucket in buckets if _is_for_nobody(bucket.waited[0])], at_once_bytes)
    _in_order(graph)
    graph.lint()
    module.recompile()
    return module


def _postpone(graph: fx.Graph, largest_bytes: int) -> None:
    """Move the nodes that depend on a collective to the end of the pass, where they are small."""
    for node in [node for node in graph.nodes if node.target in collectives.BEGUN]:
        if _is_from_given(node) or _is_for_nobody(node):
            continue
        dependents = _dependents([node], through=lambda _: True)
        if sum(map(_size_bytes, [node, *dependents])) <= largest_bytes:
            _move(dependents, graph.output_node())


def _buckets(graph: fx.Graph, largest_bytes: int) -> list[list[fx.Node]]:
    """Group the collectives that move together, in order."""
    place = _places(graph)
    found: list[list[fx.Node]] = []
    last: dict[str, list[fx.Node]] = {}
    for node in [node for node in graph.nodes if node.target in collectives.BEGUN]:
        given = _is_from_given(node)
        shared = _arguments(node)[collectives.OWN_ARGUMENTS[node.target] :]
        sort = repr((given, node.target, shared, node.meta["val"].dtype))
        bucket = last.get(sort, [])
        is_full = sum(map(_moved_bytes, [*bucket, node])) > largest_bytes
        if not bucket or is_full or not (given or place[node] < place[_first_reader(bucket)]):
            bucket = last[sort] = []
            found.append(bucket)
        bucket.append(node)
    return found


def _taken_apart(graph: fx.Graph, nodes: Sequence[fx.Node]) -> _Bucket:
    """Replace collectives by one bucket: begun where the first row is needed if all are given, else where the last row
    is ready; waited for at the first reader."""
    own = collectives.OWN_ARGUMENTS[nodes[0].target]
    columns = [list(column) for column in zip(*(_arguments(node)[:own] for node in nodes), strict=True)]
    begins_at = nodes[0] if _is_from_given(nodes[0]) else nodes[-1]
    for node in nodes[1:] if begins_at is nodes[0] else ():
        _move(_views_of_given(*_rows(node)), begins_at)
    with graph.inserting_before(begins_at):
        begin = graph.call_function(collectives.BEGUN[nodes[0].target], (*columns, *_arguments(nodes[0])[own:]))
        begun = [graph.call_function(operator.getitem, (begin, n)) for n in range(len(nodes))]
    reader = _first_reader(nodes)
    views = [node for node in _dependents(nodes, _is_light) if _is_light(node)]
    with graph.inserting_before(reader):
        wait = graph.call_function(collectives.wait_for, (begun,))
        waited = [graph.call_function(operator.getitem, (wait, n)) for n in range(len(nodes))]
    _move(views, reader)
    begin.meta["val"] = wait.meta["val"] = [node.meta["val"] for node in nodes]
    for node, one, there in zip(nodes, begun, waited, strict=True):
        one.meta["val"] = there.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(there)
    size_bytes = sum(map(_moved_bytes, nodes))
    for node in nodes:
        graph.erase_node(node)
    return _Bucket((begin, *begun), (wait, *waited), size_bytes)


def _begin_early(graph: fx.Graph, buckets: Sequence[_Bucket], at_once_bytes: int) -> None:
    """Begin each bucket right after the wait for the last one that leaves room for it, in the order of need."""
    moved: set[fx.Node] = set()
    first, on_their_way, place = 0, 0, _first(graph)
    for n, bucket in enumerate(buckets):
        on_their_way += bucket.size_bytes
        while first < n - 1 and on_their_way > at_once_bytes:
            on_their_way -= buckets[first].size_bytes
            place = buckets[first].waited[-1].next
            first += 1
        nodes = [*dict.fromkeys(node for row in _rows(bucket.begun[0]) for node in _views_of_given(row))]
        nodes = [*(node for node in nodes if node not in moved), *bucket.begun]
        _move(nodes, place)
        moved.update(nodes)
        place = bucket.begun[-1].next


def _wait_late(graph: fx.Graph, buckets: Sequence[_Bucket], at_once_bytes: int) -> None:
    """Wait for each bucket right after the begin of the first one that leaves no room for it."""
    last, on_their_way = 0, 0
    for n, bucket in enumerate(buckets):
        while last < len(buckets) and (last <= n + 1 or on_their_way <= at_once_bytes):
            on_their_way += buckets[last].size_bytes
            last += 1
        is_full = on_their_way > at_once_bytes and last > n + 1
        after = buckets[last - 1].begun[-1].next if is_full else graph.output_node()
        _move([*bucket.waited, *_dependents(bucket.waited[1:], _is_light)], after)
        on_their_way -= bucket.size_bytes


def _in_order(graph: fx.Graph) -> None:
    """Chain the collectives, so that no compiler can reorder them: ranks might get different orders."""
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.target in collectives.BEGUN.values():
            node.args = (*node.args, before)
            before = node.next  # the first row that it begins


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """Arguments of a collective without ``after``, an input of the pass that nothing has to wait for."""
    return node.args[:-1] if isinstance(node.args[-1], fx.Node) else node.args


def _moved_bytes(node: fx.Node) -> int:
    return max(_size_bytes(node), _size_bytes(node.all_input_nodes[0]))


def _size_bytes(node: fx.Node) -> int:
    return sum(value.numel() * value.element_size() for value in results_of(node.meta.get("val")))


def _is_from_given(node: fx.Node) -> bool:
    """Return whether a collective moves inputs of the pass, or views of them."""
    return all(_source(row).op == "placeholder" for row in _rows(node))


def _rows(node: fx.Node) -> list[fx.Node]:
    rows: Any = node.args[0]
    return rows if isinstance(rows, list) else [rows]


def _source(row: fx.Node) -> fx.Node:
    while _is_light(row):
        row = row.all_input_nodes[0]
    return row


def _views_of_given(row: fx.Node) -> list[fx.Node]:
    """Views from an input of the pass to a row, in order."""
    found: list[fx.Node] = []
    while row.op != "placeholder":
        found.insert(0, row)
        row = row.all_input_nodes[0]
    return found


def _is_for_nobody(node: fx.Node) -> bool:
    """Return whether only the pass's output reads a node, or views of it."""
    return all(map(_is_light, _dependents([node], _is_light)))


def _first_reader(nodes: Sequence[fx.Node]) -> fx.Node:
    """First node that reads any of these nodes, or a view of one; the pass's output if none does."""
    graph = nodes[0].graph
    readers = [node for node in _dependents(nodes, _is_light) if not _is_light(node)]
    return readers[0] if readers else graph.output_node()


def _dependents(nodes: Sequence[fx.Node], through: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """Nodes that read these, and readers of those that ``through`` accepts, in order; without the pass's output."""
    found: set[fx.Node] = set()
    ahead = [user for node in nodes for user in node.users]
    while ahead:
        reader = ahead.pop()
        if reader not in found and reader.op != "output":
            found.add(reader)
            if through(reader):
                ahead += reader.users
    place = _places(nodes[0].graph) if found else {}
    return sorted(found, key=place.__getitem__)


def _places(graph: fx.Graph) -> dict[fx.Node, int]:
    return {node: n for n, node in enumerate(graph.nodes)}


def _is_light(node: fx.Node) -> bool:
    is_other_name = node.op == "call_function" and (node.target is operator.getitem or is_view(node))
    return is_other_name and len(node.all_input_nodes) == 1


def _move(nodes: Sequence[fx.Node], before: Any) -> None:
    """Move nodes to the place before another one, in order."""
    if not nodes:
        return
    if nodes[0] is not before:
        before.prepend(nodes[0])
    for node, following in itertools.pairwise(nodes):
        node.append(following)


def _first(graph: fx.Graph) -> fx.Node:
    """First node of a graph that is not an input."""
    found: fx.Node = next(node for node in graph.nodes if node.op != "placeholder")
    return found
