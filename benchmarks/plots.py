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
    finished,
    panels,
    points,
)
from benchmarks.page_rows import GRAPH_LAYERS, METHODS, MODELS, by_method, fastest_rivals, layer_rows, requests

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
    """Draw every plot; returns their files."""
    FOLDER.mkdir(exist_ok=True)
    written = []
    for name, (source, draw) in PLOTS.items():
        path = FOLDER / f"{name}.svg"
        with matplotlib.rc_context(_STYLE):
            draw(results[source]).savefig(path, metadata={"Date": None}, bbox_inches="tight")
        path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
        written.append(path)
    return written


def step_against_peak(result: Result) -> Figure:
    """A panel for each model: step time against measured peak, plans and what PyTorch offers."""
    cases = sorted({row["case"] for row in result["rows"]})
    found = panels([TITLES[case] for case in cases], rows=3, size=(9, 8))
    return _steps_and_peaks(found, result["rows"], cases)


def two_models(result: Result) -> Figure:
    """Draw the README's picture: step time against peak for ResNet-50 and GPT-2-medium."""
    titles = ("ResNet-50, batch 184, float32 (TF32)", "GPT-2-medium, 32 x 1024 tokens, bfloat16")
    return _steps_and_peaks(panels(titles, size=(9, 3.4)), result["rows"], ("resnet50", "gpt2_medium"))


def _steps_and_peaks(found: list[Axes], rows: Iterable[Result], cases: Iterable[str]) -> Figure:
    for case, axes in zip(cases, found, strict=True):
        measured = [row for row in rows if row["case"] == case and "step_us" in row]
        for method, style, colour, size, label in (
            ("loadmaster", "o-", OURS, 3, "Loadmaster, by budget"),
            ("compile", "s:", COMPILE, 4, "torch.compile and its knob"),
            ("compile checkpoint", "^", CHECKPOINT, 5, "torch.compile, checkpoint on blocks"),
            ("eager", "D", EAGER, 5, "plain PyTorch"),
        ):
            of = [r for r in measured if r["method"] == method and r.get("budget", "sweep").startswith("sweep")]
            pairs = sorted((row["peak_bytes"] / GIB, row["step_us"] / 1e3) for row in of)
            points(axes, pairs, style, colour, label, size)
        axes.margins(y=0.12)
        axes.set_xlim(left=0)
    return finished(found, "measured peak, GiB", "forward and backward pass, ms")


def under_a_limit(result: Result) -> Figure:
    """A panel for each model: measured steps of the pager against the limit, and the bound."""
    cases = list(dict.fromkeys(row["case"] for row in result["rows"]))
    found = panels([TITLES[case] for case in cases])
    for case, axes in zip(cases, found, strict=True):
        rows = [row for row in result["rows"] if row["case"] == case]
        for method, key, label, colour, style in (
            ("demand", "step_ms", "by demand", EAGER, "s--"),
            ("correlation", "step_ms", "correlation prefetching", COMPILE, "^-"),
            ("planned", "step_ms", "planned", OURS, "o-"),
            ("planned", "bound_ms", "proved bound", OURS, ":"),
        ):
            pairs = [(100 * row["share"], row[key]) for row in rows if row["method"] == method]
            points(axes, pairs, style, colour, label)
        plain = next(row for row in rows if row["method"] == "plain")
        axes.axhline(plain["step_ms"], color="black", linewidth=0.8, label="plain PyTorch, all memory")
        axes.set_ylim(bottom=0)
        axes.invert_xaxis()
    return finished(found, "device memory, % of what the step takes without a limit", "step, ms", columns=5)


def split_over_gpus(result: Result) -> Figure:
    """Draw bars of bytes received for each method."""
    (axes,) = panels([""])
    for n, ((name, found), colour) in enumerate(zip(by_method(result).items(), (OURS, COMPILE, EAGER), strict=True)):
        over = [found[method]["objective"] / found["auto"]["objective"] for method in METHODS]
        bars = axes.bar([at + (n - 1) * 0.27 for at in range(len(over))], over, 0.27, color=colour, label=MODELS[name])
        axes.bar_label(bars, [f"{value:.2f}" for value in over], fontsize=7)
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.set_xticks(range(len(METHODS)), METHODS.values())
    return finished([axes], y="bytes received,\ntimes the optimum")


def graph_layers(result: Result) -> Figure:
    """A panel for each layer and pass: time by graph, ours and the fastest rival's."""
    graphs = list(dict.fromkeys(row["dataset"] for row in result["rows"]))
    kinds = [(model, mode) for mode in ("inference", "training") for model in GRAPH_LAYERS]
    titles = [f"{GRAPH_LAYERS[model]}, {mode}" for model, mode in kinds]
    found = panels(titles, rows=2, size=(9, 5), sharex=True, sharey="row")
    for (model, mode), axes in zip(kinds, found, strict=True):
        for of, label, colour, style in (
            (fastest_rivals(result["rows"]), "fastest rival that ran", EAGER, "s--"),
            (layer_rows(result["rows"], "loadmaster"), "planned", OURS, "o-"),
        ):
            cells = [(at, of.get((model, graph, mode))) for at, graph in enumerate(graphs)]
            points(axes, [(at, row["ms"]) for at, row in cells if row is not None], style, colour, label)
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.set_xticks(range(len(graphs)), graphs, rotation=60)
    return finished(found, "graphs, by number of edges", "a call, ms")


def latency_against_size(result: Result) -> Figure:
    """Panels: NCCL's time over ours by size, for eager calls and under CUDA graphs."""
    titles = ("calls of torch.distributed, eager", "the same calls in a CUDA graph")
    found = panels(titles, sharey=True)
    colours, styles = (OURS, COMPILE, CHECKPOINT, EAGER), ("o-", "s-", "^-", "D-")
    for axes, mode in zip(found, ("eager", "graph"), strict=True):
        for name, style, colour in zip(COLLECTIVES, styles, colours, strict=True):
            rows = [row for row in result["rows"] if row["collective"] == name]
            pairs = [(row["size_bytes"], row[f"{mode}_nccl_over_loadmaster"]) for row in rows]
            points(axes, pairs, style, colour, COLLECTIVES[name], 3)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks([KIB, 32 * KIB, MIB, 32 * MIB, GIB], ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"])
    return finished(found, y="NCCL's time / Loadmaster's")


def index_workloads(result: Result) -> Figure:
    """A panel for each distribution of keys: throughput by the share of inserts, planned and peer."""
    names = list(dict.fromkeys(row["distribution"] for row in result["rows"]))
    found = panels(names, size=(9, 2.8))
    for name, axes in zip(names, found, strict=True):
        rows = [row for row in result["rows"] if row["distribution"] == name]
        for shift, side, label, colour in ((-0.2, "peer", "gapped array", EAGER), (0.2, "planned", "planned", OURS)):
            at = [n + shift for n in range(len(rows))]
            axes.bar(at, [row[f"{side}_mops"] for row in rows], 0.38, color=colour, label=label)
        axes.set_xticks(range(len(rows)), [f"{100 * row['inserts']:.0f} %" for row in rows])
        axes.grid(axis="x", visible=False)
    return finished(found, "inserts among operations", "million operations a second")


def service(result: Result) -> Figure:
    """Show how long each request takes: median, 99 of 100, and the longest."""
    (axes,) = panels([""], size=(7, 2.4))
    for key, colour, label in (
        ("p50_ms", OURS, "median"),
        ("p99_ms", COMPILE, "99 of 100"),
        ("max_ms", EAGER, "longest"),
    ):
        points(axes, [(found[key], at) for at, found in enumerate(requests(result).values())], "o", colour, label, 5)
    axes.set_xscale("log")
    axes.set_yticks(range(len(requests(result))), requests(result))
    axes.invert_yaxis()
    return finished([axes], "ms")


PLOTS: dict[str, tuple[str, Callable[[Result], Figure]]] = {
    "two-models": ("memory_gpu", two_models),
    "step-against-peak": ("memory_gpu", step_against_peak),
    "under-a-limit": ("pager", under_a_limit),
    "split-over-gpus": ("partition", split_over_gpus),
    "graph-layers": ("graph_layers", graph_layers),
    "latency-against-size": ("collective_gpu_2", latency_against_size),
    "index-workloads": ("index_workloads", index_workloads),
    "service": ("service_load", service),
}
"""By the name of the file: the result that it shows, and what draws it."""
