"""Kernels that a compiler makes of a run of operators: single ones, and fused ones with the bytes that those move.

Matrix products, convolutions, attention, and every operator that is not known to fuse run as kernels of their own.
Consecutive other operators fuse: what only they read never reaches memory and is computed again wherever a kernel needs
it, so a fused kernel reads the run's inputs and writes its results. Long expressions that are read more than once do
reach memory, and so does what is added up by index. A reduction across rows (the statistics of BatchNorm, the gradient
of a bias) ends a kernel, for every element must be seen before the first result is known; a reduction along rows that
fit a block (LayerNorm, softmax) does not.

Inductor lets a kernel that it generates write a result over an input that nothing reads later: of the same size, and
read element for element where the result is written. Plans that count both tensors ask for up to a third more than a
step of large convolutions takes: its ReLUs and normalizations write over what the convolutions made. So a forward
operator says which one it can write over (``in_place`` of the problem), and a replayed run counts a gradient and the
one that takes its place once. Nothing is emitted for it: an overwritten value that is read again is not overwritten.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx

from loadmaster.executor.costs.traffic import FREE, GATHERS, defaults, flops, is_atomic, tensors, value_bytes, value_of
from loadmaster.executor.memory.implementations.decompositions import decompositions
from loadmaster.executor.memory.operators.groups import ForwardGroup
from loadmaster.executor.steps.step_graph import StepGraph, readers_of
from loadmaster.executor.torch_private.operators import OpOverload

aten = torch.ops.aten

ROW_LIMIT = 8192  # longer rows are read twice: once for their statistics, once for the result
SMALL = 16  # a result with this many times fewer bytes than what was read is a statistic

# Of an expression that is computed wherever it is read. Inductor allows 30 instructions, about three for each node.
MOST_NODES = 10
MOST_LOADS = 4

CREATED = frozenset({"new_zeros", "new_full", "new_ones", "zeros_like", "ones_like", "full_like"})
"""Operators that read an input for its shape alone: nothing is gained by running them when the input is made."""

SOFTMAXES = defaults("_softmax _safe_softmax _log_softmax")

ROW_LOCAL = SOFTMAXES | defaults("native_layer_norm _softmax_backward_data _log_softmax_backward_data _fused_rms_norm")
"""Operators whose statistics run along the last dimensions."""

ACROSS_ROWS = defaults(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm_backward "
    "native_group_norm native_group_norm_backward"
)
"""Operators that reduce across rows inside, whether or not anybody reads the statistics."""

_TWICE = ROW_LOCAL | ACROSS_ROWS
"""Operators that need statistics of what they read before they read it."""

_ALSO_FUSIBLE = frozenset(
    (
        # Copies, and elements moved or chosen.
        *("_to_copy", "copy", "cat", "stack", "repeat", "gather", "index", "_unsafe_index", "embedding", "flip"),
        *("roll", "slice_backward", "select_backward", "slice_scatter", "select_scatter", "constant_pad_nd"),
        # Created.
        *("full", "full_like", "zeros", "zeros_like", "ones_like", "new_zeros", "new_full", "new_ones"),
        *("new_empty_strided", "arange", "scalar_tensor"),
        # Activations.
        *("hardtanh_backward", "hardswish_backward", "leaky_relu_backward", "elu_backward", "softplus_backward"),
        # Normalizations and softmaxes.
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
        *("native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward", "native_group_norm"),
        *("native_group_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "var_mean"),
        *("_softmax", "_safe_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        # Losses and pools.
        *("nll_loss_forward", "nll_loss2d_forward", "avg_pool2d", "_adaptive_avg_pool2d"),
        *("_adaptive_avg_pool2d_backward", "upsample_nearest2d"),
    )
)


def is_fusible(node: fx.Node) -> bool:
    """Return whether a compiler runs the operator inside a kernel that it generates, together with its neighbours."""
    target = node.target
    if not isinstance(target, OpOverload) or flops(node):
        return False
    if target in decompositions() or target in FREE or is_atomic(node):
        return True
    if torch.Tag.pointwise in target.tags or torch.Tag.reduction in target.tags:
        return True
    return target.namespace == "aten" and target.overloadpacket.__name__ in _ALSO_FUSIBLE


def is_elementwise(node: fx.Node) -> bool:
    """Return whether a fusible node computes each element from a few others, so that readers compute it again cheaply.
    Reductions and what reads whole rows are not elementwise."""
    target = node.target
    if not isinstance(target, OpOverload) or not is_fusible(node):
        return False
    return (
        torch.Tag.pointwise in target.tags
        or target.overloadpacket.__name__ in ("_to_copy", "copy")
        or target in decompositions()
    )


def is_softmax_of_rows(node: fx.Node) -> bool:
    """Return whether the node is a softmax whose rows fit a block: its readers compute it again for almost nothing."""
    return node.target in SOFTMAXES and _along_rows(node)


def is_gather(node: fx.Node) -> bool:
    """Return whether the node reads elements by place, as interpolation does: its readers compute it again, too."""
    return node.target in (aten.index.Tensor, aten._unsafe_index.Tensor)


def written_anyway(step_graph: StepGraph, read_elsewhere: Collection[fx.Node]) -> set[fx.Node]:
    """Long expressions that are read more than once: a compiler writes them to memory, though their readers fuse.
    Interpolated logits are one: four places and their weights, read twice by a softmax. Roots in ``read_elsewhere`` are
    in memory already."""
    expressions: dict[fx.Node, set[fx.Node]] = {}  # by root, the nodes of what is computed where it is read
    loads: dict[fx.Node, set[fx.Node]] = {}
    found = set()
    for node in step_graph.results:
        if not (is_elementwise(node) or is_gather(node)):
            continue
        own, read = {node}, set[fx.Node]()
        for root in step_graph.reads([node]):
            if step_graph.bytes_of(root) * SMALL > step_graph.bytes_of(node):
                own |= expressions.get(root, set())
                read |= loads.get(root, {root})
        readers = readers_of(node) & step_graph.results.keys()
        is_long = len(own) > MOST_NODES or len(read) > MOST_LOADS
        if is_long and (len(readers) > 1 or any(r.target in _TWICE for r in readers)):
            found.add(node)
        elif node not in read_elsewhere:
            expressions[node], loads[node] = own, read
    return found


def is_created(node: fx.Node) -> bool:
    """Return whether the node reads no values, only a shape. Zeros that a scatter adds to are part of the scatter."""
    if not isinstance(node.target, OpOverload) or node.target.overloadpacket.__name__ not in CREATED:
        return False
    return not all(map(is_atomic, node.users))


def steps(nodes: Sequence[fx.Node], *, fused: bool) -> list[list[fx.Node]]:
    """Compute nodes in order, cut into what runs as one: maximal fused runs, or single operators."""
    found: list[list[fx.Node]] = []
    for node in nodes:
        if fused and found and is_fusible(node) and is_fusible(found[-1][-1]):
            found[-1].append(node)
        else:
            found.append([node])
    return found


@dataclass(frozen=True)
class Traffic:
    """Bytes that a fused run moves, and the number of kernels it takes."""

    moved_bytes: int
    kernels: int


def traffic(step_graph: StepGraph, nodes: Sequence[fx.Node], written: Collection[fx.Node]) -> Traffic:
    """Count the bytes that a run of fusible compute nodes moves, and its kernels; ``written`` are the roots made by
    them that are read elsewhere."""
    made = {r for n in nodes for r in step_graph.results[n]}
    views: dict[fx.Node, dict[fx.Node, int]] = {}  # by root: what is read of it, with its bytes
    reach: dict[fx.Node, frozenset[fx.Node]] = {}  # by root made here: what computing it again reads
    level: dict[fx.Node, int] = {}  # by root made here: reductions that must be over before
    reduced: dict[int, frozenset[fx.Node]] = {}
    scattered: list[frozenset[fx.Node]] = []  # a kernel for each
    for node in nodes:
        sources: frozenset[fx.Node] = frozenset()
        after = 0
        for argument in node.all_input_nodes:
            root = step_graph.roots[argument]
            if root in made:
                sources |= reach.get(root, frozenset())
                after = max(after, level.get(root, 0))
            else:
                size = value_bytes(value_of(argument))
                if node.target in GATHERS:
                    size = min(size, value_bytes(value_of(node)))
                views.setdefault(root, {})[argument] = size
                sources |= {root}
        read = sum(step_graph.bytes_of(r) for r in sources)
        small = {r for r in step_graph.results[node] if step_graph.bytes_of(r) * SMALL <= read}
        crosses = node.target in ACROSS_ROWS or is_atomic(node) or (bool(small) and not _along_rows(node))
        if is_atomic(node):
            scattered.append(sources)
        elif crosses:
            reduced[after] = reduced.get(after, frozenset()) | sources
        for root in step_graph.results[node]:
            statistic = crosses and root in small
            reach[root] = frozenset() if statistic or is_atomic(node) else sources
            level[root] = after + 1 if crosses else after
    last = frozenset().union(*(reach[r] for r in written if r in reach))
    passes = [*reduced.values(), *scattered, *([last] if last or not reduced else [])]

    def bytes_of(root: fx.Node) -> int:
        return min(step_graph.bytes_of(root), sum(views[root].values()))

    moved = sum(bytes_of(r) for p in passes for r in p)
    moved += sum(min(step_graph.bytes_of(r), value_bytes(value_of(r))) for r in written)
    return Traffic(moved, len(passes))


def _along_rows(node: fx.Node) -> bool:
    """Return whether every statistic of a reduction comes from a contiguous row of up to :data:`ROW_LIMIT` elements."""
    source = next((t for n in node.all_input_nodes for t in tensors(value_of(n))), None)
    if source is None or source.dim() == 0:
        return True
    if node.target in SOFTMAXES:
        return source.shape[cast(int, node.args[1])] <= ROW_LIMIT
    if node.target in ROW_LOCAL:
        return source.shape[-1] <= ROW_LIMIT
    dims = next((a for a in node.args[1:2] if isinstance(a, list | tuple)), None)
    if not dims:
        return False
    positions = sorted(d % source.dim() for d in dims if isinstance(d, int))
    trailing = positions == list(range(source.dim() - len(positions), source.dim()))
    return trailing and math.prod(source.shape[p] for p in positions) <= ROW_LIMIT


def overwritable(step_graph: StepGraph, groups: Sequence[ForwardGroup], wanted: Collection[fx.Node]) -> dict[int, int]:
    """Map each forward operator to the one whose result it can write its own over, where there is any. A root that no
    way of running the backward pass reads (not in ``wanted``) is written over rather, and of equal ones the latest,
    which is the cheapest to have again."""
    returned = {step_graph.roots[n] for n in step_graph.forward_outputs if isinstance(n, fx.Node)}
    found: dict[int, int] = {}
    for f in groups:
        if len(f.results) != 1:
            continue
        usable = [
            (read in wanted, -i)
            for i in f.inputs
            for read in groups[i].results
            if len(groups[i].results) == 1
            and read not in returned
            and takes_over(step_graph, f.nodes, read, f.results[0])
        ]
        if usable:
            found[f.id] = -min(usable)[1]
    return found


def shared_bytes(
    step_graph: StepGraph, step: Sequence[fx.Node], written: Collection[fx.Node], dying: Sequence[fx.Node]
) -> int:
    """Bytes of the results in ``written`` that a fused step writes over inputs, each over one of its own among the
    ``dying``, which nothing reads after the step."""
    left = list(dying)
    shared = 0
    for result in written:
        place = next((i for i, root in enumerate(left) if takes_over(step_graph, step, root, result)), None)
        if place is not None:
            shared += step_graph.bytes_of(left.pop(place))
    return shared


def takes_over(step_graph: StepGraph, step: Sequence[fx.Node], read: fx.Node, written: fx.Node) -> bool:
    """Return whether a fused step can write one root over another: of one size, every operator goes element by element,
    up to statistics, and all that is as large goes through memory in one order."""
    sources, results = ([*tensors(root.meta.get("val"))] for root in (read, written))
    if len(sources) != 1 or len(results) != 1 or not _alike(sources[0], results[0]):
        return False
    if read not in step_graph.reads(step):
        return False
    arguments = {a for n in step for a in n.all_input_nodes}
    return all(_in_order(step_graph, a, sources[0]) for a in arguments) and all(map(_goes_by_element, step))


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (one.numel(), one.dtype, one.device) == (other.numel(), other.dtype, other.device)
    return same and (one.shape == other.shape or (_is_row_major(one) and _is_row_major(other)))


def _in_order(step_graph: StepGraph, argument: fx.Node, source: torch.Tensor) -> bool:
    """Return whether an argument is smaller than what is written over, or goes through memory as its root does: as a
    view it does if both are row-major."""
    found, root = tensors(argument.meta.get("val")), step_graph.roots[argument]
    if root is argument or all(t.numel() < source.numel() for t in found):
        return True
    return all(_is_row_major(t) for n in (argument, root) for t in tensors(n.meta.get("val")))


def _is_row_major(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stays row-major: a compiler makes those of four and five dimensions channels last."""
    return tensor.is_contiguous() and tensor.dim() < 4


def _goes_by_element(node: fx.Node) -> bool:
    target = node.target
    if is_elementwise(node) or target in ACROSS_ROWS or target in ROW_LOCAL:
        return True
    return isinstance(target, OpOverload) and torch.Tag.reduction in target.tags
