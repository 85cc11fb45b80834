"""Gathers that several operators share: what more than one operator of a pass reads gets a copy that they read instead.

A copy may be placed otherwise than its original. It is brought there once, before the first of its readers, and stays
until the last one has run; the readers pay nothing. Or it is placed as its original: the two are one, and each reader
brings what it needs, as without a copy. So a problem with copies has every plan that it has without them.

Elementwise operators run where their tensors are and go on reading the original. Passes have copies of their own:
what the backward pass reads is brought again, for between the passes it would take memory. A parameter that both read
has one more copy, for both: it is gathered once, and state and gradient stay divided (ZeRO-2, [Raj20]), or it
is placed as the parameter, and gathered in each pass (ZeRO-3). The plan chooses for each.

Example: queries, keys and values are three products of one tensor that is split along the sequence, and need it whole.
Without a copy it is gathered three times; its copy is gathered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadmaster.models.partition.problem import Need, Operator, PartitionProblem, Signature, Strategy, Tensor
from loadmaster.models.partition.sides import runs_where_its_tensors_lie


def copy_of(rank: int) -> Signature:
    """The signature of a copy of a tensor with so many dimensions."""
    rows = tuple(Strategy(f"i{d}", (Need(f"S{d}"),), (f"S{d}",)) for d in range(rank))
    number = Strategy("number", (Need("R"),), ("R",), divides=False)
    return Signature(f"copy, rank {rank}", rows or (number,), copy=True)


def with_copies(problem: PartitionProblem, backward_from: int) -> PartitionProblem:
    """The problem with a copy of everything that several operators of a pass read, and of parameters that both passes
    read; operators from number ``backward_from`` on are not of the forward pass. Tensors keep their numbers; copies
    come after them."""
    forward, backward = range(backward_from), range(backward_from, len(problem.operators))
    shared = [
        ("both passes", t, readers)
        for t, readers in _readers(problem, range(len(problem.operators))).items()
        if problem.tensors[t].role == "parameter" and readers[0] in forward and readers[-1] in backward
    ]
    shared += [
        (name, t, readers)
        for name, numbers in (("forward", forward), ("backward", backward))
        for t, readers in _readers(problem, numbers).items()
        if len(readers) > 1
    ]
    if not shared:
        return problem
    tensors, operators, signatures = list(problem.tensors), list(problem.operators), list(problem.signatures)
    before: dict[int, list[Operator]] = {}
    read: dict[int, int] = {}  # parameters -> their copies for both passes, which those for one pass are copies of
    for name, t, readers in shared:
        of, first, source, copy = problem.tensors[t], problem.operators[readers[0]], read.get(t, t), len(tensors)
        if name == "both passes":
            read[t] = copy
        signature = copy_of(len(of.shape))
        if signature not in signatures:
            signatures.append(signature)
        tie = None if of.tie is None else f"{of.tie}, copy for {name}"
        tensors.append(Tensor(f"{of.name}, copy for {name}", of.shape, of.element_bytes, tie=tie))
        number = signatures.index(signature)
        before.setdefault(readers[0], []).append(
            Operator("copy", number, (source,), (copy,), tie=tie, module=first.module, source=first.source)
        )
        for n in readers:
            inputs = tuple(copy if i == source else i for i in operators[n].inputs)
            operators[n] = replace(operators[n], inputs=inputs)
    written = [one for n, operator in enumerate(operators) for one in (*before.get(n, ()), operator)]
    return replace(problem, tensors=tuple(tensors), operators=tuple(written), signatures=tuple(signatures))


def _readers(problem: PartitionProblem, numbers: Sequence[int]) -> dict[int, list[int]]:
    """Operators that bring each tensor to where they need it."""
    found: dict[int, list[int]] = {}
    for n in numbers:
        operator = problem.operators[n]
        if not runs_where_its_tensors_lie(problem, operator):
            for t in dict.fromkeys(operator.inputs):
                found.setdefault(t, []).append(n)
    return found
