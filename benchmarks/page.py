"""Writes ``docs/benchmarks.md`` and its plots from ``benchmarks/results/``.

    python -m benchmarks.page

Thirteen sections, each with its setup, a plot, a table of at most six columns, what was won and what was not, and the
command. Every number comes from the results, also those in the text; a test holds the page against them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.drawing import COLLECTIVES, GIB, KIB, MIB, TITLES, Result
from benchmarks.page_graph import graph_networks
from benchmarks.page_index import indexes
from benchmarks.page_partition import split_over_gpus
from benchmarks.page_placement import tensor_cache, training_state, under_a_limit
from benchmarks.plots import write_all
from benchmarks.sections import names, number, percent, section, signed, table_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
_INTRODUCTION = """# Benchmarks

What was measured, and beside what. The peer of each figure ran in the same run, on the same machine. Every row, with
its spread, is in [benchmarks/results](../benchmarks/results); this page is written from there by
`python -m benchmarks.page`. [benchmarks/README.md](../benchmarks/README.md) says how to repeat a run.
"""


def load() -> dict[str, Result]:
    """Read all recorded results by name."""
    found = (json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")))
    return {str(result["benchmark"]): result for result in found}


def render(results: Mapping[str, Result]) -> str:
    """Write the text of the page."""
    memory, models = results["memory_gpu"], results["memory_models"]
    sections = [
        _step_against_peak(memory, models),
        _memory_at_overhead(memory),
        _ablation(memory),
        _planned_and_measured(memory),
        _latency_against_size(results["collective_gpu_2"]),
        _distributed_training(results["collective_training_2"], results["memory_distributed"]),
        _time_to_proof(results["memory_reference"], results["collective_reference"], results["memory_frontier"]),
        training_state(results["placement"]),
        under_a_limit(results["pager"]),
        tensor_cache(results["tensor_cache_steps"], results["tensor_cache_files"]),
        split_over_gpus(
            results["partition"], *(results[f"partition_{of}"] for of in ("capture", "operators", "fuzz", "gpus_2"))
        ),
        graph_networks(*(results[f"graph_{of}"] for of in ("kernels", "layers", "features", "minibatch"))),
        indexes(*(results[f"index_{of}"] for of in ("workloads", "planning", "python"))),
    ]
    return "\n".join([_INTRODUCTION, *sections])


def _step_against_peak(memory: Result, models: Result) -> str:
    """Section of figures 1 and 2 of the benchmark, and the models of other repositories."""
    table = [row for row in memory["figure_1_against_pytorch"] if row.get("its_step_ms") is not None]
    points = memory["figure_2_points"]
    measured = [p for p in points if "step_ms" in p]
    slower = [m for m in models["models"] if m["step_ms"] > m["compiled_step_ms"] * 1.1]
    worst = max(models["models"], key=lambda m: m["step_ms"] / m["compiled_step_ms"])
    rows = [
        [TITLES[r["case"]], number(r["budget_gib"]), number(r["step_ms"]), number(r["its_step_ms"]), _theirs(r)]
        for r in table
    ]
    others = [
        [
            m["model"],
            number(m["budget_gib"]),
            *(number(m[n]) for n in ("step_ms", "compiled_step_ms", "eager_step_ms")),
        ]
        for m in models["models"]
    ]
    return section(
        "Step time against peak",
        "One forward and backward pass, gradients dropped before it, no optimizer. A plan's budget is a promise: the "
        f"measured peak of {sum(p['kept'] for p in measured)} of {len(measured)} plans is within it. "
        f"{len(points) - len(measured)} of {len(points)} budgets were refused, the tightest of a model.",
        "step-against-peak",
        "step time against measured peak of nine models",
        table_of(["model", "budget, GiB", "plan, ms", "PyTorch's best within it, ms", "which"], rows),
        f"At each of these {len(table)} budgets the plan takes {percent(min(r['ours_to_theirs'] for r in table))} to "
        f"{percent(max(r['ours_to_theirs'] for r in table))} of the step of PyTorch's fastest that fits.",
        f"Models of torchvision and transformers at 60 % of eager's peak are another matter: {len(slower)} of "
        f"{len(others)} plans take over 10 % longer than plain `torch.compile`, which needs more memory. The worst is "
        f"{worst['model'].split()[-1]}, {worst['step_ms'] / worst['compiled_step_ms']:.1f} times as long.\n\n"
        + table_of(["model", "budget, GiB", "plan, ms", "torch.compile, ms", "eager, ms"], others),
        memory,
        models,
    )


def _theirs(row: Result) -> str:
    return str(row["best_of_pytorch_within_it"]).replace("activation_memory_budget", "knob")


def _memory_at_overhead(memory: Result) -> str:
    table = memory["figure_3_memory_at_10_percent_overhead"]
    lost = [row for row in table if not row["won"]]
    rows = [
        [
            TITLES[row["case"]],
            number(row["eager_peak_gib"]),
            number(row["peak_at_10_percent_gib"]),
            percent(row["share_of_eager"]),
            percent(row["published_share"]),
        ]
        for row in table
    ]
    return section(
        "Memory at 10 % overhead",
        "The least memory in which a step is at most 10 % longer than `torch.compile`'s, as a share of plain PyTorch's "
        "peak. MONeT's published shares are beside it; its overhead is over the PyTorch of its day.",
        "memory-at-10-percent",
        "share of plain PyTorch's peak at 10 % overhead, six models",
        table_of(["model", "PyTorch's peak, GiB", "at 10 %, GiB", "share", "MONeT, as published"], rows),
        f"{len(table) - len(lost)} of {len(table)} models need less than published.",
        f"{names(lost)} need more: the published figures choose among convolution algorithms, which PyTorch offers no "
        "choice of inside a compiled graph.",
        memory,
    )


def _ablation(memory: Result) -> str:
    table = memory["figure_4_ablation"]
    cases = list(dict.fromkeys(row["case"] for row in table))
    sorts = list(dict.fromkeys(row["implementations"] for row in table))
    cell = {(row["case"], row["implementations"]): row["overhead_percent"] for row in table}
    unplanned = [{"case": c} for c in cases if cell[c, "none"] is None]
    shown = {key: "no plan" if value is None else f"{value:.1f} %" for key, value in cell.items()}
    rows = [[sort, *(shown[c, sort] for c in cases)] for sort in sorts]
    worse = [c for c in cases if (cell[c, "all and offload"] or 0) > (cell[c, "all"] or 0)]
    return section(
        "Ablation",
        "Overhead over `torch.compile`'s step at 0.53 of eager's peak, by what a plan may choose from besides "
        "PyTorch's own operators: backward passes from outputs, from small encodings (1-bit masks, 8-bit offsets), "
        "from inputs, all of these, and all with offload.",
        "ablation",
        "overhead by the implementations that a plan may choose from",
        table_of(["implementations", *(TITLES[c] for c in cases)], rows),
        f"Small encodings help most; without any implementations, {names(unplanned)} has no plan at this budget.",
        f"Offload makes the step longer on {names({'case': c} for c in worse)}: what is sent cuts the compiled graph, "
        "which had no price in these plans.",
        memory,
    )


def _planned_and_measured(memory: Result) -> str:
    table = memory["figure_2_sweep"]
    rows = [
        [
            TITLES[row["case"]],
            f"{row['kept']} of {row['measured']}",
            str(row["refused"]),
            f"{row['median_time_error_percent']:.1f} %",
            f"{row['median_peak_error_percent']:.1f} %",
        ]
        for row in table
    ]
    worst = max(table, key=lambda row: row["median_time_error_percent"])
    peak = max(table, key=lambda row: row["median_peak_error_percent"])
    return section(
        "Planned against measured",
        "Twenty budgets a model, from the least to above the peak of the unconstrained step.",
        "planned-and-measured",
        "planned over measured step time and peak, by model",
        table_of(["model", "budgets kept", "refused", "error of the time", "error of the peak"], rows),
        f"Peaks are planned within {peak['median_peak_error_percent']:.1f} % in the median, and no budget is passed.",
        f"Times are less exact: {TITLES[worst['case']]}'s are off by {worst['median_time_error_percent']:.1f} % in the "
        "median, since its large products run slower in a long step than when they are measured.",
        memory,
    )


def _latency_against_size(result: Result) -> str:
    sizes = {8 * KIB: "8 KiB", MIB: "1 MiB", 16 * MIB: "16 MiB", 256 * MIB: "256 MiB"}
    found = {(row["collective"], row["size_bytes"]): row for row in result["rows"]}
    rows = []
    for collective, title in COLLECTIVES.items():
        for size, words in sizes.items():
            row = found[collective, size]
            times = [row[mode][name]["median_us"] for mode in ("eager", "graph") for name in ("loadmaster", "nccl")]
            rows.append([title, words, *map(number, times)])
    small = [row for row in result["rows"] if row["size_bytes"] <= MIB]
    large = [row for row in result["rows"] if row["size_bytes"] >= 64 * MIB]
    left = [row for row in result["rows"] if row["runs"] == "inner"]
    hosts = [[row["eager"][name]["host_us"] for row in small] for name in ("loadmaster", "nccl")]
    summed = [
        row for row in result["rows"] if row["collective"] == "allreduce" and 512 * KIB <= row["size_bytes"] <= 64 * MIB
    ]
    return section(
        "Latency against size",
        f"{result['ranks']} {gpu_of(result)} of one host, {result['dtype']}. Both sides are the same calls of "
        "`torch.distributed`: after `use(...)`, which measures first and leaves to NCCL what that is faster at, and on "
        "NCCL alone. A figure is the mean of calls one after another.",
        "latency-against-size",
        "NCCL's time over Loadmaster's by size, eager and under CUDA graphs",
        table_of(["collective", "size", "eager, us", "NCCL, us", "in a graph, us", "NCCL, us"], rows),
        f"Eager, calls up to 1 MiB are {_span(small, 'eager')} times as fast as NCCL's, and from 64 MiB on "
        f"{_span(large, 'eager')} times; in a CUDA graph {_span(small, 'graph')} and {_span(large, 'graph')} times. "
        f"The host is busy with a small call for {number(statistics.median(hosts[0]))} us, with NCCL's for "
        f"{number(statistics.median(hosts[1]))}.",
        f"NCCL keeps {len(left)} of {len(result['rows'])} rows: there both sides are the same call, and differ by "
        f"noise ({_span(left, 'eager')}). In a graph 1.4 was asked for up to 1 MiB. AllReduce from 512 KiB to 64 MiB "
        f"is {_beside(summed, 'eager', 'two_shot_copied')} times as fast as PyTorch's two-shot with its copies (in a "
        f"graph {_beside(summed, 'graph', 'two_shot_copied')}); on shared memory, where neither copies, "
        f"{_beside(summed, 'eager', 'two_shot', 'shared')} times (in a graph "
        f"{_beside(summed, 'graph', 'two_shot', 'shared')}).",
        result,
    )


def gpu_of(result: Result) -> str:
    """Name the GPUs of a result in a word: H100s."""
    return f"{result['machine']['gpu'].removeprefix('NVIDIA ').split()[0]}s"


def _beside(rows: Sequence[Result], mode: str, name: str, ours: str = "loadmaster") -> str:
    ratios = [row[mode][name]["median_us"] / row[mode][ours]["median_us"] for row in rows]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _span(rows: Sequence[Result], mode: str) -> str:
    ratios = [row[f"{mode}_nccl_over_loadmaster"] for row in rows]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _distributed_training(collectives: Result, memory: Result) -> str:
    rows = [
        [
            {"ddp": "DDP", "fsdp": "FSDP2"}[row["wrapper"]],
            row["collectives"].replace("plain", "NCCL"),
            number(row["step_us"] / 1e3),
            f"{row['q1_us'] / 1e3:.1f} to {row['q3_us'] / 1e3:.1f}",
        ]
        for row in collectives["rows"]
    ]
    best = next(r for r in collectives["rows"] if r["wrapper"] == "fsdp" and r["collectives"] == "planned, 64 blocks")
    steps = {row["row"]: row for row in memory["rows"] if "step_us" in row}
    budgets = [
        [
            title,
            number(steps[f"{key} plan"]["budget_bytes"] / GIB),
            number(max(steps[f"{key} plan"]["peak_bytes"]) / GIB),
            number(steps[f"{key} plan"]["step_us"] / 1e3),
            number(max(steps[f"{key} eager"]["peak_bytes"]) / GIB),
            number(steps[f"{key} eager"]["step_us"] / 1e3),
        ]
        for key, title in (("ddp", "DDP"), ("fsdp2", "FSDP2"))
    ]
    return section(
        "Distributed training",
        f"A transformer on two {gpu_of(collectives)}, collectives of DDP and FSDP2 after `use(...)` and by NCCL; and "
        "GPT-2-medium under memory plans in both wrappers on two H200s, beside eager PyTorch.",
        "distributed-training",
        "step time under DDP and FSDP2, with NCCL and with planned collectives",
        table_of(["wrapper", "collectives", "step, ms", "quartiles, ms"], rows)
        + "\n"
        + table_of(["wrapper", "budget, GiB", "peak, GiB", "step, ms", "eager peak, GiB", "eager step, ms"], budgets),
        f"FSDP2 with planned collectives, as `use` has them, is {best['plain_over_planned']:.2f} times as fast as with "
        "NCCL. Memory plans keep their budget on both ranks, with the losses of plain training.",
        "In DDP, `use` measured that NCCL is faster beside computation at the sizes of its buckets, and left them all "
        "to it: what differs there is noise, and so it is with 16 blocks. Plans under FSDP2 and DDP have not been held "
        "against `torch.compile` yet.",
        collectives,
        memory,
    )


def _time_to_proof(memory: Result, collective: Result, frontier: Result) -> str:
    ratios = [row["objective_to_reference"] for row in memory["rows"] if row["objective_to_reference"] is not None]
    seconds = [row["cpu_seconds"] for row in memory["rows"]]
    rows = [
        [
            row["case"],
            f"{row['seconds']:.1f}",
            number(row["time_us"]),
            f"{row['gap_percent']:.1f} %",
            "" if row["taccl_seconds"] is None else number(row["taccl_seconds"]),
        ]
        for row in collective["rows"]
    ]
    points = [
        [
            number(p["budget_gib"]),
            number(p["objective_us"] / 1e3),
            f"{p['gap_percent']:.1f} %",
            number(p["cpu_seconds"]),
        ]
        for p in frontier["points"]
    ]
    loose = max(collective["rows"], key=lambda row: row["gap_percent"])
    return section(
        "Time to proof",
        f"{len(ratios)} published instances of `memory` beside what a commercial solver reached in a day, and "
        "published problems of TACCL beside its seconds. One thread.",
        "time-to-proof",
        "CPU seconds against the gap that is left, published instances of memory",
        table_of(["collective", "seconds", "plan, us", "gap", "TACCL, seconds"], rows)
        + "\nOne ResNet-50 on a 16 GB P100 under six budgets:\n\n"
        + table_of(["budget, GiB", "step, ms", "gap", "CPU seconds"], points),
        f"Memory plans are {signed(statistics.mean(ratios) - 1)} above the day's solve on average after a median of "
        f"{statistics.median(seconds):.0f} CPU seconds; the worst is {signed(max(ratios) - 1)} above.",
        f"Collectives are planned in {max(r['seconds'] for r in collective['rows']):.0f} s at most, but not all are "
        f"proved: `{loose['case']}` leaves a gap of {loose['gap_percent']:.0f} %.",
        memory,
        collective,
        frontier,
    )


def main() -> None:
    """Write ``docs/benchmarks.md`` and its plots."""
    results = load()
    PAGE.write_text(render(results), "utf-8")
    for path in [PAGE, *write_all(results)]:
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
