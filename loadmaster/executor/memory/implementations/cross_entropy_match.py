"""Finds linear layer -> cross-entropy in a joint graph: everything that the chunked operator would compute instead.

Forward: mm or addmm -> (scaled or capped, views, a cast, rows chosen and arranged) -> log_softmax -> (views, a cast) ->
nll_loss. Backward: nll_loss_backward -> log_softmax_backward -> (the same backwards) -> the products that give the
gradients of hidden, weight and bias. With label smoothing, without class weights, a second branch goes through the sum
of each row's log-probabilities, with a z-loss another one around them. Losses of single rows that are weighted, and
added up or averaged, are the same as a weighted sum.

The cast behind log_softmax is that of CUDA's autocast: ``cross_entropy`` asks for log-probabilities in the format of
the logits, and autocast for a loss in float32. The chunked operator computes all of it in float32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import fx

from loadmaster.executor.costs.traffic import defaults
from loadmaster.executor.memory.implementations import z_loss
from loadmaster.executor.memory.implementations.emitting import ALIASES, aten, readers, source
from loadmaster.executor.memory.implementations.logit_path import (
    BACKWARD_STEPS,
    COPIES,
    STEPS,
    VIEWS,
    Back,
    Maps,
    Step,
    added_row,
    is_map,
    logits_of,
    steps_to,
)
from loadmaster.executor.memory.implementations.loss_reduction import Chain

NONE, MEAN, SUM = range(3)  # PyTorch's numbers for the reductions
FORWARD_OF: dict[object, object] = {
    aten.nll_loss_backward.default: aten.nll_loss_forward.default,
    aten.nll_loss2d_backward.default: aten.nll_loss2d_forward.default,
}
"""Losses of rows whose classes come last, and of those whose classes come second."""
_ALIKE = VIEWS | COPIES
"""Operators that may stand between log-probabilities and their loss."""
PRODUCTS = (aten.mm.default, aten.addmm.default)
TRANSPOSE = aten.t.default


@dataclass(frozen=True)
class _Behind:
    """Log-probabilities of a linear layer, as a loss reads them through views. ``path`` leads from the layer's product
    to what the log-probabilities are of, ``steps`` from the layer's rows to those of the targets. ``added`` is a bias,
    of as many elements as there are classes, that the model adds to the layer's result by itself."""

    product: fx.Node
    path: list[fx.Node]
    log_probabilities: fx.Node
    views: list[fx.Node]
    steps: list[Step]
    added: fx.Node | None
    maps: Maps

    @property
    def changes(self) -> list[fx.Node]:
        """Nodes of the path that change logits."""
        return [node for node in self.path if node.target not in STEPS]


@dataclass
class Match:
    """One occurrence of a linear layer with a cross-entropy in a joint graph.

    Attributes:
        chain: from the loss to what the new loss replaces.
        reduction: MEAN over the rows that count, or SUM; what rows are weighted with and divided by, the chain says.
        between: nodes that nobody needs any more; one that others read as well stays.
        hidden_gradients, weight_gradients, bias_gradients: backward products to be replaced, by what they compute.
        scale_gradient: of a tensor that scales the logits, likewise.
    """

    behind: _Behind
    loss_forward: fx.Node
    loss_backward: fx.Node
    chain: Chain
    reduction: int
    z_loss: z_loss.ZLoss | None = None
    smoothing: float = 0.0
    between: list[fx.Node] = field(default_factory=list)
    hidden_gradients: list[fx.Node] = field(default_factory=list)
    weight_gradients: list[fx.Node] = field(default_factory=list)
    bias_gradients: list[fx.Node] = field(default_factory=list)
    scale_gradient: fx.Node | None = None

    @property
    def product(self) -> fx.Node:
        return self.behind.product

    @property
    def operands(self) -> tuple[fx.Node, fx.Node, fx.Node | None]:
        """Operands of the layer: hidden [rows, width], weight [width, classes], bias."""
        args = self.product.args
        bias, hidden, weight = args if self.product.target is aten.addmm.default else (self.behind.added, *args)
        assert isinstance(hidden, fx.Node) and isinstance(weight, fx.Node)
        assert bias is None or isinstance(bias, fx.Node)
        return hidden, weight, bias


def find(loss_backward: fx.Node) -> Match | None:
    """The occurrence that this backward of an nll_loss belongs to, or None."""
    upstream, probabilities, *plain, total = loss_backward.args
    reduction = plain[2]
    assert isinstance(upstream, fx.Node) and isinstance(probabilities, fx.Node) and isinstance(reduction, int)
    behind = _behind(probabilities, plain[0])
    if behind is None:
        return None
    log_probabilities = behind.log_probabilities
    forwards = [u for u in probabilities.users if u.target is FORWARD_OF[loss_backward.target]]
    if len(forwards) != 1 or forwards[0].args[1:] != tuple(plain):
        return None
    results = {user.args[1]: user for user in forwards[0].users if user.target is operator.getitem}
    if 0 not in results or (1 in results and set(results[1].users) - {loss_backward}) or results.get(1) is not total:
        return None
    match = Match(behind, forwards[0], loss_backward, Chain(results[0], upstream), reduction)
    match.between += [*results.values(), loss_backward, *behind.views]
    if not match.chain.to_number():
        return None
    if reduction == NONE:
        match.reduction = SUM
    known = {forwards[0], loss_backward}
    gradient = loss_backward
    sums = [u for u in log_probabilities.users if u.target is aten.sum.dim_IntList]
    if sums:
        joined = _match_smoothing(match, sums[0])
        if len(sums) != 1 or joined is None:
            return None
        gradient = joined
        known.add(sums[0])
    softmax_backward = list(readers(gradient, _ALIKE, match.between))
    if len(softmax_backward) != 1 or softmax_backward[0].target is not aten._log_softmax_backward_data.default:
        return None
    known.add(softmax_backward[0])
    if any(user not in known for user in readers(log_probabilities, _ALIKE, match.between)):
        return None
    match.between.append(softmax_backward[0])
    before = _match_z_loss(match, softmax_backward[0])
    return match if before is not None and _match_layer(match, before) else None


def _match_z_loss(match: Match, gradient: fx.Node) -> fx.Node | None:
    """Note the z-loss in the match; returns the gradient of what it reads, or None where it does not fit."""
    behind = match.behind
    found = list(z_loss.logsumexps(behind.product))
    if not found:
        return gradient
    z = z_loss.find(behind.product, *found[0])
    if (
        len(found) != 1
        or z is None
        or behind.maps.shifts
        or [n for n in found[0][1] if n.target not in STEPS] != behind.changes
    ):
        return None
    for chain in (match.chain, z.chain):
        if not chain.to_number():
            return None
        while (reader := chain.only_reader) is not None and reader.target is not aten.add.Tensor:
            if not chain.climb():
                return None
    total, ends = match.chain.only_reader, (match.chain.value, z.chain.value)
    upstreams = {_before_casts(chain.gradient) for chain in (match.chain, z.chain)}
    if total is None or total.kwargs or set(total.args) != set(ends) or len(upstreams) != 1:
        return None
    joined = [list(readers(one, BACKWARD_STEPS, match.between)) for one in (gradient, z.gradient)]
    if len(joined[0]) != 1 or joined[0] != joined[1] or joined[0][0].target is not aten.add.Tensor:
        return None
    match.z_loss, match.chain.value, match.chain.gradient = z, total, upstreams.pop()
    match.between += [*ends, *z.between, *z.chain.between, joined[0][0]]
    return joined[0][0]


def _before_casts(node: fx.Node) -> fx.Node:
    """Return the node before all casts: of two terms one may be less precise than their sum."""
    while node.target in COPIES and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _match_layer(match: Match, gradient: fx.Node) -> bool:
    """Note the products that read the gradient of the logits; returns whether nothing else reads it, or the logits."""
    behind = match.behind
    known = {*behind.path, behind.log_probabilities, *(match.z_loss.known if match.z_loss else ())}
    for node in filter(is_map, reversed(behind.path)):
        found = list(readers(gradient, BACKWARD_STEPS, match.between))
        back = Back.find(node, found, {gradient, *match.between})
        if back is None:
            return False
        gradient, match.scale_gradient = back.gradient, back.of_scale or match.scale_gradient
        match.between += back.between
        known.update(back.between)
    for node in (behind.product, *behind.path):
        if any(user not in known for user in readers(node, ALIASES, match.between)):
            return False
    products = list(readers(gradient, BACKWARD_STEPS, match.between))
    return all(_classify(match, read, user) for read, user in _pairs(products, match))


def _behind(probabilities: fx.Node, targets: object) -> _Behind | None:
    """Find the linear layer behind a loss's log-probabilities; None where the loss reads anything else."""
    views: list[fx.Node] = []
    node = source(probabilities)
    while node is not None and node.target in _ALIKE:
        views.insert(0, node)
        node = source(node.args[0])
    if node is None or node.target is not aten._log_softmax.default:
        return None
    log_probabilities = node
    path: list[fx.Node] = []
    product = log_probabilities.args[0]
    while isinstance(product, fx.Node) and (product.target in STEPS or is_map(product) or added_row(product)):
        path.insert(0, product)
        product = logits_of(product)
    if not isinstance(product, fx.Node) or product.target not in PRODUCTS:
        return None
    if not set(product.kwargs.values()) <= {1}:  # alpha and beta of addmm
        return None
    changes = [n for n in path if n.target not in STEPS]
    added = [row for n in changes if (row := added_row(n)) is not None]
    # One bias in all, and that before the maps.
    if len(added) > (product.target is aten.mm.default) or not all(map(is_map, changes[len(added) :])):
        return None
    maps = Maps.of(changes[len(added) :])
    if maps is None:
        return None
    rows, classes = product.meta["val"].shape
    found, whole = steps_to(path, rows, classes), steps_to([*path, *views], rows, classes)
    if found is None or whole is None:
        return None
    dims = log_probabilities.meta["val"].dim()
    if log_probabilities.args[1] not in (found[1], found[1] - dims):
        return None
    shape = list(probabilities.meta["val"].shape)
    del shape[whole[1]]
    assert isinstance(targets, fx.Node)
    if shape != list(targets.meta["val"].shape):
        return None
    return _Behind(product, path, log_probabilities, views, whole[0], added[0] if added else None, maps)


def _match_smoothing(match: Match, row_sums: fx.Node) -> fx.Node | None:
    """Note the smoothing in the match; returns the node that joins both gradients, or None where it does not fit.
    Forward: ``kept * nll + share * reduced(-row_sums)``, with rows that are ignored masked out. Backward: the same two
    factors of one upstream gradient."""
    _, targets, class_weights, reduction, ignored = match.loss_forward.args
    chain = _only_readers(row_sums)
    expected = [aten.neg.default, aten.masked_fill.Scalar, aten.sum.default]
    expected += [aten.div.Tensor] if reduction == MEAN else []
    expected += [aten.mul.Scalar, aten.add.Tensor]
    targets_of_chain = [n.target for n in chain[1 : len(expected) + 1]]
    if (
        match.reduction != reduction
        or class_weights is not None
        or row_sums.args[1] not in ([1], [-1])
        or targets_of_chain != expected
    ):
        return None
    masked, shared, loss = chain[2], chain[len(expected) - 1], chain[len(expected)]
    is_ignored = masked.args[1]
    if not _calls(is_ignored, aten.eq.Scalar, targets, ignored):
        return None
    assert isinstance(is_ignored, fx.Node)
    if reduction == MEAN and not _is_count(chain[4].args[1], is_ignored):
        return None
    nll = [n for n in loss.all_input_nodes if n is not shared]
    share = shared.args[1]
    if len(nll) != 1 or nll[0].target is not aten.mul.Scalar or nll[0].args[0] is not match.chain.value:
        return None
    kept = nll[0].args[1]
    assert isinstance(share, float | int) and isinstance(kept, float | int)
    smoothing = share * match.product.meta["val"].shape[1]
    if not math.isclose(kept + smoothing, 1.0, abs_tol=1e-9) or len(match.chain.value.users) != 1:
        return None
    joined = list(readers(match.loss_backward, COPIES, match.between))
    if (
        len(joined) != 1
        or joined[0].target is not aten.add.Tensor
        or not _calls(match.chain.gradient, aten.mul.Scalar, None, kept)
    ):
        return None
    spread = next(n for n in joined[0].all_input_nodes if _before_casts(n) is not match.loss_backward)
    upstream = match.chain.gradient.args[0]
    branch = _up_to_factor(spread, share)
    if not branch or branch[-1].args[0] is not upstream:
        return None
    assert isinstance(upstream, fx.Node)
    match.between += [*chain[: len(expected)], nll[0], loss, *branch, match.chain.gradient, joined[0]]
    match.chain.value, match.chain.gradient, match.smoothing = loss, upstream, smoothing
    return joined[0]


def _only_readers(node: fx.Node) -> list[fx.Node]:
    """The node, its only reader, that one's only reader, and so on."""
    chain = [node]
    while len(chain[-1].users) == 1:
        chain.append(next(iter(chain[-1].users)))
    return chain


def _up_to_factor(node: fx.Node, share: float) -> list[fx.Node]:
    """Nodes from the spread gradient [rows, classes] up to the ``upstream * share`` behind it; empty if not found."""
    through = defaults("expand unsqueeze neg _to_copy") | {aten.masked_fill.Scalar, aten.div.Tensor}
    chain = [node]
    while chain[-1].target in through and isinstance(chain[-1].args[0], fx.Node):
        chain.append(chain[-1].args[0])
    return chain if _calls(chain[-1], aten.mul.Scalar, None, share) else []


def _is_count(node: object, is_ignored: fx.Node) -> bool:
    """Return whether the node is the number of rows that count."""
    if not isinstance(node, fx.Node) or node.target is not aten.sum.default:
        return False
    return _calls(node.args[0], aten.bitwise_not.default, is_ignored)


def _calls(node: object, target: object, *args: object) -> bool:
    """Return whether the node calls this operator with these arguments, None standing for any."""
    if not isinstance(node, fx.Node) or node.target is not target or len(node.args) != len(args):
        return False
    return all(want is None or have == want for have, want in zip(node.args, args, strict=True))


def _pairs(found: list[fx.Node], match: Match) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Each reader with the logits' gradient that it reads."""
    gradients = set(match.between)
    for reader in dict.fromkeys(found):
        for read in reader.all_input_nodes:
            if read in gradients:
                yield read, reader


def _classify(match: Match, read: fx.Node, user: fx.Node) -> bool:
    """Note what a reader of the logits' gradient computes; False if it is none of the three gradients."""
    hidden, weight, bias = match.operands
    if read.meta["val"].shape != match.product.meta["val"].shape:
        return False
    if user.target is aten.mm.default and user.args[0] is read:
        if _untransposed(user.args[1]) != _untransposed(weight, 1):
            return False
        match.hidden_gradients.append(user)
    elif user.target is TRANSPOSE:
        match.between.append(user)
        for product in user.users:
            if product.target is not aten.mm.default or product.args != (user, hidden):
                return False
            match.weight_gradients.append(product)
    elif user.target is aten.sum.dim_IntList and bias is not None and user.args[1] == [0]:
        match.bias_gradients.append(user)
    else:
        return False
    return True


def _untransposed(node: object, transposes: int = 0) -> tuple[object, bool]:
    """The node before all transposes, and whether their number, with those given, is odd."""
    while isinstance(node, fx.Node) and node.target is TRANSPOSE:
        node, transposes = node.args[0], transposes + 1
    return node, transposes % 2 == 1
