"""What is left of a schedule when only some results are asked for, and how long its values live."""

from __future__ import annotations

import pytest

from loadmaster.executor.graph.compiled.passes import Pass, passes
from loadmaster.executor.graph.compiled.runner import reads
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.inline import Inline
from loadmaster.models.graph.library import LAYERS, layer
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.program import Program


def needed_later(program: Program, of: Pass, kept: frozenset[int], at: int) -> set[int]:
    return {n for kernel in of.kernels[at + 1 :] for n in reads(program, kernel, kept)}


@pytest.mark.parametrize("name", [*LAYERS])
def test_a_value_goes_after_the_last_kernel_that_reads_it_and_no_sooner(name: str) -> None:
    program = with_backward(layer(name, 4, 4, 1 if name == "rgcn" else 2))
    found = passes(program, greedy_schedule(program), [of for of, _ in program.gradients])
    for part in (found.forward, found.backward):
        gone: set[int] = set()
        for at, (kernel, freed) in enumerate(zip(part.kernels, part.freed, strict=True)):
            read = {*reads(program, kernel, found.kept), *kernel.stores}
            assert not read & gone
            assert set(freed) <= read
            assert not set(freed) & needed_later(program, part, found.kept, at)
            gone |= set(freed)
        stored = {n for kernel in part.kernels for n in kernel.stores}
        left = stored - gone
        assert all(n in found.saved or n in results(program, part) for n in left)


def results(program: Program, part: Pass) -> set[int]:
    """Values that results are, or are views of."""
    found = set(part.results)
    for n in part.results:
        while program.values[n].op in ("as_node", "source", "target", "join_heads", "split_heads", "spread"):
            (n,) = program.values[n].inputs
            found.add(n)
    return found


@pytest.mark.parametrize("name", [*LAYERS])
def test_inference_stores_nothing_that_only_the_backward_pass_reads(name: str) -> None:
    forward = layer(name, 4, 4)
    program = with_backward(forward)
    found = passes(program, greedy_schedule(program), ())
    assert not found.backward.kernels and not found.saved
    assert len(found.forward.kernels) <= len(greedy_schedule(program).kernels)
    for at, kernel in enumerate(found.forward.kernels):
        later = needed_later(program, found.forward, found.kept, at)
        own = set().union(*(Inline(program, found.kept).to_make(n).reads for n in kernel.stores))
        assert set(kernel.stores) <= later | own | results(program, found.forward)
