"""Stories of ``docs/benchmarks.md`` about ``memory`` and ``placement``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.drawing import GIB, TITLES, Result
from benchmarks.sections import listed, none_or, number, percent, plot, section, span, table


def memory(results: Mapping[str, Result]) -> Iterator[str]:
    """Tell about plans of ``memory``: step and peak, ``fit``, other libraries' models, published results, proofs."""
    measured, knob = results["memory_gpu"], results["memory_knob"]
    shares = measured["figure_3_memory_at_10_percent_overhead"]
    models = _models(results["memory_models"], knob)
    slow = {model: step / peer for model, _, _, step, peer, _ in models if step > 1.1 * peer}
    yield section(
        "Memory",
        "A plan of `memory` says what a training step keeps, recomputes (rematerialization) and offloads, so that its "
        "peak stays within a budget. A step here is a forward and a backward pass, without the optimizer.",
        f"**Not reached.** {listed(TITLES[row['case']] for row in shares if not row['won'])} need more memory at 10 % "
        "overhead than MONeT published. It chooses among convolution algorithms, and PyTorch offers no such choice "
        f"inside a compiled graph. At 60 % of plain PyTorch's peak, {len(slow)} of {len(models)} models take "
        f"over 10 % longer than plain `torch.compile`, at worst {max(slow.values()):.2f} times as long "
        f"({max(slow, key=lambda name: slow[name])}).",
        level=2,
    )
    yield from _step_against_peak(measured)
    yield _fits(knob, results["memory_knob_side_by_side"])
    yield section(
        "Models at 60 % of plain PyTorch's peak",
        "Rows with `plan` run a plan alone. Rows with `fit` are of later runs of `fit`, which also tries the knob. "
        f"Plain `torch.compile` stays within the budget for {sum(peak <= budget for *_, budget, _, _, peak in models)} "
        f"of {len(models)} models.",
        table("model | with | budget, GiB | step, ms | torch.compile, ms | its peak, GiB", models),
        sources=[results["memory_models"], knob],
    )
    names = ("eager_peak_gib", "peak_at_10_percent_gib", "share_of_eager", "published_share")
    cells = [[TITLES[row["case"]], *(row[name] for name in names)] for row in shares]
    yield section(
        "Memory at 10 % overhead",
        "The least memory in which a step takes at most 10 % longer than with `torch.compile`, also as a share of "
        "plain PyTorch's peak. MONeT's overhead is over the PyTorch of its day.",
        table(
            "model | PyTorch's peak, GiB | at 10 %, GiB | share | MONeT, as published",
            ([*row[:3], percent(row[3]), percent(row[4])] for row in cells),
        ),
        sources=[measured],
    )
    yield _ablation(measured)
    yield _time_to_proof(results["memory_reference"], results["memory_frontier"])


def _step_against_peak(memory: Result) -> Iterator[str]:
    against = [r["ours_to_theirs"] for r in memory["figure_1_against_pytorch"] if r.get("its_step_ms")]
    points, sweep = memory["figure_2_points"], memory["figure_2_sweep"]
    planned = [point for point in points if "step_ms" in point]
    worst = max(sweep, key=lambda row: float(row["median_time_error_percent"]))
    yield section(
        "Step time against peak",
        f"The measured peak of {sum(point['kept'] for point in planned)} of {len(planned)} plans is within its budget. "
        f"{len(points) - len(planned)} of {len(points)} budgets were refused as too tight. At {len(against)} budgets "
        "PyTorch has a way that fits: `torch.compile` with checkpointed blocks, or with its "
        f"`activation_memory_budget` (the knob). There a plan takes {span(against, '.0%')} of"
        " the step of PyTorch's fastest that fits.",
        plot("step-against-peak", "Step time against measured peak of nine models"),
        sources=[memory],
    )
    yield section(
        "Planned against measured",
        "Measured peaks differ from planned ones by "
        f"{max(row['median_peak_error_percent'] for row in sweep):.1f} % at most (median of a model's budgets), and "
        f"step times by {worst['median_time_error_percent']:.1f} % ({TITLES[worst['case']]}).",
        sources=[memory],
    )


def _fits(knob: Result, beside: Result) -> str:
    fits = [row for row in knob["rows"] if row["method"] == "fit"]
    shown = sorted(
        (row for row in fits if row["asked"] == "knob 0.5" and "step_us" in row), key=lambda r: str(r["case"])
    )
    rows = []
    for row in shown:
        runs = "plan" if row["knob"] is None else f"knob {row['knob']:g}"
        rows.append([_name(row), row["budget_bytes"] / GIB, *_step_and_peer_ms(knob["rows"], row, 0.5), runs])
    return section(
        "`fit` compared with the knob",
        "`fit` tries its plans and the knob, and keeps the fastest that stays within the budget. In the table the "
        "budget is the peak of `torch.compile` with the knob at 0.5. "
        "[The models](../benchmarks/gpu/library_models.py) are in bfloat16, "
        f"{sum('H100' in row.get('gpu', '') for row in shown)} of them on an H100. Both are timed in turns in one "
        f"process, but for {listed(_name(row) for row in shown if 'turns_us' not in row)} (two runs).",
        table("model | budget, GiB | `fit`, ms | knob at 0.5, ms | `fit` runs", rows),
        f"At these and other budgets {knob['fits'] - knob['budgets_broken']} of {knob['fits']} steps of `fit` stay "
        f"within the budget; {none_or(sum('failed' in row for row in fits))} more budgets were refused. At the knob's "
        f"peaks the step takes {knob['geometric_mean_of_peer']:.2f} of the knob's (geometric mean), at worst "
        f"{knob['slowest_of_peer']:.2f}. The wait for the first step is {knob['median_wait_of_peer']:.2f} of "
        f"`torch.compile`'s in the median. Another {beside['fits']} models compiled at the same time on one GPU: they "
        f"take {beside['geometric_mean_of_peer']:.2f} of the knob's step, at worst {beside['slowest_of_peer']:.2f}.",
        sources=[knob, beside],
    )


def _name(row: Result) -> str:
    return f"`{str(row['case']).rpartition(':')[2]}`"


def _step_and_peer_ms(rows: Sequence[Result], row: Result, knob: float) -> list[float]:
    """Step of ``fit`` and of torch.compile under a knob: in turns where they were timed so, else each in its run."""
    return [us / 1e3 for us in row.get("turns_us", (row["step_us"], _compiled(rows, row["case"], knob)["step_us"]))]


def _compiled(rows: Sequence[Result], case: str, knob: float) -> Result:
    return next(r for r in rows if (r["case"], r["method"], r.get("knob")) == (case, "compile", knob))


def _models(models: Result, knob: Result) -> list[tuple[str, str, float, float, float, float]]:
    """Rows at 60 % of eager's peak: of ``fit`` where it was measured, else of a plan alone."""
    found = []
    fits = {row["case"]: row for row in reversed(knob["rows"]) if row.get("asked") == "60%"}
    for row in models["models"]:
        name = row["model"]
        fit = fits.get(name)
        if fit is None:
            budget, step, peer = (row[of] for of in ("budget_gib", "step_ms", "compiled_step_ms"))
        else:
            budget, (step, peer) = fit["budget_bytes"] / GIB, _step_and_peer_ms(knob["rows"], fit, 1.0)
        peak_bytes = _compiled((models if fit is None else knob)["rows"], name, 1.0)["peak_bytes"]
        found.append((name, "`plan`" if fit is None else "`fit`", budget, step, peer, peak_bytes / GIB))
    return found


def _ablation(memory: Result) -> str:
    found: dict[str, dict[str, str]] = {}
    for row in memory["figure_4_ablation"]:
        over = row["overhead_percent"]
        found.setdefault(row["implementations"], {})[row["case"]] = "no plan" if over is None else f"{over:.1f} %"
    return section(
        "Ablation",
        "Overhead over `torch.compile`'s step at about half of plain PyTorch's peak, by what a plan may choose from: "
        "backward passes from outputs, from small encodings (`intermediate`), from inputs, all of these, and offload.",
        table(
            f"implementations | {' | '.join(TITLES[case] for case in found['none'])}",
            ([of, *(cells[case] for case in found["none"])] for of, cells in found.items()),
        ),
        "These plans counted no price for cutting the compiled graph, which offload does.",
        sources=[memory],
    )


def _time_to_proof(memory: Result, frontier: Result) -> str:
    over = [row["objective_to_reference"] - 1 for row in memory["rows"] if row["objective_to_reference"] is not None]
    points = frontier["points"]
    return section(
        "Time to proof",
        f"{len(over)} published instances were planned on one thread, in a median of "
        f"{statistics.median(row['cpu_seconds'] for row in memory['rows']):.0f} CPU seconds. Plans are "
        f"{percent(statistics.mean(over), 2)} above what a commercial solver reached in a day on average, and "
        f"{percent(max(over), 2)} at worst. "
        f"{len(points)} budgets of one ResNet-50 leave gaps of {span((p['gap_percent'] for p in points), '.1f')} % "
        f"after {span((p['cpu_seconds'] for p in points), '.0f')} CPU seconds each. Collectives have "
        "[a section of their own](#time-to-a-plan-of-a-collective).",
        sources=[memory, frontier],
    )


def placement(results: Mapping[str, Result]) -> Iterator[str]:
    """Tell about plans of ``placement``: simulated, by the pager, and the tensor cache without a plan."""
    steps: dict[str, dict[tuple[str, float], Result]] = {}
    for row in results["pager"]["rows"]:
        steps.setdefault(row["method"], {})[row["case"], row["share"]] = row
    demand, planned = steps["demand"], steps["planned"]
    freed = [
        1 - r["share_of_plain_activations"] for r in results["tensor_cache_steps"]["rows"] if r["method"] == "cache"
    ]
    yield section(
        "Placement",
        "A plan of `placement` says which block of memory is in host memory at which operator: parameters, optimizer "
        "state and activations.",
        "**Not reached.** No plan hides the link: the proved bound alone is "
        f"{span(row['bound_ms'] / demand[key]['step_ms'] for key, row in planned.items())} of demand paging's step. "
        f"Without a plan, the tensor cache with `auto` frees {span(freed, '.0%')} of the activations, "
        "since an H200 saves bytes faster than the link takes them.",
        level=2,
    )
    yield _training_state(results["placement"])
    yield _under_a_limit(results["pager"], steps)
    yield _tensor_cache(results["tensor_cache_steps"], results["tensor_cache_files"])


def _training_state(placement: Result) -> str:
    planned = [row for row in placement["rows"] if "plan" in row]
    slow = [row for row in planned if row["lru"] > 1.0]
    worst = max(planned, key=lambda row: float(row["plan_over_bound"]))
    names = ("lru", "correlation", "plan", "bound")
    lru, correlation = (statistics.median(row["plan"] / row[of] for row in slow) for of in ("lru", "correlation"))
    return section(
        "Training state that outgrows the device",
        "Simulated steps of captured traces; parameters, gradients, AdamW's state and activations all count. The link "
        f"to host memory moves {span((trace['host_gbps'] for trace in placement['traces']), '.0f')} GB/s each way. LRU "
        "pages on demand; correlation prefetches what came next the last time. Times are over those of a step with "
        "memory to spare.",
        table(
            "trace, 60 % of its memory | LRU | correlation | plan | bound",
            ([TITLES[r["trace"]], *(f"{r[of]:.2f}" for of in names)] for r in planned if r["share"] == 0.6),
        ),
        f"Plans take {lru:.2f} of demand paging's time and {correlation:.2f} of prefetching's (medians of {len(slow)} "
        f"budgets), after {max(row['seconds'] for row in planned):.0f} s of planning at most. At worst a plan is "
        f"{percent(worst['plan_over_bound'] - 1, 2)} above its bound ({TITLES[worst['trace']]} at "
        f"{percent(worst['share'])}).",
        sources=[placement],
    )


def _under_a_limit(pager: Result, steps: Mapping[str, Mapping[tuple[str, float], Result]]) -> str:
    demand, followed, planned = (steps[of] for of in ("demand", "correlation", "planned"))
    equal = [
        TITLES[case]
        for case in dict.fromkeys(row["case"] for row in pager["rows"])
        if all(row["losses_equal_plain"] for row in pager["rows"] if row["case"] == case)
    ]
    rows = [
        [TITLES[key[0]], percent(key[1]), *(of[key]["step_ms"] for of in (demand, followed, planned)), row["bound_ms"]]
        for key, row in planned.items()
    ]
    above = [row["step_ms"] / row["bound_ms"] - 1 for row in planned.values()]
    overhead = [row["times_plain_step"] - 1 for row in steps["no limit"].values()]
    return section(
        "Training under a limit",
        "The pager on real steps with AdamW, under a share of the most memory that the step takes without it. It "
        "pages by demand, prefetches by correlation, or follows a plan of two recorded steps.",
        plot("under-a-limit", "Step time under a limit for two models: by demand, prefetched, planned, and the bound"),
        table("model | memory | by demand, ms | correlation, ms | planned, ms | bound, ms", rows),
        f"Planned steps take {span(row[4] / row[2] for row in rows)} of demand paging's time, where prefetching takes "
        f"{span(row[3] / row[2] for row in rows)}. They end {span(above, '.1%')} above the bound. With memory for "
        f"everything, the pager makes a step {span(overhead, '.1%')} longer. Losses of {listed(equal)} are plain "
        "PyTorch's to the last bit. The others differ as two runs of plain PyTorch do.",
        sources=[pager],
    )


def _tensor_cache(steps: Result, files: Result) -> str:
    found: dict[str, dict[str, Result]] = {}
    for row in steps["rows"]:
        found.setdefault(row["case"], {})[row["method"]] = row
    ways = {
        "plain": "plain PyTorch",
        "save_on_cpu": "`save_on_cpu`",
        "checkpoint": "checkpointed blocks",
        "cache": "cache, `auto`",
        "cache, all": "cache, everything",
        "checkpoint and cache, all": "checkpointed blocks and cache",
    }
    rows = [
        [words, *(f"{of[way]['step_ms']:.0f} ms, {of[way]['peak_gib']:.1f} GiB" for of in found.values())]
        for way, words in ways.items()
    ]
    faster = [of["save_on_cpu"]["step_ms"] / of["cache, all"]["step_ms"] for of in found.values()]
    return section(
        "Offload as you go",
        "The tensor cache in eager PyTorch. With `auto` it keeps what cannot be sent to host memory in time.",
        table(f"step and peak | {' | '.join(TITLES[case] for case in found)}", rows),
        f"Sending everything is {span(faster, '.1f')} times as fast as `save_on_cpu`. With `auto` a step takes "
        f"{span(of['cache']['times_plain_step'] for of in found.values())} of plain PyTorch's time. To files, the "
        f"cache writes at {number(files['write_share'])} and reads at {number(files['read_share'])} of the rate of a "
        "plain `O_DIRECT` copy.",
        sources=[steps, files],
    )
