"""Stories of ``docs/benchmarks.md`` about ``partition`` and ``collective``."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.drawing import COLLECTIVES, GIB, KIB, MIB, Result
from benchmarks.page_rows import MODELS, by_method
from benchmarks.sections import listed, none_or, number, percent, plot, section, span, table

_TRAINED = {"llama": "Llama", "wide": "convolutions"}


def partition(results: Mapping[str, Result]) -> Iterator[str]:
    """Tell about plans of ``partition``: run on two GPUs, and compared with other methods without running."""
    gpus, counts = results["partition_gpus_2"], results["partition_operators"]["counts"]
    by_model = {name: [row for row in gpus["rows"] if row["model"] == name] for name in _TRAINED}
    eager = {row["model"]: row["step_us"] for row in gpus["rows"] if row["way"] == "fsdp2"}
    modules = [row["step_us"] / eager[row["model"]] for row in gpus["rows"] if row["way"] == "plan, module"]
    yield section(
        "Partition",
        "A plan of `partition` says how every tensor and operator is split over a mesh of GPUs (auto-sharding).",
        f"**Not reached.** The module executor runs modules eagerly, and takes {span(modules)} of the step of eager "
        f"FSDP2. Of {sum(counts.values())} operators that PyTorch's samples call, {counts['whole']} run whole, that "
        "is without a split ([by name](../benchmarks/results/partition_operators.json)).",
        level=2,
    )
    yield _split(gpus, by_model, results["partition_fuzz"])
    yield _planned(results["partition"], results["partition_capture"])


def _split(gpus: Result, by_model: Mapping[str, Sequence[Result]], fuzz: Result) -> str:
    rows: dict[str, dict[str, str]] = {}
    saved, planned = [], []
    for row in sorted(gpus["rows"], key=lambda row: str(row["way"])):
        if row["way"] != "plan, module":
            way = row["way"] + (f", under {row['limit']}" if "limit" in row else "")
            rows.setdefault(way, {})[row["model"]] = f"{row['step_us'] / 1e3:.0f} ms, {row['peak_bytes'] / 1e9:.1f} GB"
    for name, of in by_model.items():
        plans = [row for row in of if row["way"] == "plan, graph"]
        by_hand = min(row["step_us"] for row in of if "limit" not in row)
        saved.append(f"{percent(1 - max(row['step_us'] for row in plans) / by_hand)} ({_TRAINED[name]})")
        planned += [row["planned_us"] / row["step_us"] for row in plans]
    limited = [row for row in gpus["rows"] if "limit" in row]
    over = Counter(row["way"] for row in limited if row["peak_bytes"] > row["limit_bytes"])
    most = max(row["peak_bytes"] - row["limit_bytes"] for row in limited)
    kept = sum(row["plans"] for row in fuzz["rows"] if row["ok"])
    return section(
        "Split over GPUs",
        "Steps with AdamW in bfloat16: a Llama with 1.3 B parameters, and 24 wide convolutional blocks. Every way "
        "runs through the call that its users make. A plan's limit is the measured peak of a way by hand. The "
        "convolutions were measured before collectives moved in buckets.",
        table(
            f"step and peak | {' | '.join(_TRAINED.values())}",
            ([way, *(of.get(name, "") for name in by_model)] for way, of in rows.items()),
        ),
        "The compiled plan (`plan, graph`) takes less time than the fastest way by hand under both limits: "
        f"{listed(saved)}. {none_or(over['plan, graph']).capitalize()} of its peaks and "
        f"{none_or(over['plan, module'])} of the module executor's are above a limit, by {most / 1e6:.1f} MB at most. "
        f"Planned times are estimates, {span(planned)} times what is measured. In float64, {kept} of "
        f"{sum(row['plans'] for row in fuzz['rows'])} random plans of small models on processes gave the loss and all "
        "gradients of one device.",
        sources=[gpus, fuzz],
    )


def _planned(partition: Result, capture: Result) -> str:
    found = by_method(partition)
    rows = {name: [row for row in partition["rows"] if row["table"] == name] for name in ("grid", "llama", "by hand")}
    over = {MODELS[name]: of["recursive"]["objective"] / of["auto"]["objective"] - 1 for name, of in found.items()}
    times = [
        f"{of['auto']['seconds']:.1f} s for {MODELS[name]} (the thesis took {of['auto']['published_s']} s)"
        for name, of in found.items()
        if of["auto"].get("published_s")
    ]
    free, *_, tight = rows["llama"]
    hand = {row["method"]: row["objective"] for row in rows["by hand"] if "instead_of" not in row}
    saved = [1 - row["objective"] / hand[row["instead_of"]] for row in rows["by hand"] if "instead_of" in row]
    return section(
        "Plans compared with Tofu's",
        "Plans from shapes alone, on one thread, for the machine of Tofu's thesis: every GPU stores an equal share of "
        "every tensor, and the bytes that all GPUs receive are minimized. Nothing is run.",
        plot("split-over-gpus", "Bytes received over the exact optimum, by method, for three models"),
        f"The exact optimum takes {listed(times)}. Tofu's recursion is {percent(max(over.values()), 2)} above it for "
        f"{max(over, key=lambda name: over[name])}, and equal for {sum(share < 1e-9 for share in over.values())} "
        f"models. All {len(rows['grid'])} models of the thesis's grid take "
        f"{sum(row['seconds'] for row in rows['grid']):.0f} s together. A Llama of {capture['operators']:,} operators "
        f"is captured in {capture['capture_s']:.0f} s and planned in {max(r['plan_s'] for r in capture['rows']):.0f} s "
        "at most.",
        f"A step of Llama-3-8B on 8 x 8 H100s is planned to take {free['objective'] / 1e3:.0f} ms without a limit, and "
        f"{tight['objective'] / 1e3:.0f} ms under {tight['budget_gib']} GiB a GPU, with gaps of "
        f"{percent(max(row['gap'] for row in rows['llama']), 2)} at most. With the memory of data parallelism, FSDP or "
        f"Megatron, a plan takes {span(saved, '.1%')} less time.",
        sources=[partition, capture],
    )


def collectives(results: Mapping[str, Result]) -> Iterator[str]:
    """Tell about plans of ``collective``: calls, training, and the time to a plan."""
    calls, reference = results["collective_gpu_2"], results["collective_reference"]
    summed = [
        row for row in calls["rows"] if row["collective"] == "allreduce" and 512 * KIB <= row["size_bytes"] <= 64 * MIB
    ]
    loose = max(reference["rows"], key=lambda row: float(row["gap_percent"]))
    yield section(
        "Collectives",
        "A plan of `collective` says over which links, in which order, each chunk travels (collective synthesis).",
        f"**Not reached.** On shared memory, where neither side copies, AllReduce from 512 KiB to 64 MiB is "
        f"{_two_shot(summed, 'eager')} times as fast as PyTorch's two-shot, and {_two_shot(summed, 'graph')} times in "
        f"a CUDA graph. Not every plan is proved: `{loose['case']}` leaves a gap of {loose['gap_percent']:.0f} %.",
        level=2,
    )
    yield _latency(calls)
    yield _training(results["collective_training_2"], results["memory_distributed"])
    yield _synthesis(reference)


def _two_shot(rows: Sequence[Result], mode: str) -> str:
    return span(row[mode]["two_shot"]["median_us"] / row[mode]["shared"]["median_us"] for row in rows)


def _latency(result: Result) -> str:
    sizes = {8 * KIB: "8 KiB", MIB: "1 MiB", 64 * MIB: "64 MiB"}
    found = {(row["collective"], row["size_bytes"]): row for row in result["rows"]}
    modes = [(mode, side) for mode in ("eager", "graph") for side in ("loadmaster", "nccl")]
    small = [row for row in result["rows"] if row["size_bytes"] <= MIB]
    large = [row for row in result["rows"] if row["size_bytes"] >= 64 * MIB]
    ours, theirs = (statistics.median(row["eager"][of]["host_us"] for row in small) for of in ("loadmaster", "nccl"))
    faster = [
        span(row[f"{mode}_nccl_over_loadmaster"] for row in of) for of in (small, large) for mode in ("eager", "graph")
    ]
    return section(
        "Latency against size",
        f"Calls of `torch.distributed` in {result['dtype']} on {result['ranks']} GPUs of one host, after `use(...)` "
        "and on NCCL alone. `use(...)` measures first, and leaves to NCCL what NCCL is faster at. A figure is the mean "
        "of calls one after another.",
        plot("latency-against-size", "NCCL's time over Loadmaster's by size, eager and under CUDA graphs"),
        table(
            "collective | size | eager, us | NCCL, us | in a graph, us | NCCL, us",
            (
                [title, words, *(found[name, size][mode][side]["median_us"] for mode, side in modes)]
                for name, title in COLLECTIVES.items()
                for size, words in sizes.items()
            ),
        ),
        f"Up to 1 MiB, calls are {faster[0]} times as fast as NCCL's, and {faster[1]} times in a CUDA graph. From 64 "
        f"MiB on it is {faster[2]} and {faster[3]} times. A small call keeps the host busy for {number(ours)} us, "
        f"NCCL's for {number(theirs)}. NCCL keeps {sum(row['runs'] == 'inner' for row in result['rows'])} of "
        f"{len(result['rows'])} rows; there both sides are the same call.",
        sources=[result],
    )


def _training(collectives: Result, memory: Result) -> str:
    steps = {f"{row['wrapper']} {row['collectives']}": row["step_us"] / 1e3 for row in collectives["rows"]}
    peaks = {
        row["row"]: f"{row['step_us'] / 1e3:.1f} ms in {max(row['peak_bytes']) / GIB:.1f} GiB"
        for row in memory["rows"]
        if "step_us" in row
    }
    fsdp, fsdp_planned, ddp, ddp_planned = (
        steps[f"{wrapper} {of}"] for wrapper in ("fsdp", "ddp") for of in ("plain", "planned, 64 blocks")
    )
    return section(
        "Distributed training",
        f"A step of a transformer under FSDP2 takes {fsdp:.1f} ms with NCCL and {fsdp_planned:.1f} ms after "
        f"`use(...)`: {fsdp / fsdp_planned:.2f} times as fast. Under DDP, {ddp:.1f} and {ddp_planned:.1f} ms are equal "
        "within noise: `use` measured that NCCL is faster while the GPU computes, and left all calls to it.",
        f"A step of GPT-2-medium under a plan of `memory` takes {peaks['ddp plan']} under DDP (eager PyTorch "
        f"{peaks['ddp eager']}), and {peaks['fsdp2 plan']} under FSDP2 ({peaks['fsdp2 eager']}). "
        f"Both ranks keep {sum(row.get('budget_kept', False) for row in memory['rows'])} of "
        f"{sum('budget_kept' in row for row in memory['rows'])} budgets. `torch.compile` was not measured there.",
        sources=[collectives, memory],
    )


def _synthesis(reference: Result) -> str:
    rows = [row for row in reference["rows"] if row["taccl_seconds"] is not None]
    slower = [f"`{row['case']}`" for row in rows if row["seconds"] > row["taccl_seconds"]]
    return section(
        "Time to a plan of a collective",
        f"{len(rows)} problems that TACCL published are planned in {span((row['seconds'] for row in rows), '.1f')} s "
        f"on one thread. TACCL's published times are {span((row['taccl_seconds'] for row in rows), ',.1f')} s; "
        f"{listed(slower)} alone is planned slower. Gaps are {span((row['gap_percent'] for row in rows), '.1f')} %. "
        f"{len(reference['rows']) - len(rows)} larger or serial problems take "
        f"{max(row['seconds'] for row in reference['rows']):.0f} s at most.",
        sources=[reference],
    )
