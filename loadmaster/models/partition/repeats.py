"""Blocks that repeat, found in a graph: operators with equal surroundings run in one way, with equal placements.

Two operators are equal when they are of one sort, on tensors of the same shapes, and so are the operators that they
read from and are read by, the ones beyond those, and so on for ``ROUNDS`` steps (colour refinement; Weisfeiler and
Leman, 1968). In a network of equal layers, that is the same operator in every layer but the first and the last few.
Ties make plans smaller to search, and as good wherever the best plan treats equal layers equally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from loadmaster.models.partition.problem import PartitionProblem

# Fewer tie what only looks equal, more leave more of the first and last layers by themselves.
ROUNDS = 6


def tied(problem: PartitionProblem) -> PartitionProblem:
    """The problem with ties between what repeats; ties that it has are dropped."""
    tensors = _numbered(
        [(t.shape, t.element_bytes, t.role) for t in problem.tensors],
    )
    operators = _numbered([(o.op, o.signature) for o in problem.operators])
    readers: list[list[tuple[int, int]]] = [[] for _ in tensors]
    makers: list[tuple[int, int] | None] = [None] * len(tensors)
    for n, operator in enumerate(problem.operators):
        for slot, t in enumerate(operator.inputs):
            readers[t].append((n, slot))
        for slot, t in enumerate(operator.outputs):
            makers[t] = (n, slot)
    for _ in range(ROUNDS):
        around = [
            (
                tensors[t],
                None if maker is None else (operators[maker[0]], maker[1]),
                tuple(sorted((operators[n], slot) for n, slot in readers[t])),
            )
            for t, maker in enumerate(makers)
        ]
        tensors = _numbered(around)
        operators = _numbered(
            [
                (operators[n], tuple(tensors[t] for t in o.inputs), tuple(tensors[t] for t in o.outputs))
                for n, o in enumerate(problem.operators)
            ]
        )
    return replace(
        problem,
        tensors=tuple(replace(t, tie=tie) for t, tie in zip(problem.tensors, _ties(tensors), strict=True)),
        operators=tuple(replace(o, tie=tie) for o, tie in zip(problem.operators, _ties(operators), strict=True)),
    )


def _numbered(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _ties(colours: Sequence[int]) -> list[str | None]:
    """Name of each colour that more than one has; None for the others."""
    counts = Counter(colours)
    return [f"alike{colour}" if counts[colour] > 1 else None for colour in colours]
