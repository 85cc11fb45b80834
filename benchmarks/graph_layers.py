"""Relational graph layers, compiled, compared with PyG's: RGCN, RGAT, HGT on graphs as in [Wu24] Table 3.3.

Usage: python -m benchmarks.graph_layers [--only MODEL DATASET] [--precision high|highest|bf16]
       [--launch auto|graph|eager] [--without-compiled] [--seconds N] [--small]

64 numbers in, 64 out, one head. Inference is the layer alone under ``torch.no_grad()``; training is the layer, the
negative log likelihood of random labels, and the backward pass into weights and node features. Rivals, each through the
call that its users make: PyG's ``RGCNConv``, ``FastRGCNConv``, ``RGATConv`` and ``HGTConv``, each also under
``torch.compile``, and layers that are written by hand around ``grouped_mm`` with edges sorted by relation. All compute
in one precision: ``high`` is float32 with TF32 products, as ``torch.set_float32_matmul_precision`` has it.

A cell is the median of as many calls as fit in about half a second, by CUDA events, after three; one that takes longer
than that is run once. Peaks are those of PyTorch's allocator over the call. What runs out of memory, or what there is
no time for within ``--seconds``, is recorded as such. ``--only`` takes ``all`` for either of both;
rows of earlier runs that it leaves out stay in the file, each with the date of its run. ``--small`` is for a try on
CPUs: nothing is recorded, and peaks are not known.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import loadmaster
from benchmarks import graph_layer_rivals as rivals
from benchmarks import record
from benchmarks.graph_layer_cases import CUDA, WIDTH, Case, case
from loadmaster.executor.graph.compiled.calibrate import calibrated
from loadmaster.executor.graph.compiled.capture import capture
from loadmaster.executor.graph.compiled.compiling import compile as compile_layer
from loadmaster.models.graph.datasets import DATA_SETS
from loadmaster.models.graph.device import GraphHardware, graph_hardware
from loadmaster.models.graph.library import layer
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.planner.options import PlanOptions

MODELS = ("rgcn", "rgat", "hgt")
OURS = "loadmaster"
CELL_S, WARM, LEAST = 0.4, 3, 5
PLAN_S = 10.0
System = tuple[str, Callable[[bool], nn.Module]]


def systems(model: str, of: Case, hardware: GraphHardware) -> Iterator[System]:
    """Yield ours, then rivals: names, and functions that make a module from node features to node values."""
    yield OURS, partial(planned, model, of, hardware)
    yield f"{OURS} unplanned", partial(unplanned, model, of)
    for name, make in rivals.of(model, of):
        yield name, partial(whatever_the_mode, make)


def whatever_the_mode(make: Callable[[], nn.Module], training: bool) -> nn.Module:
    """Make a module that serves inference and training."""
    return make()


def unplanned(model: str, of: Case, training: bool) -> nn.Module:
    """Compile a layer of the library by the greedy rule."""
    return compile_layer(model, of.graph, width=WIDTH, out=WIDTH, training=training, launch=of.launch)


def planned(model: str, of: Case, hardware: GraphHardware, training: bool) -> nn.Module:
    """Plan and compile a layer of the library as the README says."""
    problem = capture(
        layer(model, WIDTH, WIDTH),
        of.graph,
        hardware=hardware,
        training=training,
        element_bytes=2 if of.x.dtype == torch.bfloat16 else 4,
    )
    found = loadmaster.plan(problem, PlanOptions(time_limit_s=PLAN_S))
    assert isinstance(found, GraphPlan)
    return compile_layer(model, of.graph, found, width=WIDTH, out=WIDTH, training=training, launch=of.launch)


def measured(make: Callable[[bool], nn.Module], of: Case, training: bool) -> dict[str, Any]:
    """Measure the time and peak of a call, and the time to make the module."""
    begin = time.perf_counter()
    module = make(training).to(of.x.device, of.x.dtype)
    made_s = time.perf_counter() - begin

    def call() -> None:
        if not training:
            with torch.no_grad():
                module(of.x)
            return
        out = module(of.x)
        functional.nll_loss(functional.log_softmax(out.float(), -1), of.labels).backward()  # type: ignore[no-untyped-call]
        module.zero_grad()
        of.x.grad = None

    def once() -> float:
        if not CUDA:
            begin = time.perf_counter()
            call()
            return (time.perf_counter() - begin) * 1e3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    once()
    times = [once()]
    if times[0] < CELL_S * 1e3:
        for _ in range(WARM - 1):
            once()
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        times = []
        while len(times) < LEAST or (time.perf_counter() - begin < CELL_S and len(times) < 100):
            times.append(once())
    found: dict[str, Any] = {"ms": statistics.median(times), "calls": len(times), "made_s": made_s}
    if CUDA:
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return found


def cell(make: Callable[[bool], nn.Module], of: Case, deadline: float) -> dict[str, dict[str, Any]]:
    """Measure inference and training of one system on one graph, or state why it has no figures."""
    found: dict[str, dict[str, Any]] = {}
    for mode in ("inference", "training"):
        if time.perf_counter() > deadline:
            found[mode] = {"status": "out of time"}
            continue
        try:
            if CUDA:
                torch.cuda.reset_peak_memory_stats()
            found[mode] = {"status": "measured", **measured(make, of, mode == "training")}
        except torch.OutOfMemoryError:
            found[mode] = {"status": "out of memory"}
        except rivals.NotRunError as reason:
            found[mode] = {"status": str(reason)}
        except Exception as error:  # noqa: BLE001 - a rival that breaks is a cell of the table
            found[mode] = {"status": f"failed: {type(error).__name__}: {str(error).splitlines()[0][:160]}"}
        of.x.grad = None
        emptied()
    return found


def emptied() -> None:
    """Free the GPU's memory and compiled code."""
    torch._dynamo.reset()
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def gains(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute how much faster ours is than the best rival of each graph, with the geometric mean, by model and mode."""
    found = []
    for model, mode in itertools.product(MODELS, ("inference", "training")):
        ratios: dict[str, float] = {}
        unmatched: list[str] = []
        for name in dict.fromkeys(row["dataset"] for row in rows):
            here = [r for r in rows if (r["model"], r["mode"], r["dataset"]) == (model, mode, name) and "ms" in r]
            ours = [r["ms"] for r in here if r["system"] == OURS]
            others = [r["ms"] for r in here if not r["system"].startswith(OURS)]
            if ours and others:
                ratios[name] = min(others) / ours[0]
            elif ours:
                unmatched.append(name)
        if ratios or unmatched:
            mean = math.exp(statistics.fmean(map(math.log, ratios.values()))) if ratios else None
            found.append(
                {"model": model, "mode": mode, "geometric_mean": mean, "by_dataset": ratios, "no_rival_ran": unmatched}
            )
    return found


def main() -> None:
    """Measure, and write the rows of every layer on every graph as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs=2, metavar=("MODEL", "DATASET"))
    parser.add_argument("--precision", choices=("high", "highest", "bf16"), default="high")
    parser.add_argument("--launch", choices=("auto", "graph", "eager"), default="auto")
    parser.add_argument("--without-compiled", action="store_true", help="leave torch.compile of rivals out")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if args.precision != "bf16":
        torch.set_float32_matmul_precision(args.precision)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    hardware = calibrated(element_bytes=2 if args.precision == "bf16" else 4) if CUDA else graph_hardware("h100")
    deadline = time.perf_counter() + args.seconds
    only_model, only_data = args.only or ("all", "all")
    models = [model for model in MODELS if only_model in ("all", model)]
    data = [one for one in sorted(DATA_SETS, key=lambda one: DATA_SETS[one].edges) if only_data in ("all", one)]
    today, gpu = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), record.machine().get("gpu")
    rows: list[dict[str, Any]] = []
    for dataset in ["small"] if args.small else data:
        of = case(dataset, dtype, args)
        for model in models:
            about = {"model": model, "dataset": dataset, "precision": args.precision, "date": today, "gpu": gpu}
            for system, make in systems(model, of, hardware):
                for mode, figures in cell(make, of, deadline).items():
                    rows.append({**about, "mode": mode, "system": system, **figures})
                    shown = f"{figures['ms']:10.3f} ms" if "ms" in figures else figures["status"]
                    sys.stderr.write(f"{model:5} {dataset:8} {mode:9} {system:28} {shown}\n")
            if not args.small:
                written(rows)


def written(rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, and keep those of earlier runs for other layers, graphs or precisions."""
    keys = ("model", "dataset", "precision")
    new = {tuple(row[key] for key in keys) for row in rows}
    old = record.read_rows("graph_layers")
    rows = [*(row for row in old if tuple(row[key] for key in keys) not in new), *rows]
    by_precision = {
        precision: gains([row for row in rows if row["precision"] == precision])
        for precision in dict.fromkeys(row["precision"] for row in rows)
    }
    rival_versions = record.versions("torch-geometric")
    record.write("graph_layers", {"gains": by_precision, "rival_versions": rival_versions, "rows": rows})


if __name__ == "__main__":
    main()
