"""Graph layers in plain PyTorch, every value on every edge: what compiled layers are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from loadmaster.models.graph.program import Program


@dataclass(frozen=True)
class PlainGraph:
    """Edges in the order in which they were given; ``node_type`` of each node."""

    source: Tensor
    target: Tensor
    relation: Tensor
    node_type: Tensor

    @property
    def node_count(self) -> int:
        return self.node_type.numel()

    def degree(self, of_relation: bool) -> Tensor:
        key = self.target * 1000 + self.relation if of_relation else self.target
        return torch.bincount(key)[key]

    def reduced(self, x: Tensor, how: str) -> Tensor:
        """For each node, over the edges that end at it."""
        index = self.target.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        empty = x.new_zeros(self.node_count, *x.shape[1:])
        if how == "logsumexp":
            most = empty.scatter_reduce(0, index, x.detach(), "amax", include_self=False)
            total = empty.index_add(0, self.target, torch.exp(x - most[self.target]))
            return torch.where(total > 0, torch.log(total.clamp(min=1e-300)) + most, 0.0)
        if how == "sum":
            return empty.index_add(0, self.target, x)
        name = {"mean": "mean", "max": "amax", "min": "amin"}[how]
        return empty.scatter_reduce(0, index, x, name, include_self=False)

    def softmax(self, score: Tensor) -> Tensor:
        e = torch.exp(score)
        return e / e.new_zeros(self.node_count, *e.shape[1:]).index_add(0, self.target, e)[self.target]


def rgcn(g: PlainGraph, h: Tensor, w: Mapping[str, Tensor]) -> Tensor:
    message = torch.einsum("ek,ekm->em", h[g.source], w["W"][g.relation])
    return g.reduced(message / g.degree(True).unsqueeze(-1), "sum") + h @ w["W0"]


def rgat(g: PlainGraph, h: Tensor, w: Mapping[str, Tensor]) -> Tensor:
    heads = w["W"].dim() == 4
    each = {name: x[g.relation] if heads else x[g.relation].unsqueeze(1) for name, x in w.items()}
    source = torch.einsum("ek,ehkm->ehm", h[g.source], each["W"])
    target = torch.einsum("ek,ehkm->ehm", h[g.target], each["W"])
    score = (source * each["s"]).sum(-1) + (target * each["t"]).sum(-1)
    attention = g.softmax(functional.leaky_relu(score, 0.2))
    return g.reduced((attention.unsqueeze(-1) * source).flatten(1), "sum")


def hgt(g: PlainGraph, h: Tensor, w: Mapping[str, Tensor]) -> Tensor:
    heads = w["A"].shape[1] if w["A"].dim() == 4 else 1
    key, query, value = (
        torch.einsum("nk,nkm->nm", h, w[name][g.node_type]).unflatten(-1, (heads, -1)) for name in ("K", "Q", "V")
    )
    a, m = (w[name].view(len(w[name]), heads, *w[name].shape[-2:])[g.relation] for name in ("A", "M"))
    through = torch.einsum("ehk,ehkm->ehm", key[g.source], a)
    score = (query[g.target] * through).sum(-1) * w["p"].view(-1, heads)[g.relation] / math.sqrt(through.shape[-1])
    message = torch.einsum("ehk,ehkm->ehm", value[g.source], m)
    mixed = g.reduced((g.softmax(score).unsqueeze(-1) * message).flatten(1), "sum")
    return torch.einsum("nk,nkm->nm", mixed, w["O"][g.node_type])


PLAIN = {"rgcn": rgcn, "rgat": rgat, "hgt": hgt}
_LEVELS = {"one": "one", "relation": "relation", "node_type": "node_type", "node": "node"}


def evaluated(program: Program, g: PlainGraph, given: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs of a forward pass as it was traced: each value on all nodes or on all edges."""
    made: list[Tensor] = []
    levels = [_LEVELS.get(typed.space, "edge") for typed in program.types]
    rows = {
        ("edge", "relation"): g.relation,
        ("edge", "one"): torch.zeros_like(g.relation),
        ("node", "node_type"): g.node_type,
        ("node", "one"): torch.zeros_like(g.node_type),
    }
    for n, value in enumerate(program.values):
        if value.op in ("feature", "parameter"):
            x = given[value.name]
            made.append(x.unsqueeze(0) if value.op == "parameter" and value.space == "one" else x)
        elif value.op == "degree":
            made.append(g.degree(value.space == "target_pair").to(torch.float64))
        elif value.op in ("source", "target"):
            made.append(made[value.inputs[0]][getattr(g, value.op)])
        elif value.op == "aggregate":
            at_edges = made[value.inputs[0]]
            if levels[value.inputs[0]] != "edge":
                at_edges = at_edges[rows["edge", levels[value.inputs[0]]]]
            made.append(g.reduced(at_edges, value.reduce))
            levels[n] = "node"
        elif value.op == "as_node":
            made.append(made[value.inputs[0]])
        else:
            xs = []
            for i in value.inputs:
                x = made[i]
                if levels[i] == "node" and levels[n] == "edge":  # an aggregate, read by the edges that end there
                    x = x[g.target]
                elif levels[i] != levels[n]:
                    x = x[rows[levels[n], levels[i]]]
                xs.append(x)
            made.append(_computed(value, *xs))
    return [made[n] for n in program.outputs]


def _computed(value, a: Tensor, b: Tensor | None = None) -> Tensor:
    op, number, count = value.op, value.number, value.count
    if op == "linear":
        if a.dim() == 2 and b.dim() == 3:
            return (a.unsqueeze(-1) * b).sum(1)
        a = a if a.dim() == 3 else a.unsqueeze(1)
        return (a.unsqueeze(-1) * (b if b.dim() == 4 else b.unsqueeze(1))).sum(2)
    if op == "dot":
        a, b = (x if x.dim() == max(a.dim(), b.dim()) else x.unsqueeze(1) for x in (a, b))
        return (a * b).sum(-1)
    if op in ("add", "sub", "mul", "div"):
        a, b = (x if x.dim() == max(a.dim(), b.dim()) else x.unsqueeze(-1) for x in (a, b))
        return getattr(torch, op)(a, b)
    one = {
        "neg": torch.neg,
        "exp": torch.exp,
        "log": torch.log,
        "relu": torch.relu,
        "elu": functional.elu,
        "gelu": functional.gelu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "reciprocal": torch.reciprocal,
        "leaky_relu": lambda x: functional.leaky_relu(x, number),
        "scale": lambda x: x * number,
        "shift": lambda x: x + number,
        "split_heads": lambda x: x.unflatten(-1, (count, -1)),
        "join_heads": lambda x: x.flatten(-2),
        "part": lambda x: x[..., int(number) : int(number) + count],
        "row_sum": lambda x: x.sum(-1),
        "head_sum": lambda x: x.sum(-2),
    }
    return torch.cat((a, b), -1) if op == "concat" else one[op](a)
