"""Section of ``docs/benchmarks.md`` about graph networks: compiled layers, sums over neighbours, features."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.drawing import KIB, Result
from benchmarks.plots_graph import MODELS, OURS_UNPLANNED, best_rivals, measured
from benchmarks.sections import number, percent, section, signed, table_of

# Gains over the peers of its day that [Wu24] published, inference and training.
_PUBLISHED = {"rgcn": (1.79, 2.59), "rgat": (8.56, 11.34), "hgt": (2.87, 8.02)}
_MODES = ("inference", "training")


def graph_networks(kernels: Result, layers: Result, features: Result, minibatch: Result) -> str:
    """Section of measured graph networks: layers and sums compared with rivals, rows read over the link."""
    return section(
        "Graph networks",
        "One H100; HGT on `mag` and rows over the link on one H200, each with its rivals. Layers from 64 to 64 "
        "numbers, one head, planned for synthetic graphs with the sizes of eight data sets, beside PyG's and layers "
        "written by hand around `grouped_mm`. float32 with TF32 products. A gain is the time of the fastest rival over "
        f"ours. {_not_run(layers['rows'])}",
        "graph-layers",
        "Time of RGCN, RGAT and HGT on eight graphs, inference and training: planned layers and the fastest rival",
        "\n".join((_gains(layers), _sums(kernels["rows"]), _gathers(features["gather"]))),
        _won(kernels["rows"], layers, features),
        _lost(layers, features, minibatch),
        kernels,
        layers,
        features,
        minibatch,
    )


def _not_run(rows: Sequence[Result]) -> str:
    whole = {row["dataset"] for row in rows}
    late = []
    for model, title in MODELS.items():
        of = {row["dataset"] for row in rows if row["model"] == model and row["status"] == "out of time"}
        if of:
            late.append(f"{title} ran out of the run's time on {len(of)} of {len(whole)} graphs.")
    return " ".join(["Rivals under `torch.compile` were left out of this run.", *late])


def _gains(layers: Result) -> str:
    rows = []
    for gain in layers["gains"]["high"]:
        ratios = gain["by_dataset"].values()
        published = _PUBLISHED[gain["model"]][_MODES.index(gain["mode"])]
        rows.append(
            [
                MODELS[gain["model"]],
                gain["mode"],
                str(len(ratios)),
                number(gain["geometric_mean"]),
                f"{number(min(ratios))} to {number(max(ratios))}",
                f"{published}",
            ]
        )
    return table_of(["layer", "pass", "graphs", "gain, geometric mean", "least to most", "Hector, as published"], rows)


def _sums(rows: Sequence[Result]) -> str:
    of_sums = [row for row in rows if row["case"] == "sum"]
    lines = []
    for name in dict.fromkeys(row["graph"] for row in of_sums):
        here = [row for row in of_sums if row["graph"] == name]
        times = (f"{number(min(row[f'{of}_ms'] for row in here))} to {number(max(row[f'{of}_ms'] for row in here))}"
                 for of in ("ours", "torch_sparse", "cupy"))  # fmt: skip
        gains = [row["torch_sparse_ms"] / row["ours_ms"] for row in here]
        lines.append([name, f"{here[0]['edges']:,}", *times, f"{min(gains):.2f} to {max(gains):.2f}"])
    widths = sorted({row["features"] for row in of_sums})
    header = ["graph", "edges", "`update_all`, ms", "`torch.sparse`, ms", "cupy, ms", "gain over `torch.sparse`"]
    return (
        f"Sums over neighbours, from {widths[0]} to {widths[-1]} features, beside cuSPARSE called from PyTorch and "
        "from cupy:\n\n" + table_of(header, lines)
    )


def _gathers(rows: Sequence[Result]) -> str:
    lines = [
        [
            f"{4 * row['features']:,}",
            number(row["in_place_gbps"]),
            percent(row["share_of_link"]),
            number(row["index_select_over_host_memory_gbps"]),
            number(row["in_place_of_pinned_gbps"]),
            number(row["processor_and_copy_gbps"]),
        ]
        for row in rows
    ]
    header = [
        "bytes of a row",
        "in place, GB/s",
        "of the link",
        "`index_select`, GB/s",
        "of pinned memory, GB/s",
        "processor and copy, GB/s",
    ]
    return (
        "Random rows of a table in host memory: read in place by the GPU, by PyTorch's `index_select` over the same "
        "memory, by our kernel from memory that PyTorch pinned, and gathered by the processor and copied. One large "
        f"copy reaches {number(rows[0]['link_gbps'])} GB/s.\n\n" + table_of(header, lines)
    )


def _won(kernels: Sequence[Result], layers: Result, features: Result) -> str:
    best = best_rivals(layers["rows"])
    ours = measured(layers["rows"], "loadmaster")
    ratios = [rival["ms"] / ours[cell]["ms"] for cell, rival in best.items() if cell in ours]
    peaks = [ours[cell]["peak_bytes"] / rival["peak_bytes"] for cell, rival in best.items() if cell in ours]
    starved = sum(row["status"] == "out of memory" for row in layers["rows"] if row["system"].startswith("loadmaster"))
    others = sum(row["status"] == "out of memory" for row in layers["rows"]) - starved
    faster = sum(ratio > 1 for ratio in ratios)
    sums = [row["torch_sparse_ms"] / row["ours_ms"] for row in kernels if row["case"] == "sum"]
    attention = {row["who"]: row for row in kernels if row["case"] == "attention"}
    mine, pyg = attention["ours"], attention["PyG GATConv"]
    hot = features["hot_rows"]
    return (
        f"Planned layers are faster than the fastest rival in {faster} of {len(ratios)} cells, with "
        f"{percent(min(peaks))} to {percent(max(peaks))} of its peak; {starved} of ours and {others} of the rivals' "
        f"cells ran out of memory. Sums take {percent(1 / max(sums))} to {percent(1 / min(sums))} of `torch.sparse`'s "
        f"time. Training two layers of attention on {mine['nodes']:,} nodes and {mine['edges']:,} edges is "
        f"{pyg['step_ms'] / mine['step_ms']:.1f} times as fast as with PyG's `GATConv`, at "
        f"{percent(mine['peak_gib'] / pyg['peak_gib'])} of its memory. Hot rows were predicted to serve "
        f"{signed(hot['predicted'])} of the reads, and served {signed(hot['measured'])}."
    )


def _lost(layers: Result, features: Result, minibatch: Result) -> str:
    return f"{_doubts(layers)}\n\n{_new_blocks(minibatch['rows'])}\n\n{_limits_of_gathers(features)}"


def _new_blocks(rows: Sequence[Result]) -> str:
    """Compare a step on a block that a layer sees for the first time with the fastest of PyG's."""
    said = []
    for model, data in dict.fromkeys((row["model"], row["dataset"]) for row in rows):
        here = [row for row in rows if (row["model"], row["dataset"]) == (model, data) and "step_ms" in row]
        ours = next(row for row in here if row["system"] == "loadmaster")
        rival = min(row["step_ms"] for row in here if row is not ours)
        said.append(
            f"{MODELS[model]} on {data} {number(ours['step_ms'])} ms, PyG {number(rival)} ms, ours again on the same "
            f"block {number(ours['again_ms'])} ms"
        )
    return (
        f"On sampled blocks we are slower than PyG: {'; '.join(said)}. The difference is what a layer makes of each "
        "new block on the host: edges by relation, degrees, rows to read."
    )


def _doubts(layers: Result) -> str:
    rows = layers["rows"]
    ours, rule = measured(rows, "loadmaster"), measured(rows, OURS_UNPLANNED)
    beside = [ours[cell]["ms"] / rule[cell]["ms"] for cell in ours if cell in rule]
    pyg = measured(rows, "pyg RGATConv")
    training = {cell: row["ms"] for cell, row in pyg.items() if cell[2] == "training"}
    gains = [ms / ours[cell]["ms"] for cell, ms in training.items()]
    without = len({row["dataset"] for row in rows}) - len(training)
    return (
        f"The large gains in training RGAT are over a weak rival: PyG's layer runs out of memory on {without} graphs, "
        "and the layer written by hand has a slow backward pass. Where PyG's ran, gains are "
        f"{number(min(gains))} to {number(max(gains))}.\n\nA plan is not always the fastest of our own schedules. In "
        f"{sum(one > 1.05 for one in beside)} of {len(beside)} cells it takes over 5 % longer than the schedule by "
        f"rule that `compile` uses without a plan, up to {max(beside):.2f} times as long. In "
        f"{sum(one < 0.95 for one in beside)} it takes over 5 % less, down to {min(beside):.2f} times. "
        f"`tune` times both.\n\nIn bfloat16 RGAT was measured on three small graphs only: gains of "
        f"{_bf16_gains(layers)}."
    )


def _bf16_gains(layers: Result) -> str:
    gains = [ratio for gain in layers["gains"]["bf16"] for ratio in gain["by_dataset"].values()]
    return f"{number(min(gains))} to {number(max(gains))}"


def _limits_of_gathers(features: Result) -> str:
    rows, steps, parts = features["gather"], {row["pipeline"]: row for row in features["step"]}, features["parts"]
    at = {4 * row["features"]: row for row in rows}
    sizes = (256, 512, KIB, 4 * KIB)
    shares, gains = ([at[size][of] for size in sizes] for of in ("share_of_link", "times_processor"))
    slow = [f"{4 * row['features']:,}" for row in rows if row["times_processor"] < 1]
    beside = f" At {' and '.join(slow)} bytes the processor is faster." if slow else ""
    peer, ours = steps["pinned prefetch"]["step_ms"], steps["in place"]["step_ms"]
    return (
        "Of the link, 90 % was asked for from rows of 256 bytes on, and 95 % from 1 KiB on. Reading in place reaches "
        f"{', '.join(percent(share) for share in shares[:-1])} and {percent(shares[-1])} at 256, 512, 1,024 and 4,096 "
        f"bytes. That is {min(gains):.1f} to {max(gains):.1f} times what {features['threads']} cores and a copy "
        f"reach, where 1.7 was asked for.{beside} Of memory that PyTorch pinned, the same kernel reads "
        f"{number(at[256]['in_place_of_pinned_gbps'])} GB/s at 256 bytes and "
        f"{number(at[KIB]['in_place_of_pinned_gbps'])} at 1 KiB: a GPU maps such memory in small "
        f"pages. Training GraphSAGE on {features['hot_rows']['edges'] / 1e6:.0f} million edges takes "
        f"{ours:.2f} ms a step in place, {steps['in place, hot rows']['step_ms']:.2f} ms with hot rows, and "
        f"{peer:.2f} ms with the processor's pinned "
        f"prefetch: in place is {peer / ours:.2f} times as fast, where 1.5 was asked for. Alone, training takes "
        f"{parts['train_ms']:.2f} ms of that, sampling {parts['sample_ms']:.2f}, reading in place "
        f"{parts['in_place_ms']:.2f} and the processor's gather {parts['processor_ms']:.2f}. So hiding all but "
        f"training would make a step {peer / parts['train_ms']:.2f} times as fast as the prefetch."
    )
