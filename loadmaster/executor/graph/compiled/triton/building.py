"""Generated runners of a schedule's kernels: generated once for all graphs cut in the same way, and bound to each.

Mini-batches have a graph for every step, so little is done for each: tables, grids, and which tensor goes where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.runner import KernelRunner, reads, stored_dtype
from loadmaster.executor.graph.compiled.triton.expressions import Unsupported
from loadmaster.executor.graph.compiled.triton.gemm import outer_product, typed_product
from loadmaster.executor.graph.compiled.triton.generated import (
    Generated,
    Launch,
    Precision,
    held_by,
    precision,
    widest_row,
)
from loadmaster.executor.graph.compiled.triton.launching import BoundLaunch, Compiled, launch_all
from loadmaster.executor.graph.compiled.triton.maps import mapped
from loadmaster.executor.graph.compiled.triton.source import Argument, imported
from loadmaster.executor.graph.compiled.triton.tables import Table, chunks, grouped_map, groups, tiles
from loadmaster.executor.graph.compiled.triton.traverse import traversal
from loadmaster.models.graph.cut import Cut, chunk_rows, cut_of
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space

NARROW_NUMBERS = (1 << 31) - (1 << 20)  # offsets beyond need 64 bits


class TritonKernel:
    """A kernel of a schedule, to be run on any graph. ``longest`` is (over, to), if a graph is cut by how many rows of
    ``over`` one row of ``to`` has at the most."""

    def __init__(self, program: Program, kernel: Kernel, kept: frozenset[int], dtype: torch.dtype) -> None:
        self.program, self.kernel, self.kept, self.dtype = program, kernel, kept, dtype
        self.reads = reads(program, kernel, kept)
        self.dtypes = [stored_dtype(program, n, dtype) if n in kept else dtype for n in self.reads]
        self.longest: tuple[Space, Space] | None = None
        self._widest = 1
        if kernel.template == "traverse":
            assert kernel.over is not None
            self._widest = widest_row(program, kernel, held_by(program, kernel, kept))
            if kernel.rows not in WEIGHT_SPACES:
                self.longest = kernel.over, kernel.rows
        self._numbers: dict[Space, int] = {}
        for typed in program.types:
            self._numbers[typed.space] = max(self._numbers.get(typed.space, 1), typed.numbers)
        self._bindings: dict[tuple[Cut | None, bool, frozenset[Space], Precision], Binding | None] = {}

    def on(self, indices: Indices) -> KernelRunner | None:
        """Return the runner of the kernel on one graph. None where PyTorch's own operators do as well
        (:func:`.gemm.is_plain`, ``fold``), or nothing is generated."""
        cut, ordered = None, False
        if self.kernel.template == "traverse":
            assert self.kernel.over is not None
            over, to = self.kernel.over, self.kernel.rows
            longest = 0 if to in WEIGHT_SPACES else indices.longest(over, to)
            cut = cut_of(self.kernel.tile, self._widest, to, indices.rows(over), indices.rows(to), longest)
            ordered = groups(indices, over, to, cut.by_length).order is not None
        # Spaces in which the offsets of some value need 64 bits.
        wide = frozenset(s for s, most in self._numbers.items() if indices.rows(s) * most > NARROW_NUMBERS)
        key = cut, ordered, wide, precision(self.dtype)
        if key not in self._bindings:
            try:
                self._bindings[key] = _binding(self.program, self.kernel, self.kept, self.dtype, *key)
            except Unsupported:
                self._bindings[key] = None
        binding = self._bindings[key]
        return None if binding is None else TritonRunner(self, indices, binding, cut)

    def shape(self, n: int, indices: Indices) -> torch.Size:
        """Shape of a held value on a graph."""
        typed = self.program.types[n]
        return torch.Size((indices.rows(typed.space), *typed.shape))


@dataclass(frozen=True)
class Binding:
    """The launches generated for a kernel, and what their parameters are bound to.

    Attributes:
        functions: for each launch, the kernel of Triton; ``places``: (parameter, tensor of the call).
        fixed: for each launch and parameter, what is bound to a graph; None where a tensor of the call goes.
        compiled: on each device, what Triton made of each launch for all graphs; is added to.
    """

    generated: Generated
    functions: tuple[Any, ...]
    fixed: tuple[tuple[Argument | None, ...], ...]
    places: tuple[tuple[tuple[int, int], ...], ...]
    compiled: dict[torch.device, tuple[Compiled, ...]]


@lru_cache(maxsize=4096)
def _binding(
    program: Program,
    kernel: Kernel,
    kept: frozenset[int],
    dtype: torch.dtype,
    cut: Cut | None,
    ordered: bool,
    wide: frozenset[Space],
    how: Precision,
) -> Binding:
    held = held_by(program, kernel, kept)
    real = "tl.float64" if dtype == torch.float64 else "tl.float32"
    if cut is not None:
        generated = traversal(program, kernel, held, cut, ordered, wide, real)
    elif kernel.template == "gemm":
        generated = typed_product(program, kernel, held, wide, real, how)
    elif kernel.template == "outer":
        generated = outer_product(program, kernel, held, wide, real, how)
    elif kernel.template == "map":
        generated = mapped(program, kernel, held, wide, real)
    else:
        raise Unsupported(kernel.template)
    names: list[Argument] = [("value", n) for n in reads(program, kernel, kept)]
    names += [("stored", n) for n in kernel.stores]
    names += [("scratch", s.name) for s in generated.scratch]
    numbered = {bound: at for at, bound in enumerate(names)}
    module = imported(generated.text)
    parameters = [tuple(launch.function.arguments.values()) for launch in generated.launches]
    return Binding(
        generated,
        tuple(getattr(module, launch.function.name) for launch in generated.launches),
        tuple(tuple(None if argument in numbered else argument for argument in each) for each in parameters),
        tuple(tuple((at, numbered[a]) for at, a in enumerate(each) if a in numbered) for each in parameters),
        {},
    )


class TritonRunner:
    """Runs one kernel on one graph (:mod:`loadmaster.executor.graph.compiled.runner`)."""

    def __init__(self, of: TritonKernel, indices: Indices, binding: Binding, cut: Cut | None) -> None:
        self._device = indices.device
        self._reads, self._dtypes = of.reads, of.dtypes
        self._shapes = [of.shape(n, indices) for n in of.reads]
        self._made: list[tuple[tuple[int, ...], torch.dtype]] = [
            (of.shape(n, indices), stored_dtype(of.program, n, of.dtype)) for n in of.kernel.stores
        ]
        self._stored = len(of.kernel.stores)
        generated = binding.generated
        tables, counts = _tables(of.program, of.kernel, indices, generated, cut)
        wide = torch.float64 if of.dtype == torch.float64 else torch.float32
        self._made += [((counts[s.count], s.numbers), wide) for s in generated.scratch]
        self._launches: list[BoundLaunch] = []
        compiled = binding.compiled.setdefault(self._device, tuple({} for _ in generated.launches))
        for at, launch in enumerate(generated.launches):
            grid = _grid(launch, counts)
            if 0 in grid:
                continue
            fixed = [None if a is None else _fixed(a, indices, tables, counts) for a in binding.fixed[at]]
            options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": launch.fuses}
            bound = binding.functions[at], grid, fixed, binding.places[at], options, compiled[at]
            self._launches.append(BoundLaunch(*bound))

    def __call__(self, held: Mapping[int, Tensor]) -> list[Tensor]:
        """Run the kernel; return what it stores, in order. InputError: a value has another type or shape than the
        kernel was generated for, or is not contiguous."""
        tensors = [held[n] for n in self._reads]
        for at, (tensor, dtype, shape) in enumerate(zip(tensors, self._dtypes, self._shapes, strict=True)):
            if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
                found = f"{tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}"
                problem = "is not what the kernel reads"
                raise InputError(f"held[{self._reads[at]}]", found, problem, f"Give contiguous {dtype} {tuple(shape)}.")
            if tensor.data_ptr() % 16:
                tensors[at] = tensor.clone()
        made = [torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in self._made]
        if self._launches:
            launch_all(self._launches, [*tensors, *made], self._device)
        return made[: self._stored]


def _tables(
    program: Program, kernel: Kernel, indices: Indices, generated: Generated, cut: Cut | None
) -> tuple[Table, dict[str, int]]:
    """The tables of a graph that the launches read, in addition to its maps, and the counts that grids are made of."""
    rows = indices.rows(kernel.rows)
    if kernel.template == "gemm":
        (n,) = (n for n in kernel.stores if program.values[n].op == "linear")
        types = program.types[program.values[n].inputs[1]].space
        table, count = tiles(indices, kernel.rows, types, generated.tile_rows)
        return table, {"tiles": count}
    if kernel.template == "outer" or (cut is not None and cut.bound is not None):
        assert kernel.over is not None
        bound = cut.bound or 0 if cut is not None else 0
        size = bound or chunk_rows(indices.rows(kernel.over))
        by_length = cut is not None and cut.by_length
        table, count, cut_rows = chunks(indices, kernel.over, kernel.rows, size, bound, by_length)
        return table, {"rows": rows, "chunks": count, "cut_rows": cut_rows}
    return {}, {"rows": rows}


def _grid(launch: Launch, counts: Mapping[str, int]) -> tuple[int, int, int]:
    sizes = [side if isinstance(side, int) else -(-counts[side[0]] // side[1]) for side in launch.grid]
    first, second, third = [*sizes, 1, 1][:3]
    return first, second, third


def _fixed(argument: Argument, indices: Indices, tables: Table, counts: Mapping[str, int]) -> Tensor | int:
    """Return the tensor or number of a graph that a parameter is bound to in every call."""
    found: Tensor | int | None
    match argument:
        case ("map", fine, coarse):
            found = indices.map(fine, coarse)  # type: ignore[arg-type]
        case ("grouped", over, to, of, by_length):
            found = grouped_map(indices, over, to, of, bool(by_length))  # type: ignore[arg-type]
        case ("ptr", over, to, by_length):
            found = groups(indices, over, to, bool(by_length)).ptr  # type: ignore[arg-type]
        case ("order", over, to, by_length):
            found = groups(indices, over, to, bool(by_length)).order  # type: ignore[arg-type]
        case ("rows", over, to):
            found = groups(indices, over, to, True).rows  # type: ignore[arg-type]
        case ("table", name):
            found = tables[str(name)]
        case ("count", name):
            found = counts[str(name)]
        case _:
            raise AssertionError(argument)
    assert found is not None, argument
    return found
