"""Memory planning on a GPU: planned and measured peak and step time, beside torch.compile's activation_memory_budget.

Three phases, since GPU hosts rarely have a solver. All files live in one folder:

    python benchmarks/memory_gpu.py capture --out DIR    on the GPU: problems, and the plain peaks budgets refer to
    python benchmarks/memory_gpu.py plan --out DIR       anywhere with the solvers: plans
    python benchmarks/memory_gpu.py run --out DIR        on the GPU: every row in a process of its own

Rows are independent: one that fails is recorded with its error. ``run`` skips rows that DIR/rows.json already has;
delete the file to measure again. A step is forward and backward, gradients cleared before it; no optimizer.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

GIB = 1 << 30
KNOB = (1.0, 0.7, 0.5, 0.3, 0.1)
CASES = ("resnet50", "gpt2_medium")
TRIAL = ("trial_resnet", "trial_gpt")
# Budgets as shares of what plain torch.compile takes on the same GPU.
SHARES = (0.75, 0.5, 0.35)
# The caching allocator keeps up to a mebibyte at the end of large blocks: planned for this much less.
MARGIN = 0.02
ROW_LIMIT_S = 540


def build(case: str, device: str) -> tuple[Any, tuple[Any, ...], Any, Callable[[], Any]]:
    """Model, inputs, loss and the precision context of a case."""
    import torch

    from examples import gpt, resnet50

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    precision: Callable[[], Any] = contextlib.nullcontext
    with torch.device(device):
        if case in ("gpt2_medium", "trial_gpt"):
            made = gpt.gpt2_medium(batch=32) if case == "gpt2_medium" else gpt.small()
            precision = lambda: torch.autocast(torch.device(device).type, torch.bfloat16)  # noqa: E731
        else:
            made = resnet50.full() if case == "resnet50" else resnet50.small()
    model, inputs, loss = made
    return model, inputs, loss, precision


def capture(out: Path, cases: tuple[str, ...], device: str) -> None:
    """Problems, and the peak of plain torch.compile."""
    from loadmaster.executor import capture as capture_model
    from loadmaster.executor.memory.files import problem_document

    for case in cases:
        with failing_alone(f"capture {case}"):
            start = time.perf_counter()
            model, inputs, loss, precision = build(case, device)
            with precision():
                problem = capture_model(model, inputs, loss, name=case)
            (out / f"{case}.problem.json").write_text(json.dumps(problem_document(problem)))
            counts = f"{len(problem.forward)} forward and {len(problem.backward)} backward operators"
            print(f"{problem.name}: {counts}, {time.perf_counter() - start:.0f} s", flush=True)
            del model, inputs, loss
        row = in_process(out, {"case": case, "method": "compile", "knob": 1.0}, device)
        print(describe(row), flush=True)
        if "peak_bytes" in row:
            (out / f"{case}.plain.json").write_text(json.dumps(row))


def plan(out: Path, cases: tuple[str, ...], shares: tuple[float, ...], time_limit_s: float) -> None:
    """Plans under shares of the plain peak."""
    for case in cases:
        problem, plain = out / f"{case}.problem.json", out / f"{case}.plain.json"
        if not problem.exists() or not plain.exists():
            print(f"{case}: not captured, left out", flush=True)
            continue
        peak = json.loads(plain.read_text())["peak_bytes"]
        for share in shares:
            budget = int(peak * share)
            target = out / f"{case}.{round(share * 100)}.plan.json"
            command = ["-m", "loadmaster.api.cli", "plan", str(problem), "--budget", str(int(budget * (1 - MARGIN)))]
            command += ["--time-limit", str(time_limit_s), "-o", str(target)]
            code = subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode
            print(f"{case} under {budget / GIB:.2f} GiB ({share:.0%} of plain): exit status {code}", flush=True)


def run(out: Path, cases: tuple[str, ...], device: str) -> None:
    """Every row, each in a process of its own; writes rows.json after each."""
    record = out / "rows.json"
    rows: list[dict[str, Any]] = json.loads(record.read_text()) if record.exists() else []
    for wanted in wanted_rows(out, cases):
        if any(all(row.get(k) == v for k, v in wanted.items()) for row in rows):
            continue
        rows.append(in_process(out, wanted, device))
        record.write_text(json.dumps(rows, indent=2))
        print(describe(rows[-1]), flush=True)
    print(table(rows))
    if device == "cuda":
        write_results(rows)


def wanted_rows(out: Path, cases: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """What identifies each row."""
    for case in cases:
        for path in sorted(out.glob(f"{case}.*.plan.json")):
            yield {"case": case, "method": "loadmaster", "plan": path.name}
        for knob in KNOB:
            yield {"case": case, "method": "compile", "knob": knob}
        yield {"case": case, "method": "eager"}


def in_process(out: Path, wanted: dict[str, Any], device: str) -> dict[str, Any]:
    """Measure one row in a process of its own, so that memory, caches and failures stay there."""
    command = [sys.executable, __file__, "row", "--out", str(out), "--device", device, "--row", json.dumps(wanted)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ROW_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {**wanted, "error": f"not done after {ROW_LIMIT_S} s"}
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode == 0 and last[0].startswith("{"):
        measured: dict[str, Any] = json.loads(last[0])
        return {**wanted, **measured}
    return {**wanted, "error": (done.stderr.strip().splitlines() or ["no output"])[-1][:500]}


def measure_row(out: Path, wanted: dict[str, Any], device: str) -> dict[str, Any]:
    """Peak, step time, compile time and gradient distance of one row."""
    import torch

    from loadmaster.executor import apply, measure
    from loadmaster.executor.memory.files import read_plan

    model, inputs, loss, precision = build(wanted["case"], device)

    def plain(*batch: Any) -> Any:
        return loss(model(*batch[:-1]), batch[-1])

    extra: dict[str, Any] = {}
    call: Callable[..., Any] = plain
    if wanted["method"] == "compile":
        import torch._functorch.config as functorch_config

        functorch_config.activation_memory_budget = wanted["knob"]
        call = torch.compile(plain, dynamic=False)
    elif wanted["method"] == "loadmaster":
        chosen = read_plan(out / wanted["plan"])
        extra = {
            "status": chosen.status,
            "budget_bytes": chosen.budget_bytes,
            "planned_peak_bytes": chosen.check.get("peak_bytes"),
            "planned_step_us": chosen.check.get("time_us"),
            "gap": chosen.gap,
        }
        if chosen.schedule is None:
            needed = chosen.infeasibility.minimum_budget_bytes if chosen.infeasibility else None
            return {**extra, "error": f"infeasible: needs {needed} bytes"}
        call = apply(chosen, model, loss)

    def step() -> None:
        for p in model.parameters():
            p.grad = None
        with precision():
            value = call(*inputs)
        value.backward()

    start = time.perf_counter()
    step()
    norm = sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None) ** 0.5
    extra |= {"first_step_s": time.perf_counter() - start, "gradient_norm": norm}
    measured = measure(step, resident=[*model.parameters(), *inputs], device=device, warmup=3, repeats=10)
    return {**extra, **dataclasses.asdict(measured)}


def describe(row: dict[str, Any]) -> str:
    """One line."""
    method = row["method"] + (f" {row['knob']}" if "knob" in row else "")
    method += f" {row['plan'].split('.')[1]} %" if "plan" in row else ""
    start = f"{row['case']:12} {method:18}"
    if "peak_bytes" not in row:
        return f"{start} failed: {row.get('error')}"
    line = f"{start} {row['step_us'] / 1e3:8.1f} ms {row['peak_bytes'] / GIB:7.2f} GiB"
    if row.get("planned_peak_bytes"):
        kept = "kept" if row["peak_bytes"] <= row["budget_bytes"] / (1 - MARGIN) else "BROKEN"
        line += (
            f"  planned {row['planned_step_us'] / 1e3:.1f} ms {row['planned_peak_bytes'] / GIB:.2f} GiB, budget {kept}"
        )
    return line


def table(rows: list[dict[str, Any]]) -> str:
    """All rows."""
    return "\n".join(describe(r) for r in rows)


def write_results(rows: list[dict[str, Any]]) -> None:
    """Into benchmarks/results, where the folder can be written."""
    from benchmarks.record import write

    with failing_alone("benchmarks/results"):
        print(write("memory_gpu", {"margin": MARGIN, "rows": rows}))


@contextlib.contextmanager
def failing_alone(what: str) -> Iterator[None]:
    """Report a failure and go on: one case must not take the others along."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        print(f"{what} failed: {type(error).__name__}: {str(error).strip().splitlines()[:1]}", flush=True)


def main() -> None:
    """Run one phase."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("phase", choices=["capture", "plan", "run", "row"])
    p.add_argument("--out", type=Path, required=True, help="folder for problems, plans and rows")
    p.add_argument("--device", default="cuda")
    p.add_argument("--cases", nargs="+", default=list(CASES), choices=[*CASES, *TRIAL])
    p.add_argument("--shares", nargs="+", type=float, default=list(SHARES), help="budgets as shares of the plain peak")
    p.add_argument("--time-limit", type=float, default=120.0, help="seconds per plan")
    p.add_argument("--row", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    cases = tuple(a.cases)
    if a.phase == "capture":
        capture(a.out, cases, a.device)
    elif a.phase == "plan":
        plan(a.out, cases, tuple(a.shares), a.time_limit)
    elif a.phase == "run":
        run(a.out, cases, a.device)
    else:
        print(json.dumps(measure_row(a.out, json.loads(a.row), a.device)))


if __name__ == "__main__":
    main()
