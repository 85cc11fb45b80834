"""Relational graph layers of others, for ``graph_layers``: PyG's, compiled and not, and some written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.graph_layer_cases import Case

# torch.compile unrolls loops over relations: minutes for a hundred.
MOST_UNROLLED = 16
Maker = Callable[[], nn.Module]


class NotRunError(Exception):
    """Reason why a rival is not tried."""


def of(model: str, case: Case) -> Iterator[tuple[str, Maker]]:
    """Yield the rivals of a layer: their names, and functions that make them."""
    made: dict[str, dict[str, Maker]] = {
        "rgcn": {
            "pyg RGCNConv": lambda: _typed("RGCNConv", case),
            "pyg FastRGCNConv": lambda: _typed("FastRGCNConv", case),
        },
        "rgat": {"pyg RGATConv": lambda: _typed("RGATConv", case)},
        "hgt": {"pyg HGTConv": lambda: _HGT(case)},
    }
    by_hand: dict[str, Maker] = {"rgcn": lambda: GroupedRGCN(case), "rgat": lambda: GroupedRGAT(case)}
    for name, make in made[model].items():
        yield name, make
        if not case.compiled_rivals:
            continue
        loops = name in ("pyg RGCNConv", "pyg HGTConv")
        yield f"{name} compiled", partial(_compiled, make, loops, case)
    if model in by_hand:
        yield "grouped_mm by hand", by_hand[model]


def _compiled(make: Maker, loops: bool, case: Case) -> nn.Module:
    if loops and case.relations > MOST_UNROLLED:
        raise NotRunError(f"not tried: its loop over {case.relations} relations would be unrolled")
    if not torch.cuda.is_available():
        raise NotRunError("not tried on CPUs")
    module = make()
    module.compile()
    return module


def _pyg(name: str) -> Callable[..., nn.Module]:
    try:
        from torch_geometric import nn as layers
    except ImportError as error:
        raise NotRunError(f"not installed: {error.name}") from error
    found: Callable[..., nn.Module] = getattr(layers, name)
    return found


class _Typed(nn.Module):
    """Layer of PyG over one kind of node, called with edges and their relations."""

    def __init__(self, conv: nn.Module, case: Case) -> None:
        super().__init__()
        self.conv = conv
        self.edges, self.kinds = torch.stack((case.source, case.target)), case.relation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x, self.edges, self.kinds)
        return found


def _typed(name: str, case: Case) -> nn.Module:
    width = case.x.shape[1]
    return _Typed(_pyg(name)(width, width, case.relations), case)


class _HGT(nn.Module):
    """``HGTConv``, called with features by node type and edges by relation."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.x.shape[1]
        self.counts = case.counts
        self.names = [f"t{i}" for i in range(len(case.counts))]
        triples = case.triples
        first = dict(zip(self.names, torch.tensor([0, *case.counts]).cumsum(0).tolist(), strict=False))
        bounds = torch.searchsorted(case.relation, torch.arange(case.relations + 1, device=case.relation.device))
        self.edges = {}
        for r, triple in enumerate(triples):
            part = slice(int(bounds[r]), int(bounds[r + 1]))
            ends = case.source[part] - first[triple[0]], case.target[part] - first[triple[2]]
            self.edges[triple] = torch.stack(ends)
        self.conv = _pyg("HGTConv")(width, width, (self.names, triples), heads=1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.conv(dict(zip(self.names, x.split(self.counts), strict=True)), self.edges)
        parts = [found.get(name) for name in self.names]
        whole = [
            x.new_zeros(count, x.shape[1]) if part is None else part
            for part, count in zip(parts, self.counts, strict=True)
        ]
        return torch.cat(whole)


class _Grouped(nn.Module):
    """Base of layers around ``grouped_mm``: edges are sorted by relation, weights [relations, in, out]."""

    def __init__(self, case: Case, weights: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        if not hasattr(functional, "grouped_mm"):
            raise NotRunError("not tried: this PyTorch has no grouped_mm")
        self.source, self.target, self.kinds = case.source, case.target, case.relation
        counts = torch.bincount(case.relation, minlength=case.relations)
        self.ends = counts.cumsum(0).int()
        for name, shape in weights.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) / math.sqrt(shape[-1])))

    def through(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply rows of edges by their relation's weight."""
        return functional.grouped_mm(x, weight, offs=self.ends)


class GroupedRGCN(_Grouped):
    """RGCN by hand: a mean by relation and target, messages through ``grouped_mm``."""

    def __init__(self, case: Case) -> None:
        width = case.x.shape[1]
        super().__init__(case, {"W": (case.relations, width, width), "W0": (width, width)})
        pair = self.target * case.relations + self.kinds
        _, inverse, counts = torch.unique(pair, return_inverse=True, return_counts=True)
        self.scale = counts[inverse].reciprocal().unsqueeze(-1)

    def forward(self, x: Tensor) -> Tensor:
        message = self.through(x[self.source], self.W) * self.scale.to(x.dtype)
        return (x @ self.W0).index_add(0, self.target, message)


class GroupedRGAT(_Grouped):
    """RGAT by hand: additive attention, both ends through ``grouped_mm``, softmax by scatters."""

    def __init__(self, case: Case) -> None:
        width = case.x.shape[1]
        size = (case.relations, width)
        super().__init__(case, {"W": (*size, width), "s": size, "t": size})

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.through(x[self.source], self.W), self.through(x[self.target], self.W)
        score = (source * self.s[self.kinds]).sum(-1) + (target * self.t[self.kinds]).sum(-1)
        score = functional.leaky_relu(score, 0.2)
        least = score.new_full((len(x),), -torch.inf)
        most = least.scatter_reduce(0, self.target, score.detach(), "amax")
        weight = torch.exp(score - most[self.target])
        total = score.new_zeros(len(x)).index_add(0, self.target, weight)
        attention = weight / total[self.target]
        return torch.zeros_like(x).index_add(0, self.target, attention.unsqueeze(-1) * source)
