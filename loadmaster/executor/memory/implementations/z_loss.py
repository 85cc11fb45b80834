"""Finds a z-loss: the squares of the rows' normalizers, added to a cross-entropy to keep them small.

``cross_entropy(logits, targets) + 1e-4 * logits.logsumexp(-1).square().mean()``, with rows masked or not. Its gradient
in the logits is another multiple of each row's softmax, so that the same chunk of logits gives both.
Source: Chowdhery and others, PaLM (2022), section 5, as OLMo and others write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from loadmaster.executor.memory.implementations.emitting import ALIASES, aten, readers, source
from loadmaster.executor.memory.implementations.logit_path import STEPS, Step, added_row, is_map, steps_to
from loadmaster.executor.memory.implementations.loss_reduction import Chain


@dataclass
class ZLoss:
    """One occurrence of a z-loss in a joint graph.

    Attributes:
        logsumexp, steps: that of the rows that count, and the steps from the layer's rows to these.
        chain: from the squares to one number.
        gradient, known: what is added to the gradient of the logits, and the nodes that read the logits for it.
        between: nodes that nobody needs any more, those of the chain left out.
    """

    logsumexp: fx.Node
    steps: list[Step]
    chain: Chain
    gradient: fx.Node
    known: tuple[fx.Node, ...]
    between: list[fx.Node]


def logsumexps(node: fx.Node, path: tuple[fx.Node, ...] = ()) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
    """Every logsumexp of a layer's logits, with the nodes between."""
    for user in node.users:
        if user.target is aten.logsumexp.default:
            yield user, path
        elif user.target in STEPS or is_map(user) or added_row(user) is not None:
            yield from logsumexps(user, (*path, user))


def find(product: fx.Node, logsumexp: fx.Node, path: Sequence[fx.Node]) -> ZLoss | None:
    """The z-loss that a logsumexp of a product's rows is part of, up to the squares; None for any other use of it."""
    rows, classes = product.meta["val"].shape
    found = steps_to(path, rows, classes)
    logits, dims, *keep = logsumexp.args
    assert isinstance(logits, fx.Node)
    if found is None or keep not in ([], [False]) or dims not in ([found[1]], [found[1] - logits.meta["val"].dim()]):
        return None
    softmax = _softmax(logits, logsumexp)
    if softmax is None:
        return None
    gradient, upstream, between = softmax
    between += [logsumexp]
    squared = logsumexp
    known: set[fx.Node] = set()
    casts = [u for u in logsumexp.users if u.target is aten._to_copy.default]
    if casts and upstream.target is aten._to_copy.default:  # squared in float32
        squared = casts[0]
        known.add(squared)
        between += [squared, upstream]
        upstream = upstream.args[0]  # type: ignore[assignment]
    powers = {u.args[1]: u for u in squared.users if u.target is aten.pow.Tensor_Scalar}
    if set(powers) != {1, 2} or upstream.target is not aten.mul.Tensor:
        return None
    of_squares, slope = upstream.args
    if not isinstance(slope, fx.Node) or slope.target is not aten.mul.Scalar or slope.args != (powers[1], 2):
        return None
    known |= {*powers.values(), *between}
    if any(reader not in known for of in (logsumexp, squared) for reader in readers(of, ALIASES, between)):
        return None
    assert isinstance(of_squares, fx.Node)
    between += [powers[1], slope, upstream]
    return ZLoss(logsumexp, found[0], Chain(powers[2], of_squares), gradient, (*path, *between), between)


def _softmax(logits: fx.Node, logsumexp: fx.Node) -> tuple[fx.Node, fx.Node, list[fx.Node]] | None:
    """The backward of a logsumexp, ``upstream * exp(logits - logsumexp)``; with its upstream, and what is between."""
    for shifted in logits.users:
        normalizer = shifted.args[1] if shifted.target is aten.sub.Tensor and shifted.args[0] is logits else None
        if not _spreads(normalizer) or source(normalizer.args[0]) is not logsumexp:  # type: ignore[union-attr]
            continue
        exp = next(iter(shifted.users), shifted)
        product = next(iter(exp.users), exp)
        if len(shifted.users) != 1 or exp.target is not aten.exp.default or len(exp.users) != 1:
            return None
        spread = product.args[0]
        if product.target is not aten.mul.Tensor or product.args[1] is not exp or not _spreads(spread):
            return None
        assert isinstance(normalizer, fx.Node) and isinstance(spread, fx.Node)
        upstream = spread.args[0]
        assert isinstance(upstream, fx.Node)
        return product, upstream, [normalizer, shifted, exp, product, spread]
    return None


def _spreads(node: object) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.unsqueeze.default
