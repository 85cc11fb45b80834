"""Section of ``docs/benchmarks.md`` about partition: exact plans, Tofu's recursion, earlier methods, budgets."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.drawing import GIB, Result
from benchmarks.plots_partition import METHODS, TITLES, compared
from benchmarks.sections import section, signed, table_of


def split_over_gpus(partition: Result, capture: Result, operators: Result, fuzz: Result, gpus: Result) -> str:
    """Section of partition plans: bytes and simulated steps by method, the grid of the thesis, Llama under budgets;
    what was captured, and what ran, on processes and on two GPUs."""
    by_model = compared(partition)
    header = ["bytes that 8 GPUs receive, simulated step", *(TITLES[name] for name in by_model)]
    rows = [[words, *(_cell(found[method]) for found in by_model.values())] for method, words in METHODS.items()]
    wide, deep = by_model["wresnet-152-10"], by_model["rnn-10-8k"]
    grid = [row for row in partition["rows"] if row["table"] == "grid"]
    llama = [row for row in partition["rows"] if row["table"] == "llama"]
    return section(
        "Split over GPUs",
        "Plans from shapes alone, on one thread. Tofu's space: eight K80 with 21 GB/s between two of them, every GPU "
        "stores an equal share of every tensor, the bytes that all receive are minimized. Compute and collectives are "
        "added up, nothing is run.",
        "split-over-gpus",
        "Bytes received over the exact optimum, by method, for three models",
        table_of(header, rows),
        f"The exact optimum takes {_seconds(wide)} for WResNet-152-10, where the thesis's search took "
        f"{wide['auto']['published_s']} s, and {_seconds(deep)} for RNN-10-8K ({deep['auto']['published_s']} s). The "
        f"recursion is {signed(_over(wide, 'recursive'))} above it on the first and equal to it on the others. All "
        f"{len(grid)} models of the grid take {sum(row['seconds'] for row in grid):.0f} s together.",
        f"Llama-3-8B on 8 x 8 H100, batch 16: {_budgets(llama)}; split into its modules {_modules(partition['rows'])}. "
        "With batch 64, and as much memory as each takes: "
        f"{_by_hand(partition['rows'])}.\n\n{_captured(capture)} {_tried(operators)} {_ran(fuzz)}\n\n{_trained(gpus)}",
        partition,
        capture,
        operators,
        fuzz,
        gpus,
    )


_MODELS = {
    "llama": "Llama, 1.3 B parameters, 8 x 2,048 tokens",
    "wide": "24 wide convolutional blocks, 64 images of 64 x 64",
}
_WORD = {"llama": "Llama", "wide": "convolutions"}


def _trained(gpus: Result) -> str:
    """Table of steps on two GPUs, planned and measured: a row for each way, a column for each model."""
    by_model = {name: [row for row in gpus["rows"] if row["model"] == name] for name in _MODELS}
    ways = dict.fromkeys((row["way"], row.get("limit")) for rows in by_model.values() for row in rows)
    table = []
    for way, limit in ways:
        cells = []
        for rows in by_model.values():
            row = next((r for r in rows if (r["way"], r.get("limit")) == (way, limit)), None)
            cells.append("" if row is None else _step(row))
        table.append([way if limit is None else f"{way}, under {limit}", *cells])
    gpu = f"{gpus['machine']['gpu_count']} {gpus['machine']['gpu']}"
    return (
        f"Steps on {gpu}, bfloat16, AdamW, every way through the call that its users make. Limits are measured peaks "
        f"of rivals.\n\n{table_of(['step, peak (planned)', *_MODELS.values()], table)}\n"
        f"The compiled plan is the fastest way under both limits: {_against_rivals(by_model)}. Its peaks keep the "
        "limits. The module executor, which runs modules eagerly, is as fast as eager FSDP2; its peak for the Llama "
        "is 1 MB above FSDP2's, by which PyTorch's allocator differs from run to run. Planned times are estimates from "
        "sizes and the catalogue's rates: they order ways, and are above what is measured. The convolutions were "
        "measured before collectives moved in buckets. The Llama then took 157 ms where the host was fast and 200 to "
        "216 ms where it was not: it launched 605 collectives, one for every parameter and pass."
    )


def _against_rivals(by_model: dict[str, list[Result]]) -> str:
    """Say how much faster plans are than the fastest way by hand, by model; the slower of the two limits."""
    said = []
    for name, rows in by_model.items():
        rival = min(row["step_us"] for row in rows if "limit" not in row)
        ours = max(row["step_us"] for row in rows if row["way"] == "plan, graph")
        said.append(f"{100 * (1 - ours / rival):.0f} % less time than the fastest by hand for the {_WORD[name]}")
    return ", ".join(said)


def _step(row: Result) -> str:
    measured = f"{row['step_us'] / 1e3:.0f} ms, {row['peak_bytes'] / 1e9:.1f} GB"
    if "planned_us" not in row:
        return measured
    return f"{measured} ({row['planned_us'] / 1e3:.0f} ms, {row['planned_bytes'] / 1e9:.1f} GB)"


def _captured(capture: Result) -> str:
    plans = []
    for row in capture["rows"]:
        limit = "without a limit" if row["budget_gib"] is None else f"under {row['budget_gib']} GiB"
        plans.append(f"{row['plan_s']:.0f} s {limit} (gap {100 * row['gap']:.2f} %)")
    return (
        f"A Llama of 32 layers, {capture['operators']} operators, is captured in {capture['capture_s']:.0f} s and then "
        f"planned for 2 x 4 GPUs in {', '.join(plans)}."
    )


def _tried(operators: Result) -> str:
    counts = operators["counts"]
    return (
        f"Of {sum(counts.values())} operators that PyTorch's samples call, overloads counted, {counts['split']} are "
        f"split, {counts['view']} are views, {counts['rewritten']} are written as others first, {counts['whole']} run "
        f"whole ([by name](../benchmarks/results/partition_operators.json))."
    )


def _ran(fuzz: Result) -> str:
    rows = fuzz["rows"]
    kept = sum(row["plans"] for row in rows if row["ok"])
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    return (
        f"{kept} of {sum(row['plans'] for row in rows)} random plans of small models ({models}) on 2 and 2 x 2 "
        "processes gave the loss and every gradient of one device to 1e-10, in float64, with the collectives "
        "predicted."
    )


def _cell(row: Result) -> str:
    return f"{row['objective'] / 1e9:.1f} GB, {(row['compute_us'] + row['transfer_us']) / 1e6:.2f} s"


def _seconds(found: dict[str, Result]) -> str:
    return f"{found['auto']['seconds']:.1f} s"


def _over(found: dict[str, Result], method: str) -> float:
    return float(found[method]["objective"] / found["auto"]["objective"] - 1)


_WORDS = {"data-parallel": "data parallel", "fsdp": "FSDP", "megatron": "Megatron"}


def _by_hand(rows: Sequence[Result]) -> str:
    said = []
    for row in rows:
        if row["table"] == "by hand" and "instead_of" in row:
            other = next(r for r in rows if r["table"] == "by hand" and r["method"] == row["instead_of"])
            gib = other["peak_bytes"] / GIB
            times = f"{other['objective'] / 1e3:.0f} ms, the plan {row['objective'] / 1e3:.0f} ms"
            said.append(f"{_WORDS[other['method']]} ({gib:.0f} GiB) {times}")
    return "; ".join(said)


def _modules(rows: Sequence[Result]) -> str:
    times = [f"{row['objective'] / 1e3:.0f} ms" for row in rows if row["table"] == "modules"]
    return f"{', '.join(times[:-1])} and {times[-1]}"


def _budgets(rows: Sequence[Result]) -> str:
    said = []
    for row in rows:
        under = "without a limit" if row["budget_gib"] is None else f"under {row['budget_gib']} GiB a GPU"
        gap = "exact" if row["gap"] < 1e-9 else f"gap {100 * row['gap']:.2f} %"
        said.append(f"{row['objective'] / 1e3:.0f} ms {under} ({gap}, {row['cpu_seconds']:.1f} CPU seconds)")
    return ", ".join(said)
