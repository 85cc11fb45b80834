"""The part of a schedule that runs, and how long each value lives, when only some results are asked for.

A schedule makes every gradient. A step that trains weights alone asks for fewer, a step without gradients for none:
kernels, and stored values, that nothing asked for reads are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from loadmaster.executor.graph.compiled.runner import reads
from loadmaster.models.graph.inline import Inline, base
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel, Schedule


@dataclass(frozen=True)
class Pass:
    """Kernels in the order in which they run. ``freed``: of each kernel, the held values that nothing reads after it.
    ``results``: the values that the pass ends with, each held or a view of what is. All by number."""

    kernels: tuple[Kernel, ...]
    freed: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Passes:
    """Both passes of a program, for some gradients. All values are numbers. ``saved`` are the held ones that the
    forward pass leaves to the backward pass, ascending; ``kept``, all that kernels of the whole schedule store;
    ``gradients``, (what is given, its gradient) for those asked for."""

    forward: Pass
    backward: Pass
    saved: tuple[int, ...]
    kept: frozenset[int]
    gradients: tuple[tuple[int, int], ...]


def passes(program: Program, schedule: Schedule, wanted: Collection[int]) -> Passes:
    """Choose the kernels for a program's outputs and the gradients of ``wanted`` features and parameters, by number."""
    kept = frozenset(schedule.kept)
    gradients = tuple((of, gradient) for of, gradient in program.gradients if of in wanted)
    asked = tuple(gradient for _, gradient in gradients)
    used = _used(program, schedule.kernels, kept, (*program.outputs, *asked))
    stored = [(kernel, tuple(n for n in kernel.stores if n in used)) for kernel in schedule.kernels]
    kernels = [replace(kernel, stores=stores) if stores else None for kernel, stores in stored]
    forward = [kernel for kernel in kernels[: schedule.forward_count] if kernel is not None]
    backward = [kernel for kernel in kernels[schedule.forward_count :] if kernel is not None]
    made_backward = {n for kernel in backward for n in kernel.stores}
    begin_backward = {n for kernel in backward for n in reads(program, kernel, kept)}
    begin_backward |= {base(program, n) for n in asked}
    begin_backward -= made_backward
    always_there = {n for n, value in enumerate(program.values) if value.op in ("gradient", "degree")}
    saved = tuple(sorted(begin_backward - always_there))
    both = _pass(program, forward, kept, program.outputs, keep=saved), _pass(program, backward, kept, asked)
    return Passes(*both, saved, kept, gradients)


def _used(program: Program, kernels: Sequence[Kernel], kept: frozenset[int], results: Sequence[int]) -> frozenset[int]:
    """Numbers of the held values that results are made of."""
    needs = Inline(program, kept)
    found = {base(program, n) for n in results}
    for kernel in reversed(kernels):
        for n in sorted(kernel.stores, reverse=True):
            if n in found:
                found |= needs.to_make(n).reads
    return frozenset(found)


def _pass(
    program: Program, kernels: Sequence[Kernel], kept: frozenset[int], results: Sequence[int], keep: Sequence[int] = ()
) -> Pass:
    last: dict[int, int] = {}
    for at, kernel in enumerate(kernels):
        last.update(dict.fromkeys((*reads(program, kernel, kept), *kernel.stores), at))
    lasting = {base(program, n) for n in results} | set(keep)
    freed: list[list[int]] = [[] for _ in kernels]
    for n, at in last.items():
        if n not in lasting:
            freed[at].append(n)
    return Pass(tuple(kernels), tuple(map(tuple, freed)), tuple(results))
