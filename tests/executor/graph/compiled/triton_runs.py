"""Runs the generated kernels of a schedule, each beside the plain PyTorch form of the same kernel in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.reference import ReferenceRunner
from loadmaster.executor.graph.compiled.triton import TritonKernel
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel, Schedule


def random_indices(
    nodes: int, edges: int, relations: int, seed: int = 0, hub_edges: int = 0, device: str = "cpu"
) -> Indices:
    """A random graph: two node types, a relation without edges, two nodes where no edge ends, and a hub."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, nodes, (edges,), generator=generator)
    target = torch.randint(0, max(1, nodes - 2), (edges,), generator=generator)
    target[:hub_edges] = 0
    source[edges - hub_edges :] = 1
    relation = torch.randint(0, relations, (edges,), generator=generator)
    relation[relation == 2] = 1
    types = [0, nodes // 3, nodes]
    return Indices.from_edges(source.to(device), target.to(device), relation.to(device), nodes, relations, types)


def random_held(program: Program, indices: Indices, dtype: torch.dtype, seed: int = 0) -> dict[int, Tensor]:
    """Features, parameters, degrees and gradients.

    Parameters are as small as layers begin with: scores in the thousands lose a softmax its digits in float32, whoever
    computes it.
    """
    generator = torch.Generator().manual_seed(seed)
    found: dict[int, Tensor] = {}
    for n, value in enumerate(program.values):
        if value.op in ("feature", "parameter", "gradient"):
            shape = (indices.rows(value.space), *value.shape)
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
            scale = max(value.shape, default=1) ** -0.5 if value.op == "parameter" else 0.5
            found[n] = (scale * numbers).to(indices.device, dtype)
        elif value.op == "degree":
            found[n] = indices.degree(value.space, dtype)
    return found


def expect_as_plain(
    program: Program,
    schedule: Schedule,
    indices: Indices,
    dtype: torch.dtype,
    tolerance: float,
    held: dict[int, Tensor] | None = None,
) -> dict[int, Tensor]:
    """Hold every generated kernel against plain PyTorch in float64 that is given the same values.

    Returns:
        what the generated kernels stored, each fed by those before; of what has no generated form, plain PyTorch's.
    """
    held = random_held(program, indices, dtype) if held is None else dict(held)
    kept = frozenset(schedule.kept)
    for kernel in schedule.kernels:
        runner = TritonKernel(program, kernel, kept, dtype).on(indices)
        exact = ReferenceRunner(program, kernel, indices, torch.float64)({n: x.double() for n, x in held.items()})
        if runner is None:
            plain = ReferenceRunner(program, kernel, indices, dtype)
            held.update(zip(kernel.stores, plain(held), strict=True))
            continue
        found = runner(held)
        expect_close(program, kernel, found, exact, tolerance)
        held.update(zip(kernel.stores, found, strict=True))
    return held


def expect_close(
    program: Program, kernel: Kernel, found: Sequence[Tensor], exact: Sequence[Tensor], tolerance: float
) -> None:
    """Relative to the greatest number of each value, since sums cancel."""
    for n, got, want in zip(kernel.stores, found, exact, strict=True):
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        where = f"{kernel.template} of {program.values[n].name} over {kernel.over}"
        torch.testing.assert_close(
            got.double(),
            want,
            rtol=tolerance,
            atol=tolerance * scale,
            msg=lambda text, where=where: f"{where}: {text}",
        )


def generated_count(program: Program, schedule: Schedule, indices: Indices, dtype: torch.dtype) -> int:
    """How many kernels have a generated form."""
    kept = frozenset(schedule.kept)
    return sum(TritonKernel(program, kernel, kept, dtype).on(indices) is not None for kernel in schedule.kernels)
