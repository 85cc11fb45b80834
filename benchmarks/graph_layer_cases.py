"""Graphs of the sizes of [Wu24] Table 3.3 with features and labels, for timing layers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from loadmaster.executor.graph.compiled.module import Launch
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.datasets import data_set, generated

WIDTH = 64
CUDA = torch.cuda.is_available()


@dataclass(frozen=True)
class Case:
    """A graph with features and labels on the device."""

    name: str
    source: Tensor
    target: Tensor
    relation: Tensor
    counts: tuple[int, ...]
    relations: int
    x: Tensor
    labels: Tensor
    launch: Launch
    compiled_rivals: bool

    @property
    def triples(self) -> list[tuple[str, str, str]]:
        """List (source type, name, target type) of every relation, by its first edge."""
        bounds = np.cumsum(self.counts)
        first = torch.searchsorted(self.relation.cpu(), torch.arange(self.relations))
        ends = (np.searchsorted(bounds, end.cpu()[first].numpy(), side="right") for end in (self.source, self.target))
        return [(f"t{a}", f"r{r}", f"t{b}") for r, (a, b) in enumerate(zip(*ends, strict=True))]

    @cached_property
    def graph(self) -> Graph:
        """Graph in the form that our layers take."""
        counts = {f"t{i}": count for i, count in enumerate(self.counts)}
        return Graph(self.source, self.target, node_counts=counts, relation=self.relation, relations=self.triples)


def case(name: str, dtype: torch.dtype, arguments: argparse.Namespace) -> Case:
    """Make a synthetic graph by the name of the data set that it resembles."""
    if arguments.small:
        generator = np.random.default_rng(0)
        relation = np.sort(generator.integers(4, size=900)).astype(np.int32)
        source = (relation % 2 * 60 + generator.integers(60, size=900)).astype(np.int32)
        target = (relation // 2 * 60 + generator.integers(60, size=900)).astype(np.int32)
        counts: tuple[int, ...] = (60, 60)
        relations = 4
    else:
        source, target, relation = generated(name)
        counts, relations = data_set(name).node_type_counts, data_set(name).relations
    torch.manual_seed(0)
    device = "cuda" if CUDA else "cpu"
    ids = [torch.from_numpy(x).long().to(device) for x in (source, target, relation)]
    nodes = sum(counts)
    x = torch.randn(nodes, WIDTH, device=device, dtype=dtype).requires_grad_()
    labels = torch.randint(WIDTH, (nodes,), device=device)
    more = arguments.launch, not arguments.without_compiled
    return Case(name, ids[0], ids[1], ids[2], counts, relations, x, labels, *more)
