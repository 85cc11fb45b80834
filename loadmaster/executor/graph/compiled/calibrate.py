"""The constants of the cost model for the GPU that is present: measured once, in under a minute, and kept.

Every kernel of some layers of the library runs on synthetic graphs; the model's constants are those with which it comes
closest to the times. They are kept on disk by the device's name and the precision of products.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.capture import statistics_of_graph
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.run import KernelMaker
from loadmaster.executor.graph.compiled.triton.source import FOLDER, folder
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.steps.measure import queued_us
from loadmaster.models.files import write_text
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.checker import kernel_need
from loadmaster.models.graph.costs import Costs, Work
from loadmaster.models.graph.datasets import data_set, generated
from loadmaster.models.graph.device import FASTEST, HARDWARE, GraphHardware
from loadmaster.models.graph.fitting import fitted
from loadmaster.models.graph.inline import Inline
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.lowering import greedy_kept, least_kept, lowered
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule

# Few kernels wait for the same thing in all of these.
LAYERS = ("rgcn", "rgat")
DATA_SETS = ("aifb", "bgs", "biokg")
WIDTH = 64
LAUNCHES, REPEATS = 10, 5
_DTYPES = {2: torch.bfloat16, 4: torch.float32}


def calibrated(device: torch.device | str = "cuda", element_bytes: Literal[2, 4] = 4) -> GraphHardware:
    """The constants of a GPU: those that were kept, or measured now and kept. InputError: no such GPU is present."""
    where = torch.device(device)
    if where.type != "cuda" or not torch.cuda.is_available():
        remedy = 'Calibrate where a GPU is, or take estimates: graph_hardware("h200").'
        raise InputError("device", str(device), "is no GPU that is present", remedy)
    name = torch.cuda.get_device_name(where)
    path = _path(name, element_bytes)
    found = read(path)
    if found is None:
        with torch.cuda.device(where):
            found = fitted(believed(where), [*measured(where, element_bytes)], element_bytes, name)
        write(path, found)
    return found


def believed(device: torch.device) -> GraphHardware:
    """Constants that fitting begins with: those of the most similar GPU, with the device's own memory and cache."""
    about = torch.cuda.get_device_properties(device)
    estimates = HARDWARE.values()
    nearest = min(estimates, key=lambda hardware: abs(hardware.memory_bytes - about.total_memory))
    return replace(nearest, memory_bytes=about.total_memory, l2_bytes=about.L2_cache_size)


def measured(device: torch.device, element_bytes: int) -> Iterator[tuple[Work, float]]:
    """Yield the work of every kernel of some layers on synthetic graphs, and the microseconds that it takes."""
    for name in DATA_SETS:
        source, target, relation = (torch.from_numpy(x).to(device) for x in generated(name))
        of = data_set(name)
        graph = Graph(source, target, node_count=of.nodes, relation=relation, relations=of.relations)
        for model in LAYERS:
            program = with_backward(layer(model, WIDTH, WIDTH))
            # What the second keeps less, its products make on the way.
            for kept in {greedy_kept(program), least_kept(program)}:
                yield from kernel_times(program, lowered(program, kept), graph, element_bytes)


def kernel_times(
    program: Program, schedule: Schedule, graph: Graph, element_bytes: int
) -> Iterator[tuple[Work, float]]:
    """Yield the work of every kernel of a schedule on a graph, and the microseconds that it takes there."""
    indices, dtype = Indices.of(graph), _DTYPES[element_bytes]
    kept = frozenset(schedule.kept)
    costs = Costs(program, statistics_of_graph(graph), element_bytes, HARDWARE["h100"])
    held = {n: _given(program, n, indices, dtype) for n, value in enumerate(program.values) if not value.inputs}
    needs = Inline(program, kept)
    for kernel in schedule.kernels:
        runner = KernelMaker(program, kernel, kept, dtype, indices.device).on(indices)
        held.update(zip(kernel.stores, runner(held), strict=True))
        yield costs.work(kernel, kernel_need(needs, kernel)), _time_us(partial(runner, held))


def _time_us(launch: Callable[[], object]) -> float:
    """Time one of several launches in a row, in microseconds, without the time that Python takes for them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    return statistics.median(queued_us(graph.replay, REPEATS)) / LAUNCHES


def _given(program: Program, n: int, indices: Indices, dtype: torch.dtype) -> Tensor:
    typed = program.types[n]
    if program.values[n].op == "degree":
        return indices.degree(typed.space, dtype)
    return torch.randn(indices.rows(typed.space), *typed.shape, dtype=dtype, device=indices.device)


def _path(name: str, element_bytes: int) -> Path:
    precision = torch.get_float32_matmul_precision() if element_bytes == 4 else "bfloat16"
    words = "".join(c if c.isalnum() else "-" for c in f"{name} {precision} {loadmaster.__version__}")
    return folder() / f"hardware-{words}.json"


def read(path: Path) -> GraphHardware | None:
    """Read constants from a file; None where it is missing or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return GraphHardware(**{**found, "matrix_tflops": tuple(found["matrix_tflops"]), "tiles": FASTEST})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(path: Path, hardware: GraphHardware) -> None:
    """Write constants to a file; tiles are left out."""
    write_text(path, json.dumps({k: v for k, v in asdict(hardware).items() if k != "tiles"}), FOLDER)
