"""One call of a compiled layer on one graph as an operation of autograd, kernel by kernel.

Each kernel is generated, or plain PyTorch. Held values go from kernel to kernel, and go when nothing reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.passes import Pass, Passes
from loadmaster.executor.graph.compiled.reference import Evaluator, ReferenceRunner, Rows
from loadmaster.executor.graph.compiled.runner import KernelRunner, reads
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import Space

Held = dict[int, Tensor]
_PAIRS: tuple[Space, ...] = ("source_pair", "target_pair")
logger = logging.getLogger(__name__)
_told: set[str] = set()


class KernelMaker:
    """Makes the runners of one kernel; what depends on the program alone is made once for all graphs. Runners are
    generated on a GPU where they can be, plain PyTorch elsewhere. ``longest`` is (over, to), if a runner depends on how
    many rows of ``over`` one row of ``to`` has at the most."""

    def __init__(
        self, program: Program, kernel: Kernel, kept: frozenset[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Prepare a kernel; ``kept`` are the numbers of all values that kernels of its schedule store."""
        self.program, self.kernel, self.dtype = program, kernel, dtype
        self.longest: tuple[Space, Space] | None = None
        self._generate: Callable[[Indices], KernelRunner | None] | None = None
        if device.type == "cuda":
            from loadmaster.executor.graph.compiled.triton import TritonKernel

            generated = TritonKernel(program, kernel, kept, dtype)
            self.longest, self._generate = generated.longest, generated.on

    def on(self, indices: Indices) -> KernelRunner:
        if self._generate is not None:
            found = self._generate(indices)
            if found is not None:
                return found
            _tell(self.kernel)
        return ReferenceRunner(self.program, self.kernel, indices, self.dtype)


def _tell(kernel: Kernel) -> None:
    """Say once for each template that plain PyTorch runs kernels of it."""
    if kernel.template not in _told:
        _told.add(kernel.template)
        logger.info("Kernels of %s without a generated form run on PyTorch's own.", kernel.template)


class Makers:
    """The makers of both passes' kernels, for a device and a dtype; made once for all graphs. ``pairs`` are the spaces
    of pairs that kernels read, store or run over; ``longest`` is that of all makers."""

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
    """The kernels of both passes on one graph; ``numbers`` are those of the features, then of the parameters."""

    def __init__(self, makers: Makers, indices: Indices) -> None:
        self.program, self.passes, self.dtype = makers.program, makers.passes, makers.dtype
        self.indices, self._makers = indices, makers
        self.numbers = [*self.program.given("feature").values(), *self.program.given("parameter").values()]
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
        """The program's outputs, and what the backward pass needs (``passes.saved``). ``held``: features and parameters
        by number, as runners take them (:mod:`.runner`); is emptied."""
        outputs = self._results(self.passes.forward, self._forward, held, self.program.outputs)
        return outputs, [held[n] for n in self.passes.saved]

    def backward(self, held: Held) -> list[Tensor]:
        """The gradients that ``passes`` names, in order, in the rows of what they are gradients of. ``held``: what
        :meth:`forward` saved, and the gradients of the outputs, by number; is emptied."""
        return self._results(self.passes.backward, self._backward, held, [of for of, _ in self.passes.gradients])

    def _results(self, which: Pass, runners: Sequence[KernelRunner], held: Held, like: Sequence[int]) -> list[Tensor]:
        """Run a pass; return its results, each in the rows of the value of ``like`` that it belongs to."""
        held.update(self._degrees)
        for kernel, runner, freed in zip(which.kernels, runners, which.freed, strict=True):
            held.update(zip(kernel.stores, runner(held), strict=True))
            for n in freed:
                del held[n]
        evaluator = Evaluator(self.program, self.indices, held)
        every = [Rows(self.program.types[n].space, slice(None)) for n in like]
        return [evaluator.made(n, rows) for n, rows in zip(which.results, every, strict=True)]


def call(run: Run, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a layer from features and parameters in the caller's form, as :func:`_taken` takes them."""
    if run.passes.gradients:
        found: tuple[Tensor, ...] = _Step.apply(run, *given)  # type: ignore[no-untyped-call, unused-ignore]
        return found
    return tuple(forward_pass(run, given)[0])


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *given: Tensor) -> tuple[Tensor, ...]:
        outputs, saved = forward_pass(run, given)
        ctx.run, ctx.dtypes = run, [x.dtype for x in given]
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        saved = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()  # so that each goes after the last kernel that reads it
        return (None, *backward_pass(ctx.run, saved, upstream, ctx.dtypes))


def forward_pass(run: Run, given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, as the caller wants them, and what the backward pass needs."""
    with torch.autocast(run.indices.device.type, enabled=False):
        held = {n: _taken(run, n, x) for n, x in zip(run.numbers, given, strict=True)}
        outputs, saved = run.forward(held)
        lie = {x.data_ptr() for x in given}
        # A feature that is an output as it was given: the caller's own tensor must not change with the result.
        return [x.clone() if x.data_ptr() in lie else x for x in (_returned(run, x) for x in outputs)], saved


def backward_pass(
    run: Run, saved: list[Tensor], upstream: Sequence[Tensor], dtypes: Sequence[torch.dtype]
) -> list[Tensor | None]:
    """The gradients of what was given; None where none was asked for. ``saved`` by :func:`forward_pass` is emptied."""
    with torch.autocast(run.indices.device.type, enabled=False):
        held = dict(zip(run.passes.saved, saved, strict=True))
        saved.clear()
        held.update(_received(run, upstream))
        made = run.backward(held)
        found = {of: _given_back(run, of, x) for (of, _), x in zip(run.passes.gradients, made, strict=True)}
        return [found[n].to(dtype) if n in found else None for n, dtype in zip(run.numbers, dtypes, strict=True)]


def _taken(run: Run, n: int, x: Tensor) -> Tensor:
    """Bring a feature or parameter to the dtype, order and shape that runners take."""
    x = x.to(run.dtype)
    space = run.program.types[n].space
    if space == "edge":
        return x.index_select(0, run.indices.edge_order)
    return (x.unsqueeze(0) if space == "one" else x).contiguous()


def _given_back(run: Run, n: int, gradient: Tensor) -> Tensor:
    """A gradient as the caller knows what it is a gradient of."""
    space = run.program.types[n].space
    if space == "edge":
        return torch.empty_like(gradient).index_copy_(0, run.indices.edge_order.long(), gradient)
    return gradient.squeeze(0) if space == "one" else gradient


def _returned(run: Run, output: Tensor) -> Tensor:
    """An output in the rows that the caller asked for; for autograd it is not a view of what is saved."""
    rows = run.indices.result_rows
    return (output if rows is None else output.index_select(0, rows)).to(run.dtype).detach()


def _received(run: Run, upstream: Sequence[Tensor]) -> dict[int, Tensor]:
    """The gradients of the outputs by number; their sum for an output that is returned twice."""
    rows = run.indices.result_rows
    sums: dict[int, Tensor] = {}
    for output, gradient in zip(run.program.outputs, upstream, strict=True):
        wide = gradient.to(run.dtype)
        if rows is not None:
            every = wide.new_zeros(run.indices.rows("node"), *wide.shape[1:])
            wide = every.index_copy_(0, rows, wide)
        sums[output] = sums[output] + wide if output in sums else wide
    numbers = [n for n, value in enumerate(run.program.values) if value.op == "gradient"]
    return {n: x.contiguous() for n, x in zip(numbers, sums.values(), strict=True)}
