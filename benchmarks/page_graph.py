"""Story of ``docs/benchmarks.md`` about ``graph``: compiled layers, sums over neighbours, features on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.drawing import KIB, Result
from benchmarks.page_rows import GRAPH_LAYERS, fastest_rivals, layer_rows
from benchmarks.sections import none_or, number, percent, plot, section, span, table

# Gains over the peers of its day that [Wu24] published, inference and training.
_PUBLISHED = {"rgcn": (1.79, 2.59), "rgat": (8.56, 11.34), "hgt": (2.87, 8.02)}


def graph_networks(results: Mapping[str, Result]) -> Iterator[str]:
    """Tell about plans of ``graph``, sums over neighbours and rows read over the link, compared with rivals."""
    blocks, features = results["graph_minibatch"], results["graph_features"]
    steps: dict[tuple[str, str], dict[str, Result]] = {}
    for row in blocks["rows"]:
        steps.setdefault((row["model"], row["dataset"]), {})[row["system"]] = row
    pairs = [(of.pop("loadmaster"), min(row["step_ms"] for row in of.values())) for of in steps.values()]
    yield section(
        "Graph networks",
        "A plan of `graph` says which products of a layer come first, which values are kept, and which kernel makes "
        "each of them.",
        f"**Not reached.** On a sampled block a step takes {span(our['step_ms'] / pyg for our, pyg in pairs)} times "
        f"PyG's, and {span(our['again_ms'] / pyg for our, pyg in pairs)} times where the layer has seen the block: "
        "what it makes of a new one on the host takes the rest. Rows read over the link reach "
        f"{span((row['share_of_link'] for row in features['gather']), '.0%')} of its rate.",
        level=2,
    )
    yield _layers(results["graph_layers"], results["graph_kernels"], blocks)
    yield _reads(features)


def _layers(layers: Result, kernels: Result, blocks: Result) -> str:
    rows, sums = layers["rows"], [row for row in kernels["rows"] if row["case"] == "sum"]
    attention = {row["who"]: row for row in kernels["rows"] if row["case"] == "attention"}
    mine, theirs = attention["ours"], attention["PyG GATConv"]
    ours, rule, rivals = layer_rows(rows, "loadmaster"), layer_rows(rows, "loadmaster unplanned"), fastest_rivals(rows)
    cells = [cell for cell in rivals if cell in ours]
    faster = sum(rivals[cell]["ms"] > ours[cell]["ms"] for cell in cells)
    peaks = [ours[cell]["peak_bytes"] / rivals[cell]["peak_bytes"] for cell in cells]
    starved = [row["system"].startswith("loadmaster") for row in rows if row["status"] == "out of memory"]
    of_rule = [ours[cell]["ms"] / rule[cell]["ms"] for cell in ours if cell in rule]
    pyg = {cell: row for cell, row in layer_rows(rows, "pyg RGATConv").items() if cell[2] == "training"}
    return section(
        "Layers",
        f"Layers from 64 to 64 features with one head, on synthetic graphs with the sizes of "
        f"{len({row['dataset'] for row in rows})} data sets. Rivals are PyG's layers and layers written by hand around "
        "`grouped_mm`; `torch.compile` was left out. float32 with TF32 products. A gain is the time of the fastest "
        f"rival over ours. {sum('H200' in row['gpu'] for row in rows)} of {len(rows)} rows ran on an H200, with their "
        "rivals.",
        plot("graph-layers", "Time of RGCN, RGAT and HGT by graph, inference and training: planned and fastest rival"),
        table(
            "layer | pass | graphs | gain, geometric mean | least to most | Hector, as published",
            (
                [
                    GRAPH_LAYERS[gain["model"]],
                    gain["mode"],
                    len(gain["by_dataset"]),
                    gain["geometric_mean"],
                    " to ".join(number(of(gain["by_dataset"].values())) for of in (min, max)),
                    str(_PUBLISHED[gain["model"]][gain["mode"] == "training"]),
                ]
                for gain in layers["gains"]["high"]
            ),
        ),
        f"Planned layers are faster than the fastest rival in {faster} of {len(cells)} cells, with "
        f"{span(peaks, '.0%')} of its peak. {none_or(sum(starved)).capitalize()} of our cells and "
        f"{len(starved) - sum(starved)} of the rivals' ran out of memory. The large gains in training RGAT are over a "
        f"weak rival: where PyG's own layer ran, they are "
        f"{span((row['ms'] / ours[cell]['ms'] for cell, row in pyg.items()), '.1f')}. A plan is not always our fastest "
        f"schedule. In {sum(ratio > 1.05 for ratio in of_rule)} of {len(of_rule)} cells it takes over 5 % longer than "
        "the schedule by rule that `compile` uses without a plan, and in "
        f"{sum(ratio < 0.95 for ratio in of_rule)} over 5 % less ({span(of_rule)} times). `tune` times both.",
        f"Sums over neighbours take {span(row['ours_ms'] / row['torch_sparse_ms'] for row in sums)} of the time of "
        f"cuSPARSE called from PyTorch. Training two layers of attention on {mine['edges']:,} edges is "
        f"{theirs['step_ms'] / mine['step_ms']:.1f} times as fast as with PyG's `GATConv`, in "
        f"{percent(mine['peak_gib'] / theirs['peak_gib'])} of its memory.",
        sources=[layers, kernels, blocks],
    )


def _reads(features: Result) -> str:
    rows, hot, steps = features["gather"], features["hot_rows"], {r["pipeline"]: r for r in features["step"]}
    return section(
        "Features in host memory",
        "Random rows of a table in host memory, in GB/s: read in place by the GPU, by PyTorch's `index_select` over "
        "the same memory, by our kernel from memory that PyTorch pinned, and gathered by "
        f"{features['threads']} cores and copied. One large copy reaches {number(rows[0]['link_gbps'])} GB/s.",
        table(
            "bytes of a row | in place | of the link | `index_select` | pinned memory | cores and copy",
            (
                [
                    f"{4 * row['features']:,}",
                    row["in_place_gbps"],
                    percent(row["share_of_link"]),
                    row["index_select_over_host_memory_gbps"],
                    row["in_place_of_pinned_gbps"],
                    row["processor_and_copy_gbps"],
                ]
                for row in rows
                if 4 * row["features"] in (256, 400, KIB, 4 * KIB)
            ),
        ),
        f"A step of GraphSAGE on {hot['edges'] / 1e6:.0f} million edges takes "
        f"{steps['in place']['step_ms']:.2f} ms in place, {steps['in place, hot rows']['step_ms']:.2f} ms with the "
        f"most read rows on the GPU, and {steps['pinned prefetch']['step_ms']:.2f} ms with prefetching by the "
        f"processor. Training alone takes {features['parts']['train_ms']:.2f} ms of it. Hot rows were predicted to "
        f"serve {percent(hot['predicted'], 1)} of the reads, and served {percent(hot['measured'], 1)}.",
        sources=[features],
    )
