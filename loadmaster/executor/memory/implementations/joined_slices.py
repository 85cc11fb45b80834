"""The gradient of a tensor that is read slice by slice: the slices' gradients side by side, not added up.

PyTorch makes a tensor of full size from each slice's gradient, with zeros around it, and adds all of them up; in a loop
over positions (a scan, a recurrent layer) there is one for each position:

    (g0, 0, 0) + (0, g1, 0) + (0, 0, g2)   is   cat(g0, g1, g2)

A compiler that sees the whole sum in one graph computes it in one kernel; where a plan cuts between two positions, each
would read and write the full size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from loadmaster.executor.memory.implementations.emitting import aten, call, with_strides_of

ADD = aten.add.Tensor


@dataclass(frozen=True)
class _Slice:
    """Terms of a sum, all of them zeros but from ``start`` to ``end``, where each has its gradient."""

    terms: tuple[fx.Node, ...]
    gradients: tuple[fx.Node, ...]
    sizes: tuple[int, ...]
    dimension: int
    start: int
    end: int


def join_slices(graph: fx.Graph) -> None:
    """Put the slices of each sum side by side; those that overlap become several such tensors."""
    inner = {n for n in graph.find_nodes(op="call_function", target=ADD) if _is_inner(n)}
    for node in graph.find_nodes(op="call_function", target=ADD):
        if node not in inner and not node.kwargs:
            _join(graph, node, inner)


def _is_inner(node: fx.Node) -> bool:
    """Return whether the sum is a term of another one, and nothing else."""
    users = list(node.users)
    return len(users) == 1 and users[0].target is ADD and not (node.kwargs or users[0].kwargs) and _is_plain(node)


def _is_plain(node: fx.Node) -> bool:
    """Return whether a sum only adds: both terms are tensors of its own shape and type."""
    values = [a.meta["val"] if isinstance(a, fx.Node) else None for a in node.args]
    return all(v is not None and (v.shape, v.dtype) == (node.meta["val"].shape, node.meta["val"].dtype) for v in values)


def _join(graph: fx.Graph, root: fx.Node, inner: set[fx.Node]) -> None:
    if not _is_plain(root):
        return
    terms = list(_terms(root, inner))
    found = [s for term, count in Counter(terms).items() if count == 1 and (s := _slice_of(term)) is not None]
    joined = [side for side in _sides(found) if len(side) > 1 or len(side[0].terms) > 1]
    if not joined:
        return
    first = {side[0].terms[0]: side for side in joined}
    gone = {term for side in joined for part in side for term in part.terms}
    with graph.inserting_before(root):
        # A sum's strides go by the order of its terms.
        left = [_concatenated(graph, first[t]) if t in first else t for t in terms if t in first or t not in gone]
        total = with_strides_of(graph, _sum(graph, left), root)
    root.replace_all_uses_with(total)
    _erase(graph, root, {*inner, *gone})


def _terms(node: fx.Node, inner: set[fx.Node]) -> Iterator[fx.Node]:
    waiting = [node]
    while waiting:
        now = waiting.pop()
        if now is node or now in inner:
            waiting += reversed(now.all_input_nodes if len(now.all_input_nodes) == 2 else now.all_input_nodes * 2)
        else:
            yield now


def _slice_of(term: fx.Node) -> _Slice | None:
    """Slice of a term that is a slice's gradient and that nothing else reads; None for any other term."""
    if len(term.users) != 1 or term.op != "call_function":
        return None
    arguments: Any = term.args
    if term.target is aten.select_backward.default:
        gradient, sizes, dimension, index = arguments
        dimension %= len(sizes)
        start = index % sizes[dimension]
        return _Slice((term,), (gradient,), tuple(sizes), dimension, start, start + 1)
    if term.target is aten.slice_backward.default:
        gradient, sizes, dimension, start, _, step = arguments
        dimension %= len(sizes)
        start = max(start + sizes[dimension], 0) if start < 0 else start
        end = start + gradient.meta["val"].shape[dimension]
        return _Slice((term,), (gradient,), tuple(sizes), dimension, start, end) if step == 1 and end > start else None
    return None


def _sides(slices: Iterable[_Slice]) -> Iterator[list[_Slice]]:
    """Slices in lists of such as do not overlap, each as long as can be; slices of one place become one."""
    places: dict[tuple[object, ...], list[_Slice]] = defaultdict(list)
    for found in slices:
        shape = found.gradients[0].meta["val"].shape
        places[found.sizes, found.dimension, found.start, found.end, shape].append(found)
    groups: dict[tuple[object, ...], list[_Slice]] = defaultdict(list)
    for same in places.values():
        terms, gradients = (sum(parts, ()) for parts in zip(*((s.terms, s.gradients) for s in same), strict=True))
        groups[same[0].sizes, same[0].dimension].append(replace(same[0], terms=terms, gradients=gradients))
    for waiting in groups.values():
        while waiting:
            side: list[_Slice] = []
            for found in sorted(waiting, key=lambda s: (s.end, s.start)):
                if not side or found.start >= side[-1].end:
                    side.append(found)
            yield side
            taken = set(side)
            waiting = [found for found in waiting if found not in taken]


def _concatenated(graph: fx.Graph, side: Sequence[_Slice]) -> fx.Node:
    sizes, dimension = side[0].sizes, side[0].dimension
    pieces, reached = [], 0

    def fill(end: int) -> None:
        if end > reached:
            gap = [*sizes[:dimension], end - reached, *sizes[dimension + 1 :]]
            pieces.append(call(graph, aten.new_zeros.default, side[0].gradients[0], gap))

    for found in side:
        fill(found.start)
        piece = _sum(graph, found.gradients)
        is_whole = piece.meta["val"].dim() == len(sizes)
        pieces.append(piece if is_whole else call(graph, aten.unsqueeze.default, piece, dimension))
        reached = found.end
    fill(sizes[dimension])
    joined = call(graph, aten.cat.default, pieces, dimension)
    return with_strides_of(graph, joined, side[0].terms[0])


def _sum(graph: fx.Graph, terms: Sequence[fx.Node]) -> fx.Node:
    total = terms[0]
    for term in terms[1:]:
        total = call(graph, ADD, total, term)
    return total


def _erase(graph: fx.Graph, root: fx.Node, removable: set[fx.Node]) -> None:
    """Erase the sum, and what was read by it alone."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        read = node.all_input_nodes
        graph.erase_node(node)
        waiting += [n for n in read if n in removable and not n.users]
