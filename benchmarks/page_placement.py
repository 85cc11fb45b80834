"""Sections of ``docs/benchmarks.md`` about placement: simulated plans, the pager, the tensor cache."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.drawing import TITLES, Result
from benchmarks.sections import percent, section, signed, table_of


def training_state(placement: Result) -> str:
    """Section of simulated plans, compared with policies and the bound."""
    planned = [row for row in placement["rows"] if "plan" in row]
    rows = [
        [
            TITLES[r["trace"]],
            percent(r["share"]),
            *(f"{r[key]:.2f}" for key in ("lru", "correlation", "plan", "bound")),
        ]
        for r in planned
        if r["share"] in (0.85, 0.6, 0.4)
    ]
    slow = [row for row in planned if row["lru"] > 1.0]
    worst = max(planned, key=lambda row: row["plan_over_bound"])
    return section(
        "Training state that outgrows the device",
        "Simulated steps of captured traces, parameters, gradients, AdamW's state and activations alike, over the link "
        "to host memory (50 GB/s each way for the first, 55 for the others). Times are those of a step with memory to "
        "spare.",
        "training-state",
        "Step time against device memory for six traces: demand paging, prefetching, plan and bound",
        table_of(["trace", "memory", "LRU", "correlation", "plan", "bound"], rows),
        f"Plans take {statistics.median(r['plan'] / r['lru'] for r in slow):.2f} of demand paging's time and "
        f"{statistics.median(r['plan'] / r['correlation'] for r in slow):.2f} of prefetching's (medians of "
        f"{len(slow)} budgets), after at most {max(r['seconds'] for r in planned):.0f} s of planning.",
        f"The farthest from its bound is {TITLES[worst['trace']]} at {percent(worst['share'])}, "
        f"{signed(worst['plan_over_bound'] - 1)} above it. Under small budgets all of it waits for the link: less "
        "memory then costs time, whoever plans.",
        placement,
    )


def under_a_limit(pager: Result) -> str:
    """Section of the measured pager by demand, prediction and plan, compared with the plan's figure and bound."""
    cases: dict[str, dict[tuple[str, float | None], Result]] = {}
    for row in pager["rows"]:
        cases.setdefault(row["case"], {})[row["method"], row["share"]] = row
    rows, factors, predicted, said, distances, faults, over = [], [], [], [], [], [], []
    for case, of in cases.items():
        over.append(of["no limit", None]["step_ms"] / of["plain", None]["step_ms"] - 1)
        for share in sorted({share for _, share in of if share is not None}, reverse=True):
            demand, correlation, planned = of["demand", share], of["correlation", share], of["planned", share]
            predicted.append(correlation["step_ms"] / demand["step_ms"])
            factors.append(demand["step_ms"] / planned["step_ms"])
            distances.append(planned["step_ms"] / planned["bound_ms"] - 1)
            faults.append(planned["faults"] / demand["faults"])
            said.append(planned["step_ms"] / planned["planned_ms"])
            times = (demand["step_ms"], correlation["step_ms"], planned["step_ms"], planned["bound_ms"])
            rows.append([TITLES[case], percent(share), *(f"{ms:.0f} ms" for ms in times)])
    equal = _cases_with_equal_losses(pager["rows"])
    return section(
        "Training under a limit",
        "The pager on real steps with AdamW, under a share of the most memory that the step takes without it: by "
        "demand, with correlation prefetching, and by a plan that it makes of two recorded steps.",
        "under-a-limit",
        "Step time under a limit for two models: by demand, prefetched, planned, and the bound",
        table_of(["model", "memory", "by demand", "correlation", "planned", "bound"], rows),
        f"Planned steps take {min(1 / f for f in factors):.2f} to {max(1 / f for f in factors):.2f} of demand paging's "
        f"time, with at most {percent(max(faults))} of its faults, and end {signed(min(distances))} to "
        f"{signed(max(distances))} above the bound and {signed(min(said) - 1)} to {signed(max(said) - 1)} above what "
        f"the plan said. Correlation prefetching takes {min(predicted):.2f} to "
        f"{max(predicted):.2f} of demand paging's time. With room for everything a step takes {signed(min(over))} to "
        f"{signed(max(over))} longer than plain PyTorch's.",
        "No plan can be three times as fast as demand paging here, as DeepUM is beside unified memory: the "
        f"bound alone is {min(_best(cases)):.2f} to {max(_best(cases)):.2f} of its time. The pager moves whole "
        f"storages at the full rate of the link, by demand too. {equal}",
        pager,
    )


def _best(cases: Mapping[str, Mapping[tuple[str, float | None], Result]]) -> list[float]:
    return [
        row["bound_ms"] / of["demand", share]["step_ms"]
        for of in cases.values()
        for (method, share), row in of.items()
        if method == "planned"
    ]


def _cases_with_equal_losses(rows: Sequence[Result]) -> str:
    equal, differing = [], []
    for case in dict.fromkeys(row["case"] for row in rows):
        of = [row for row in rows if row["case"] == case]
        if all(row["losses_equal_plain"] for row in of):
            equal.append(TITLES[case])
        elif not next(row for row in of if row["method"] == "plain again")["losses_equal_plain"]:
            differing.append(TITLES[case])
    said = f"Losses of {' and '.join(equal)} are plain PyTorch's to the last bit." if equal else ""
    if differing:
        said += (
            f" Those of {' and '.join(differing)} differ as two runs of plain PyTorch do: its kernels add up in any "
        )
        said += "order."
    return said


def tensor_cache(steps: Result, files: Result) -> str:
    """Section of the measured tensor cache, compared with PyTorch's own ways."""
    rows = []
    for row in steps["rows"]:
        if row["method"] == "plain again" or "step_ms" not in row:
            continue
        plain = next(r for r in steps["rows"] if r["case"] == row["case"] and r["method"] == "plain")
        rows.append(
            [
                TITLES[row["case"]],
                _WAYS[row["method"]],
                f"{row['step_ms']:.0f} ms",
                f"{row['step_ms'] / plain['step_ms']:.2f}",
                f"{row['peak_gib']:.1f} GiB",
            ]
        )
    found = {(row["case"], row["method"]): row for row in steps["rows"]}
    free = [found[case, "cache"] for case in dict.fromkeys(row["case"] for row in steps["rows"])]
    faster = [
        found[row["case"], "save_on_cpu"]["step_ms"] / row["step_ms"]
        for row in steps["rows"]
        if row["method"] == "cache, all"
    ]
    cuts = [1 - row["share_of_plain_activations"] for row in free]
    slower = [row["times_plain_step"] - 1 for row in free]
    return section(
        "Offload as you go",
        "Forward and backward pass in eager PyTorch, gradients dropped before it. The cache keeps what cannot be sent "
        "in time (`auto`), or sends everything.",
        "tensor-cache",
        "Step time against peak for three models: the tensor cache, save_on_cpu, checkpointing, plain PyTorch",
        table_of(["model", "way", "step", "of plain", "peak"], rows),
        f"Sending everything is {min(faster):.1f} to {max(faster):.1f} times as fast as `save_on_cpu`. Files reach "
        f"{files['write_share']:.2f} of a plain `O_DIRECT` copy's rate in writing and {files['read_share']:.2f} in "
        "reading, each round beside the faster plain copy of that round.",
        f"With `auto` the cache lowers the memory of a step by {percent(min(cuts))} to {percent(max(cuts))}, and the "
        f"step takes {1 + min(slower):.2f} to {1 + max(slower):.2f} of its time: an H200 saves bytes faster than the "
        "link takes them, and what would free less than a tenth is not sent. A plan that also recomputes does better "
        "where the model can be captured.",
        steps,
        files,
    )


_WAYS = {
    "plain": "plain PyTorch",
    "save_on_cpu": "`save_on_cpu`",
    "checkpoint": "checkpointed blocks",
    "cache": "cache, `auto`",
    "cache, all": "cache, everything",
    "checkpoint and cache, all": "checkpointed blocks and cache",
}
