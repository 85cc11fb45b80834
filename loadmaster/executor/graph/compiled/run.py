"""Runs both passes of a layer on one graph: held values go from kernel to kernel, and go when nothing reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loadmaster.executor.graph.compiled.choosing import build
from loadmaster.executor.graph.compiled.evaluate import Evaluator, Rows
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.passes import Pass, Passes
from loadmaster.executor.graph.compiled.runner import KernelRunner
from loadmaster.models.graph.program import Program

Held = dict[int, Tensor]


class Run:
    """The kernels of both passes on one graph, for one dtype of what is given.

    Attributes:
        passes: what runs.
        indices: of the graph.
    """

    def __init__(self, program: Program, passes: Passes, indices: Indices, dtype: torch.dtype) -> None:
        self.program, self.passes, self.indices, self.dtype = program, passes, indices, dtype
        self._degrees = {
            n: indices.degree(program.types[n].space, dtype)
            for n, value in enumerate(program.values)
            if value.op == "degree"
        }
        self._forward = self._built(passes.forward)
        self._backward: list[KernelRunner] | None = None

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
        if self._backward is None:
            self._backward = self._built(self.passes.backward)
        self._run(self.passes.backward, self._backward, held)
        return self._results(self.passes.backward, held, [of for of, _ in self.passes.gradients])

    def _built(self, which: Pass) -> list[KernelRunner]:
        kept = self.passes.kept
        return [build(self.program, kernel, kept, self.indices, self.dtype) for kernel in which.kernels]

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
