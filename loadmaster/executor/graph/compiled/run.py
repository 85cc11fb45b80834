"""Runs both passes of a layer on one graph: held values go from kernel to kernel, and go when nothing reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from loadmaster.executor.graph.compiled.choosing import KernelMaker
from loadmaster.executor.graph.compiled.evaluate import Evaluator, Rows
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.passes import Pass, Passes
from loadmaster.executor.graph.compiled.runner import KernelRunner, reads
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.spaces import Space

Held = dict[int, Tensor]
_PAIRS: tuple[Space, ...] = ("source_pair", "target_pair")


class Makers:
    """The makers of both passes' kernels, for a device and a dtype; made once for all graphs.

    Attributes:
        passes: what runs.
        pairs: spaces of pairs that kernels read, store or run over.
        longest: see :class:`~loadmaster.executor.graph.compiled.choosing.KernelMaker`; of all kernels.
    """

    def __init__(self, program: Program, passes: Passes, dtype: torch.dtype, device: torch.device) -> None:
        self.program, self.passes, self.dtype = program, passes, dtype
        kernels = (*passes.forward.kernels, *passes.backward.kernels)
        makers = [KernelMaker(program, kernel, passes.kept, dtype, device) for kernel in kernels]
        self.forward = makers[: len(passes.forward.kernels)]
        self.backward = makers[len(passes.forward.kernels) :]
        held = (n for kernel in kernels for n in (*kernel.stores, *reads(program, kernel, passes.kept)))
        spaces = {program.types[n].space for n in held}
        spaces |= {space for kernel in kernels for space in (kernel.rows, kernel.over) if space is not None}
        self.pairs = [space for space in _PAIRS if space in spaces]
        self.longest = [maker.longest for maker in makers if maker.longest is not None]


class Run:
    """The kernels of both passes on one graph.

    Attributes:
        program, passes, dtype: of the makers.
        indices: of the graph.
    """

    def __init__(self, makers: Makers, indices: Indices) -> None:
        self.program, self.passes, self.dtype = makers.program, makers.passes, makers.dtype
        self.indices, self._makers = indices, makers
        indices.learn(makers.pairs, makers.longest)
        self._degrees = {
            n: indices.degree(self.program.types[n].space, self.dtype)
            for n, value in enumerate(self.program.values)
            if value.op == "degree"
        }

    @cached_property
    def _forward(self) -> list[KernelRunner]:
        return [maker.on(self.indices) for maker in self._makers.forward]

    @cached_property
    def _backward(self) -> list[KernelRunner]:
        return [maker.on(self.indices) for maker in self._makers.backward]

    def forward(self, held: Held) -> tuple[list[Tensor], list[Tensor]]:
        """The program's outputs, and what the backward pass needs (``passes.saved``).

        Args:
            held: features and parameters by number, as runners take them (:mod:`.runner`); is emptied.
        """
        self._run(self.passes.forward, self._forward, held)
        return self._results(self.passes.forward, held, self.program.outputs), [held[n] for n in self.passes.saved]

    def backward(self, held: Held) -> list[Tensor]:
        """The gradients that ``passes`` names, in order, in the rows of what they are gradients of.

        Args:
            held: what :meth:`forward` saved, and the gradients of the outputs, by number; is emptied.
        """
        self._run(self.passes.backward, self._backward, held)
        return self._results(self.passes.backward, held, [of for of, _ in self.passes.gradients])

    def _run(self, which: Pass, runners: Sequence[KernelRunner], held: Held) -> None:
        held.update(self._degrees)
        for kernel, runner, freed in zip(which.kernels, runners, which.freed, strict=True):
            held.update(zip(kernel.stores, runner(held), strict=True))
            for n in freed:
                del held[n]

    def _results(self, which: Pass, held: Held, like: Sequence[int]) -> list[Tensor]:
        """The results of a pass, each in the rows of the value of ``like`` that it belongs to."""
        evaluator = Evaluator(self.program, self.indices, held)
        every = [Rows(self.program.types[n].space, slice(None)) for n in like]
        return [evaluator.made(n, rows) for n, rows in zip(which.results, every, strict=True)]
