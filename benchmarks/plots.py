"""Plots of ``docs/benchmarks.md`` and of the README, drawn from ``benchmarks/results/`` as SVG.

Each function draws one picture from one result and returns it. :func:`write_all` puts them into ``docs/plots/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.drawing import (
    CHECKPOINT,
    COLLECTIVES,
    COMPILE,
    EAGER,
    GIB,
    KIB,
    MIB,
    OURS,
    TITLES,
    Result,
    columns,
    legend,
    peaks_and_steps,
)
from benchmarks.plots_graph import graph_layers
from benchmarks.plots_index import index_workloads
from benchmarks.plots_partition import split_over_gpus
from benchmarks.plots_placement import tensor_cache, training_state, under_a_limit

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "plots"
# The same text and the same numbers give the same file.
_STYLE = {
    "svg.hashsalt": "loadmaster",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def write_all(results: Mapping[str, Result]) -> list[Path]:
    """Draw every plot whose result is there; returns their files."""
    FOLDER.mkdir(exist_ok=True)
    written = []
    for name, (source, draw) in PLOTS.items():
        if source in results:
            with matplotlib.rc_context(_STYLE):
                figure = draw(results[source])
                path = FOLDER / f"{name}.svg"
                figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
                path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
            written.append(path)
    return written


def step_against_peak(result: Result) -> Figure:
    """A panel for each model: step time against measured peak, plans and what PyTorch offers."""
    cases = sorted({row["case"] for row in result["rows"]})
    figure = Figure(figsize=(9, 8), layout="constrained")
    panels = figure.subplots(3, -(-len(cases) // 3)).flat
    for case, axes in zip(cases, panels, strict=False):
        _panel(axes, result["rows"], case)
    figure.legend(*legend(figure), loc="outside upper center", ncols=4)
    figure.supxlabel("measured peak, GiB")
    figure.supylabel("forward and backward pass, ms")
    return figure


def two_models(result: Result) -> Figure:
    """Draw the README's picture: step time against peak for ResNet-50 and GPT-2-medium."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, result["rows"], "resnet50")
    _panel(right, result["rows"], "gpt2_medium")
    left.set_title("ResNet-50, batch 184, float32 (TF32)")
    right.set_title("GPT-2-medium, 32 x 1024 tokens, bfloat16")
    left.set_ylabel("forward and backward pass, ms")
    for axes in (left, right):
        axes.set_xlabel("measured peak, GiB")
    figure.legend(*legend(figure), loc="outside upper center", ncols=4)
    return figure


def _panel(axes: Axes, rows: Iterable[Result], case: str) -> None:
    measured = [row for row in rows if row["case"] == case and "step_us" in row]
    ours = sorted(
        peaks_and_steps(r for r in measured if r["method"] == "loadmaster" and r["budget"].startswith("sweep"))
    )
    axes.plot(*columns(ours), color=OURS, marker="o", markersize=3, label="Loadmaster, by budget")
    compiled = sorted(peaks_and_steps(r for r in measured if r["method"] == "compile"))
    axes.plot(
        *columns(compiled), color=COMPILE, marker="s", markersize=4, linestyle=":", label="torch.compile and its knob"
    )
    for method, color, marker, label in (
        ("compile checkpoint", CHECKPOINT, "^", "torch.compile, checkpoint on blocks"),
        ("eager", EAGER, "D", "plain PyTorch"),
    ):
        points = peaks_and_steps(r for r in measured if r["method"] == method)
        if points:
            axes.plot(*columns(points), color=color, marker=marker, markersize=5, linestyle="", label=label)
    axes.set_title(TITLES.get(case, case))
    axes.margins(y=0.12)
    axes.set_xlim(left=0)


def memory_at_overhead(result: Result) -> Figure:
    """Bars: the share of eager's peak that a step 10 % longer than torch.compile's needs."""
    table = result["figure_3_memory_at_10_percent_overhead"]
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    places = range(len(table))
    axes.bar([p - 0.2 for p in places], [100 * row["share_of_eager"] for row in table], 0.4, color=OURS)
    axes.bar([p + 0.2 for p in places], [100 * row["published_share"] for row in table], 0.4, color=EAGER)
    axes.set_xticks(list(places), [TITLES[row["case"]] for row in table])
    axes.set_ylabel("% of plain PyTorch's peak")
    axes.legend(["Loadmaster", "MONeT, as published"])
    return figure


def ablation(result: Result) -> Figure:
    """Bars: the overhead over torch.compile's step by what plans may choose from."""
    table = [row for row in result["figure_4_ablation"] if row["overhead_percent"] is not None]
    cases = list(dict.fromkeys(row["case"] for row in table))
    sorts = list(dict.fromkeys(row["implementations"] for row in result["figure_4_ablation"]))
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(sorts)
    colours = matplotlib.colormaps["Blues"]
    for place, sort in enumerate(sorts):
        rows = [row for row in table if row["implementations"] == sort]
        at = [cases.index(row["case"]) + (place - len(sorts) / 2 + 0.5) * width for row in rows]
        axes.bar(at, [row["overhead_percent"] for row in rows], width, label=sort, color=colours(0.3 + 0.12 * place))
    axes.set_xticks(range(len(cases)), [TITLES[case] for case in cases])
    axes.set_ylabel("% over torch.compile's step")
    figure.legend(*legend(figure), loc="outside right center")
    return figure


def planned_and_measured(result: Result) -> Figure:
    """Two panels: measured over planned, of step time and peak, by model."""
    points = [row for row in result["figure_2_points"] if "step_ms" in row]
    cases = sorted({row["case"] for row in points})
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, error, title in zip(
        figure.subplots(1, 2),
        ("time_error_percent", "peak_error_percent"),
        ("step time", "peak of memory"),
        strict=True,
    ):
        for place, case in enumerate(cases):
            values = [row[error] for row in points if row["case"] == case]
            axes.plot(values, [place] * len(values), "o", color=OURS, markersize=3, alpha=0.5)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(cases)), [TITLES[case] for case in cases])
        axes.set_title(title)
        axes.set_xlabel("planned above (+) or below (-) measured, %")
    return figure


def latency_against_size(result: Result) -> Figure:
    """Panels: NCCL's time over ours by size, for eager calls and under CUDA graphs."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    styles = {"allreduce": "o-", "allgather": "s-", "reduce_scatter": "^-", "alltoall": "D-"}
    colours = (OURS, COMPILE, CHECKPOINT, EAGER)
    for axes, mode, title in zip(
        figure.subplots(1, 2, sharey=True),
        ("eager", "graph"),
        ("calls of torch.distributed, eager", "the same calls in a CUDA graph"),
        strict=True,
    ):
        for (name, style), colour in zip(styles.items(), colours, strict=True):
            rows = [row for row in result["rows"] if row["collective"] == name]
            ratios = [row[f"{mode}_nccl_over_loadmaster"] for row in rows]
            sizes = [row["size_bytes"] for row in rows]
            axes.plot(sizes, ratios, style, color=colour, markersize=3, label=COLLECTIVES[name])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks([KIB, 32 * KIB, MIB, 32 * MIB, GIB], ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"])
        axes.set_title(title)
    figure.axes[0].set_ylabel("NCCL's time / Loadmaster's")
    figure.legend(*legend(figure), loc="outside upper center", ncols=4)
    return figure


def distributed_training(result: Result) -> Figure:
    """Bars with quartiles: steps with NCCL and with planned collectives, by blocks of a call."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    for axes, wrapper, title in zip(figure.subplots(1, 2), ("ddp", "fsdp"), ("DDP", "FSDP2"), strict=True):
        rows = [row for row in result["rows"] if row["wrapper"] == wrapper]
        names = [row["collectives"].removeprefix("planned, ").replace("plain", "NCCL") for row in rows]
        middles = [row["step_us"] / 1e3 for row in rows]
        spread = [[(row["step_us"] - row["q1_us"]) / 1e3 for row in rows]]
        spread.append([(row["q3_us"] - row["step_us"]) / 1e3 for row in rows])
        colours = [COMPILE if name == "NCCL" else OURS for name in names]
        axes.barh(names, middles, color=colours, xerr=spread, error_kw={"linewidth": 0.8})
        axes.invert_yaxis()
        axes.set_title(title)
        axes.set_xlabel("step, ms")
    return figure


def time_to_proof(result: Result) -> Figure:
    """Points: seconds of solving against what is left unproved, published instances of ``memory``."""
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    for family, colour in (("resnet50", OURS), ("mobilenet", COMPILE), ("unet", CHECKPOINT)):
        rows = [row for row in result["rows"] if row["instance"].startswith(family)]
        points = [(row["cpu_seconds"], row["gap_percent"]) for row in rows if row["gap_percent"] is not None]
        axes.plot(*columns(points), "o", color=colour, markersize=4, label=family)
    axes.set_xlabel("CPU seconds, one thread")
    axes.set_ylabel("gap that is left, %")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend()
    return figure


PLOTS: dict[str, tuple[str, Callable[[Result], Figure]]] = {
    "two-models": ("memory_gpu", two_models),
    "step-against-peak": ("memory_gpu", step_against_peak),
    "memory-at-10-percent": ("memory_gpu", memory_at_overhead),
    "ablation": ("memory_gpu", ablation),
    "planned-and-measured": ("memory_gpu", planned_and_measured),
    "latency-against-size": ("collective_gpu_2", latency_against_size),
    "distributed-training": ("collective_training_2", distributed_training),
    "time-to-proof": ("memory_reference", time_to_proof),
    "training-state": ("placement", training_state),
    "under-a-limit": ("pager", under_a_limit),
    "tensor-cache": ("tensor_cache_steps", tensor_cache),
    "split-over-gpus": ("partition", split_over_gpus),
    "graph-layers": ("graph_layers", graph_layers),
    "index-workloads": ("index_workloads", index_workloads),
}
"""By the name of the file: the result that it shows, and what draws it."""
