"""The registry of implementations: other ways to compute a backward operator.

A *backward alternative* computes what a node of the joint forward-backward graph computes, from something smaller
or cheaper to keep: the sign bits of a ReLU instead of its output, 8-bit offsets instead of the 64-bit indices of a
max-pool. The planner chooses by cost. What one saves follows from the shapes; what it costs is measured, or estimated
from the bytes that it moves and from what you say with ``torch.utils.flop_counter.register_flop_formula`` and
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
    """One place in a joint graph where an alternative can replace the node ``backward``.

    Attributes:
        sources: forward nodes it reads (kept or recomputed), the encoded value excluded.
        parent: forward node whose result is encoded (None: nothing is encoded).
    """

    backward: fx.Node
    sources: tuple[fx.Node, ...] = ()
    parent: fx.Node | None = None

    @property
    def gradient(self) -> fx.Node:
        """The gradient that the backward node turns into another: its first argument."""
        gradient = self.backward.args[0]
        assert isinstance(gradient, fx.Node)
        return gradient

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

    def sites(self, joint: fx.GraphModule) -> Sequence[Site]:
        """Find all places where the alternative applies, in graph order. Must not change the graph."""

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Emit nodes that compute the encoded result from ``site.parent``; only called where there is a parent."""

    def emit(self, graph: fx.Graph, site: Site, value: Value, encoded: fx.Node | None) -> fx.Node:
        """Emit nodes that compute what ``site.backward`` computes: same shape, strides and dtype."""


class NothingEncoded:
    """Base class of alternatives that read kept or recomputed results as they are: their sites have no parent."""

    def encode(self, graph: fx.Graph, site: Site, value: Value) -> fx.Node:
        """Raise an AssertionError: there is nothing to encode."""
        raise AssertionError(f"{type(self).__name__} encodes nothing")


_alternatives: dict[str, BackwardAlternative] = {}


@dataclass(frozen=True)
class ImplementationFilter:
    """The implementations that plans may choose from, next to those of PyTorch's own graph; all by default.

    For ablations, and for a model where one of them is not wanted. The operators of a step follow from it, and their
    fingerprint with them: a plan is refused where the filter is another than at its capture, if that changes any
    choice. Recomputation from saved statistics or seeds is not a choice, and stays.

    Attributes:
        exclude: names of registered alternatives to leave out.
        inline: whether a fused backward operator may compute the elementwise forward results that it reads again
            inside itself, from their inputs (Inductor only).
    """

    exclude: tuple[str, ...] = ()
    inline: bool = True

    def alternatives(self) -> tuple[BackwardAlternative, ...]:
        """The registered alternatives that are left; an InputError if a name to leave out is not registered."""
        return alternatives(self.exclude)


EVERYTHING = ImplementationFilter()


def register(alternative: BackwardAlternative) -> None:
    """Add an alternative; planners see it from the next capture on. InputError: it lacks a method, or another one has
    its name."""
    if not isinstance(alternative, BackwardAlternative):
        remedy = "Give it a name and the methods sites, encode and emit."
        raise InputError("alternative", alternative, "is not a backward alternative", remedy)
    if not alternative.name or alternative.name in _alternatives:
        remedy = "Choose another name, or unregister the first one."
        raise InputError("alternative.name", alternative.name, "is empty or already registered", remedy)
    _alternatives[alternative.name] = alternative


def unregister(name: str) -> None:
    """Take an alternative out for everybody in this process. InputError: no alternative has this name."""
    _expect_known(name, "name")
    del _alternatives[name]


def alternatives(exclude: Collection[str] = ()) -> tuple[BackwardAlternative, ...]:
    """The registered alternatives in the order of registration, without those named in ``exclude``. InputError:
    ``exclude`` names an alternative that is not registered."""
    for name in exclude:
        _expect_known(name, "exclude")
    return tuple(a for name, a in _alternatives.items() if name not in exclude)


def _expect_known(name: str, field: str) -> None:
    if name not in _alternatives:
        known = ", ".join(_alternatives) or "none"
        raise InputError(field, name, "is not a registered alternative", f"Choose one of: {known}.")
