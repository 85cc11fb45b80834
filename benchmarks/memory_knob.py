"""``fit`` compared with torch.compile under its own knob: the peak, the step, and the time until it is there.

    python -m benchmarks.memory_knob --out DIR [--cases "torchvision vit_b_16" MODULE:FACTORY ...] [--wall SECONDS]

Of each model: torch.compile as its users call it, under three values of ``activation_memory_budget``; then ``fit`` at
the peaks of all but the first, and half-way from the lowest of all to what every plan is proved to need; or, with
``--shares``, at shares of the peak without torch.compile. Each row is a process of its own that begins with empty
caches of Inductor, Triton and Loadmaster; ``fit`` once more with what the first one left tells what the next run of a
script waits for. Rows are in DIR after each, and a run goes on from them.

With ``--jobs`` models compile at the same time, each with its part of the cores. One at a time runs on the GPU; the
time in which a row waits for it is not counted.

One at a time, a row of ``fit`` trains with the step that it gets first, and is measured when the others are tried, too.
torch.compile is compiled in the same process then, under the knob whose peak is the budget, or under none for a share,
and both are timed in turns: a step that takes as long as its launches takes a fifth more or less from one minute to the
next.

With ``--mode reduce-overhead`` both are asked for CUDA graphs. These allocate when they are recorded, and hold it from
then on: the peak of such a row is what the allocator has taken from the device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import loadmaster
from benchmarks import record
from benchmarks.gpu.budgets import Row
from benchmarks.gpu.cases import build
from benchmarks.gpu.knob_rows import AT_KNOB, HALF_WAY, Rows, Wanted, summary
from benchmarks.gpu.process import Turn, first_runs_alone
from benchmarks.gpu.zoo import ZOO, case
from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor import Fitted, measure
from loadmaster.executor.costs.profiled import Profiler
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.memory.fit.knob import KnobTrial
from loadmaster.executor.memory.fit.trials import Trial
from loadmaster.executor.steps.factory import call_factory
from loadmaster.executor.steps.measure import times_us
from loadmaster.executor.steps.resident import device_of
from loadmaster.models.memory.minimum import minimum_budget

KNOBS = (1.0, 0.5, 0.2)
STEPS = 15
TURNS, STEPS_OF_A_TURN = 9, 6


def made(name: str, device: str, *, small: bool) -> tuple[Any, Any, Any, Callable[[], Any]]:
    """Make model, batch, loss and precision of a case, or of a factory of the user's, which trains in bfloat16."""
    if ":" not in name:
        return build(case(name), device, small=small)
    torch.manual_seed(0)  # gradients of one row are those of the next
    model, batch, loss = call_factory(name, torch.device(device))
    return model, batch, loss, lambda: torch.autocast(torch.device(device).type, torch.bfloat16)


def measured(row: Row, turn: Turn) -> Row:
    """Measure a row in this process."""
    model, batch, loss, precision = made(row["case"], row["device"], small=row["small"])
    device = device_of(model, batch)
    found: Row = {}
    began, waited_s = time.perf_counter(), turn.waited_s
    done: Fitted | None = None
    with precision():
        if row["method"] == "fit":
            done = fitted(model, batch, loss, row, found, turn)
            step: Callable[..., torch.Tensor] = done.step
        else:
            mode = row.get("mode")
            step = compiled(model, loss, row["knob"], mode) if row["method"] == "compile" else plain_step(model, loss)

    def run(step: Callable[..., torch.Tensor] = step) -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with precision():
            value = step(**batch) if isinstance(batch, dict) else step(*batch)
        value.backward()
        return value.detach()

    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    waited_s = turn.waited_s - waited_s + found.get("proof_s", 0.0)  # nobody waits for the proof who has a budget
    found["first_step_s"] = time.perf_counter() - began - waited_s
    if done is not None:
        with precision():
            found |= finished(done)
    turn.take()
    held = [*model.parameters(), *model.buffers(), *torch.utils._pytree.tree_leaves(batch)]
    result = measure(run, resident=[t for t in held if isinstance(t, torch.Tensor)], device=device, repeats=STEPS)
    norms = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    found["gradient_norm"] = float(torch.stack(norms).sum().sqrt())
    peak_bytes = result.peak_bytes
    if "mode" in row:
        torch.cuda.empty_cache()
        peak_bytes = torch.cuda.memory_reserved(device)
    if done is not None and row["asked"] != HALF_WAY and not (row["lock"] or "mode" in row):
        peer = compiled(model, loss, 1.0 if "%" in row["asked"] else float(row["asked"].removeprefix(AT_KNOB)), None)
        found["turns_us"] = in_turns([run, lambda: run(peer)], device)
    found |= {"peak_bytes": peak_bytes, "step_us": result.step_us, "resident_bytes": result.resident_bytes}
    return found | {"requested_bytes": result.requested_bytes}


def in_turns(runs: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Median time in us of a step of each, timed in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(TURNS + 1):  # the first compiles
        for run, taken in zip(runs, times, strict=True):
            run()  # its caches are cold
            found = times_us(run, device, STEPS_OF_A_TURN)
            taken += found if turn else []
    return [statistics.median(taken) for taken in times]


def compiled(model: Any, loss: Any, knob: float, mode: str | None) -> Callable[..., torch.Tensor]:
    """Compile the step as users do."""
    import torch._functorch.config as functorch_config

    functorch_config.activation_memory_budget = knob
    return torch.compile(plain_step(model, loss), mode=mode)


def plain_step(model: Any, loss: Any) -> Callable[..., torch.Tensor]:
    """Make the step as users write it."""

    def plain(*batch: Any, **named: Any) -> torch.Tensor:
        if loss is not None:
            return loss(model(*batch[:-1]), batch[-1])
        found = model(*batch, **named)
        return found if isinstance(found, torch.Tensor) else found.loss

    return plain


def fitted(model: Any, batch: Any, loss: Any, row: Row, found: Row, turn: Turn) -> Fitted:
    """Call ``fit``. If others run at the same time all its tries are over then: later ones would disturb them."""
    fitter = Fitter(model, batch, loss, mode=row.get("mode", "default"))
    if row["lock"]:
        with contextlib.ExitStack() as patched, contextlib.suppress(InputError):
            for timed in ("run", "_time_us"):  # an operator with what it needs, and a copy
                alone = _alone(getattr(Profiler, timed), turn)
                patched.enter_context(unittest.mock.patch.object(Profiler, timed, alone))
            fitter.capture()  # operators are measured; fit says so of a step without a plan
        turn.end()
    budget_bytes = row["budget_bytes"]
    if row["asked"] == HALF_WAY:
        problem, began = fitter.capture().plain, time.perf_counter()
        least_bytes = minimum_budget(problem).budget_bytes
        found["proof_s"] = time.perf_counter() - began
        budget_bytes = (row["lowest_bytes"] + least_bytes) // 2
    found["budget_bytes"] = budget_bytes
    return fitter.fit(loadmaster.plan, budget_bytes, tune_while_training=not row["lock"])


def finished(done: Fitted) -> Row:
    """Try what is left to try; return what ``fit`` says then."""
    said, began = done.report, time.perf_counter()
    done.finish()
    found: Row = {"first_report": said, "left_s": time.perf_counter() - began}
    found |= {"knob": done.knob, "report": done.report, "seconds": dict(done.seconds)}
    found["tries"] = [[t.planned_us, *_tried(t)] for t in done.tries]
    found["knob_tries"] = [[t.knob, *_tried(t)] for t in done.knob_tries]
    return found


def _tried(tried: Trial | KnobTrial) -> list[Any]:
    return [tried.measured.step_us, tried.used_bytes, tried.kept, tried.measured.requested_bytes]


def main() -> None:
    """Measure what is missing, and report; or, with ``--row``, one row."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, help="folder for rows; kept from run to run")
    p.add_argument("--cases", nargs="*", default=[*ZOO], help="cases, or factories as MODULE:FACTORY")
    p.add_argument("--knobs", nargs="+", type=float, default=KNOBS, help="of torch.compile, highest first")
    p.add_argument("--shares", nargs="+", default=[], help="of eager's peak, as 60%%: fit to these instead")
    p.add_argument("--asked", nargs="+", default=[], help='fit to these only, as "knob 0.5" half-way')
    p.add_argument("--once", action="store_true", help="do not fit again with what the first fit left")
    p.add_argument("--mode", choices=["reduce-overhead"], help="CUDA graphs, of torch.compile and of fit")
    p.add_argument("--jobs", type=int, default=1, help="models at once")
    p.add_argument("--join", type=Path, nargs="+", default=[], help="folders of other runs whose rows to take in")
    p.add_argument("--device", default="cuda")
    p.add_argument("--small", action="store_true", help="the small version of each case, for a trial on a CPU")
    p.add_argument("--wall", type=float, default=1e9, help="seconds until the run ends")
    p.add_argument("--row", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.row is not None:
        run_row(json.loads(a.row))
        return
    if a.out is None:
        p.error("--out is missing")
    if unknown := {*a.asked} - {HALF_WAY, *a.shares, *(f"{AT_KNOB}{knob}" for knob in a.knobs)}:
        p.error(f"--asked {' '.join(map(repr, sorted(unknown)))}: not among --knobs and --shares, nor {HALF_WAY!r}")
    rows = Rows(a.out, time.monotonic() + a.wall, a.jobs)
    for folder in a.join:
        rows.join(json.loads((folder / "rows.json").read_text()))
    wanted = Wanted(*(a.device, a.knobs, a.shares, a.asked), small=a.small, once=a.once, mode=a.mode)
    rows.measure(a.cases, wanted)
    figures = summary(rows.rows)
    print(json.dumps(figures))
    if a.device == "cuda":
        record.write(
            "memory_knob" if a.mode is None else "memory_cuda_graphs",
            {**figures, "rows": rows.rows},
        )


def _alone(measures: Callable[..., Any], turn: Turn) -> Callable[..., Any]:
    def alone(*arguments: Any) -> Any:
        turn.take()
        return measures(*arguments)

    return alone


def run_row(row: Row) -> None:
    """Measure one row, and write what was found as it says."""
    turn = Turn(row["lock"])
    if row["lock"]:
        first_runs_alone(turn)
    try:
        found = measured(row, turn)
    except LoadmasterError as error:
        found = {"failed": str(error)}
    record.write_whole(Path(row["result"]), json.dumps(found))


if __name__ == "__main__":
    main()
