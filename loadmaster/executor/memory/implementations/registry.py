"""The registry of implementations: other ways to compute a backward operator, or to compute a result again.

A *backward alternative* computes what a node of the joint forward-backward graph computes, from something smaller
or cheaper to keep: the sign bits of a ReLU instead of its output, 8-bit offsets instead of the 64-bit indices of a
max-pool. A *recompute* is a cheaper way to compute a forward result a second time. The planner chooses between
them by cost. What one saves follows from the shapes; what it costs is measured, or estimated from the bytes that it
moves and from what you say with ``torch.utils.flop_counter.register_flop_formula`` and
:func:`loadmaster.executor.costs.workspace.register_workspace`. Write your own by following
:class:`BackwardAlternative` and hand it to :func:`register`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import fx

from loadmaster.errors import InputError

Value = Callable[[fx.Node], fx.Node]
"""Maps a node of the joint graph to the node of the new graph that holds its value there."""


@dataclass(frozen=True)
class Site:
    """One place in a joint graph where an alternative applies.

    Attributes:
        backward: the backward node that the alternative can replace.
        sources: forward nodes it reads (kept or recomputed), the encoded value excluded.
        parent: forward node whose result is encoded (None: nothing is encoded).
    """

    backward: fx.Node
    sources: tuple[fx.Node, ...] = ()
    parent: fx.Node | None = None

    @property
    def reads(self) -> tuple[fx.Node, ...]:
        """Forward nodes that it reads: the sources and the parent."""
        return self.sources if self.parent is None else (*self.sources, self.parent)


@runtime_checkable
class BackwardAlternative(Protocol):
    """Another way to compute backward nodes. It must compute the same numbers as the node that it replaces."""

    @property
    def name(self) -> str:
        """Name of the alternative, unique, stable and short ("relu_mask"): plans and users refer to it."""
        ...

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Find all places where the alternative applies, in graph order. Must not change the graph."""
        ...

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Emit nodes that compute the encoded result from ``site.parent``; only called where there is a parent."""
        ...

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        """Emit nodes that compute what ``site.backward`` computes: same shape, strides and dtype."""
        ...


@dataclass(frozen=True)
class Recompute:
    """A cheaper way to compute ``node`` a second time.

    Attributes:
        name: what the recomputation is called in plans.
        node: the forward node.
        sources: forward nodes that it reads. Those that are not inputs of the original operator (saved statistics,
            a seed) are small and must be kept from the forward pass, never recomputed.
        emit: emits the nodes that compute ``node`` again, and returns the last of them.
    """

    name: str
    node: fx.Node
    sources: tuple[fx.Node, ...]
    emit: Callable[[fx.Graph, Value], fx.Node]


RecomputeRule = Callable[[fx.Node], Recompute | None]

_alternatives: dict[str, BackwardAlternative] = {}
_recomputes: dict[str, RecomputeRule] = {}


def register(alternative: BackwardAlternative) -> None:
    """Add an alternative; planners see it from the next capture on.

    Raises:
        InputError: it lacks a method, or another one has its name.
    """
    if not isinstance(alternative, BackwardAlternative):
        raise InputError(
            "alternative",
            alternative,
            "is not a backward alternative",
            "Give it a name and the methods sites, encode and emit.",
        )
    if not alternative.name or alternative.name in _alternatives:
        raise InputError(
            "alternative.name",
            alternative.name,
            "is empty or already registered",
            "Choose another name, or unregister the first one.",
        )
    _alternatives[alternative.name] = alternative


def unregister(name: str) -> None:
    """Take an alternative out for everybody in this process.

    Raises:
        InputError: no alternative has this name.
    """
    _expect_known(name, "name")
    del _alternatives[name]


def alternatives(exclude: Collection[str] = ()) -> tuple[BackwardAlternative, ...]:
    """The registered alternatives in the order of registration, without those named in ``exclude``.

    Raises:
        InputError: ``exclude`` names an alternative that is not registered.
    """
    for name in exclude:
        _expect_known(name, "exclude")
    return tuple(a for name, a in _alternatives.items() if name not in exclude)


def register_recompute(name: str, rule: RecomputeRule) -> None:
    """Add a rule that finds a cheaper recomputation of a node, or None.

    Raises:
        InputError: another rule has this name.
    """
    if not name or name in _recomputes:
        raise InputError("name", name, "is empty or already registered", "Choose another name.")
    _recomputes[name] = rule


def recompute_node(node: fx.Node) -> Recompute | None:
    """Find a cheaper way to compute this forward node a second time; None: run the node itself again.

    Where this is not None the node must only be computed again through it: running the operator itself again would
    repeat its side effects (the running statistics of BatchNorm).
    """
    for rule in _recomputes.values():
        found = rule(node)
        if found is not None:
            return found
    return None


def _expect_known(name: str, field: str) -> None:
    if name not in _alternatives:
        known = ", ".join(_alternatives) or "none"
        raise InputError(field, name, "is not a registered alternative", f"Choose one of: {known}.")
