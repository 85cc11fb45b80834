"""Results that a compiler writes over an input, and what that saves.

Inductor lets a kernel that it generates write a result over an input that nothing reads later: of the same size, and
read element for element where the result is written. Plans that count both tensors ask for up to a third more than a
step of large convolutions takes: its ReLUs and normalizations write over what the convolutions made. So a forward
operator says which one it can write over (``in_place`` of the problem), and a replayed run counts a gradient and the
one that takes its place once.

Nothing has to be emitted for it: an overwritten value that is read again is not overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from loadmaster.executor.memory.operators.fusion import ACROSS_ROWS, ROW_LOCAL, is_elementwise
from loadmaster.executor.memory.operators.groups import ForwardGroup
from loadmaster.executor.steps.step_graph import StepGraph, tensors
from loadmaster.executor.torch_private.operators import OpOverload


def overwritable(step_graph: StepGraph, groups: Sequence[ForwardGroup], wanted: Collection[fx.Node]) -> dict[int, int]:
    """Map each forward operator to the one whose result it can write its own over, where there is any.

    Args:
        wanted: roots that some way of running the backward pass reads. One that none reads is written over rather,
            and of equal ones the latest, which is the cheapest to have again.
    """
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
    """Bytes of the results that a fused step writes over inputs, each over one of its own.

    Args:
        written: roots that the step makes and that reach memory.
        dying: roots that nothing reads after the step.
    """
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
