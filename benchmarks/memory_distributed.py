"""Plan under DistributedDataParallel and FSDP2: losses, peak on every rank and step, compared with both without a plan.

    torchrun --nproc-per-node 2 -m benchmarks.memory_distributed

Rank 0 captures with costs estimated for the device, and plans; every rank applies the same plan. Every row trains a
fresh model from the same seed, with AdamW, on a batch of the rank's own. The budget is a share of the peak that the
step has with memory to spare; it covers forward, backward and the wrapper. AdamW's step runs after them and is in the
measured peak too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

GIB = 1 << 30
# In the order of what matters, since a deadline may cut the list short.
ROWS = (
    "ddp eager",
    "ddp plan",
    "fsdp2 eager",
    "fsdp2 plan",
    "fsdp2 compile",
    "ddp compile",
)
# The caching allocator keeps up to a mebibyte at the end of large blocks: planned for this much less.
MARGIN = 0.02
# bfloat16 has 8 bits of mantissa: kernels that round in another order move a loss of 10 in its third digit.
LOSS_TOLERANCE = 5e-3
TIMED_STEPS = 10


@dataclass(frozen=True)
class Run:
    """Settings that all rows share on one rank."""

    rank: int
    ranks: int
    device: str
    case: str
    batch: int
    steps: int
    hardware: str
    share: float
    time_limit_s: float


def build(run: Run) -> tuple[Any, Any]:
    """Build the model on the device, and its loss."""
    import torch

    from examples import gpt

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(run.device):
        model, _, loss = gpt.gpt2_medium(batch=1) if run.case == "gpt2_medium" else gpt.small()
    # Dropout draws other numbers under a plan than without: no comparison of losses.
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.0
    return model, loss


def batch_of(run: Run, model: Any) -> tuple[Any, Any]:
    """Make tokens and targets of this rank: the same in every step, so that the loss falls."""
    import torch

    length, vocabulary = model.positions.num_embeddings, model.tokens.num_embeddings
    generator = torch.Generator().manual_seed(run.rank)
    drawn = [torch.randint(vocabulary, (run.batch, length), generator=generator) for _ in range(2)]
    return drawn[0].to(run.device), drawn[1].to(run.device)


def precision(run: Run) -> Any:
    import torch

    return torch.autocast(torch.device(run.device).type, torch.bfloat16)


def planned(run: Run, wrapper: str, model: Any, loss: Any, optimizer: Any) -> tuple[Any, dict[str, Any]]:
    """Plan on rank 0, and share the plan with every rank; return it with what it promises."""
    import torch.distributed as dist

    from loadmaster.executor import capture
    from loadmaster.models.memory import plain

    made: list[Any] = [None, None]
    if run.rank == 0:
        import loadmaster

        start = time.perf_counter()
        with precision(run):
            problem = capture(
                model,
                batch_of(run, model.module if wrapper == "ddp" else model),
                loss,
                optimizer=optimizer,
                hardware=run.hardware or None,
                backend=_backend(run),
                parallel=wrapper,  # type: ignore[arg-type]
                ranks=run.ranks,
                name=f"{run.case}-{wrapper}",
            )
        captured = time.perf_counter()
        budget = int(run.share * plain.peak_bytes(problem))
        plan = loadmaster.plan(problem, budget_bytes=int(budget * (1 - MARGIN)), time_limit_s=run.time_limit_s)
        promised = {
            "budget_bytes": budget,
            "planned_peak_bytes": plan.check.get("peak_bytes"),
            "planned_step_us": plan.check.get("time_us"),
            "unconstrained_bytes": plain.peak_bytes(problem),
            "gap": plan.gap,
            "status": plan.status,
            "capture_s": captured - start,
            "plan_s": time.perf_counter() - captured,
        }
        made = [plan, promised]
    dist.broadcast_object_list(made, src=0)
    return made[0], made[1]


def _backend(run: Run) -> Any:
    return "inductor" if run.device.startswith("cuda") else "eager"


def row(run: Run, wrapper: str, method: str) -> dict[str, Any]:
    """Train a fresh model, and measure it."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from loadmaster.executor import apply
    from loadmaster.executor.steps.step import Step

    cuda = run.device.startswith("cuda")
    model, loss = build(run)
    extra: dict[str, Any] = {}
    step: nn.Module
    # Fused: it takes no memory for itself.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=cuda)
    if method == "plan":
        target = DistributedDataParallel(model) if wrapper == "ddp" else model
        plan, extra = planned(run, wrapper, target, loss, optimizer)
        if plan.schedule is None:
            return {**extra, "error": "infeasible"}
        step = apply(plan, target, loss, backend=_backend(run))
    else:
        step = Step(model, loss)
        if method == "compile" and cuda:
            step.compile(dynamic=False)
        if wrapper == "ddp":
            step = DistributedDataParallel(step)
    if wrapper == "fsdp2":
        fully_shard(step)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=cuda)

    batch = batch_of(run, model)

    def train() -> Any:
        with precision(run):
            value = step(*batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    start = time.perf_counter()
    losses = [train()]
    _synchronize(run)
    first_s = time.perf_counter() - start
    dist.barrier()
    losses += [train() for _ in range(1, run.steps)]
    _synchronize(run)
    # DistributedDataParallel makes its buckets again in early steps: the peak is that of steps like all later ones.
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(TIMED_STEPS):
        dist.barrier()
        _synchronize(run)
        start = time.perf_counter()
        train()
        _synchronize(run)
        times.append((time.perf_counter() - start) * 1e6)
    peak = torch.cuda.max_memory_allocated() if cuda else None
    found = {
        **extra,
        "losses": [float(value) for value in losses],
        "peak_bytes": peak,
        "step_us": statistics.median(times),
        "step_us_spread": [min(times), max(times)],
        "first_step_s": first_s,
    }
    return _over_ranks(run, found)


def _synchronize(run: Run) -> None:
    import torch

    if run.device.startswith("cuda"):
        torch.cuda.synchronize()


def _over_ranks(run: Run, mine: dict[str, Any]) -> dict[str, Any]:
    """Join the ranks' rows: peaks and losses of every rank, the slowest rank's time."""
    import torch.distributed as dist

    every: list[Any] = [None] * run.ranks
    dist.all_gather_object(every, mine)
    budget = mine.get("budget_bytes")
    peaks = [one["peak_bytes"] for one in every]
    joined = {
        **mine,
        "losses": [one["losses"] for one in every],
        "peak_bytes": peaks,
        "step_us": max(one["step_us"] for one in every),
    }
    if budget is not None and None not in peaks:
        joined["budget_kept"] = all(peak <= budget for peak in peaks)
    return joined


def compare(rows: dict[str, dict[str, Any]]) -> None:
    """Compare every row's losses with the eager row of its wrapper."""
    for name, found in rows.items():
        reference = rows.get(f"{name.split()[0]} eager", {})
        if "losses" not in found or "losses" not in reference:
            continue
        pairs = [
            p
            for ours, theirs in zip(found["losses"], reference["losses"], strict=True)
            for p in zip(ours, theirs, strict=True)
        ]
        found["largest_loss_difference"] = worst = max(abs(a - b) / abs(b) for a, b in pairs)
        found["same_losses"] = worst <= LOSS_TOLERANCE


def describe(name: str, found: dict[str, Any]) -> str:
    if "losses" not in found:
        return f"{name:16} {found.get('error', 'left out')}"
    peaks = " ".join("-" if p is None else f"{p / GIB:.2f}" for p in found["peak_bytes"])
    line = f"{name:16} {found['step_us'] / 1e3:8.1f} ms  peak {peaks} GiB"
    if "budget_bytes" in found:
        line += f"  budget {found['budget_bytes'] / GIB:.2f} GiB"
        line += f", planned {found['planned_peak_bytes'] / GIB:.2f} GiB {found['planned_step_us'] / 1e3:.1f} ms"
    return f"{line}  losses {[round(v, 4) for v in found['losses'][0]]} first step {found['first_step_s']:.0f} s"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--case", default="gpt2_medium", choices=["gpt2_medium", "small"])
    p.add_argument("--batch", type=int, default=8, help="sequences of each rank")
    p.add_argument("--steps", type=int, default=5, help="whose losses are compared")
    p.add_argument("--share", type=float, default=0.75, help="budget, of the peak with memory to spare")
    p.add_argument("--hardware", default="h200", help="whose costs to plan with; empty: measure them")
    p.add_argument("--time-limit", type=float, default=20.0, help="seconds per plan")
    p.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which no further row starts")
    p.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    a = p.parse_args()
    began = time.perf_counter()

    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = a.device
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if a.device == "cuda" else "gloo", device_id=_device_id(device))
    run = Run(rank, ranks, device, a.case, a.batch, a.steps, a.hardware, a.share, a.time_limit)
    rows: dict[str, dict[str, Any]] = {}
    for name in a.rows:
        late = [time.perf_counter() - began > a.deadline]
        dist.broadcast_object_list(late, src=0)
        rows[name] = {"error": "left out: the deadline had passed"} if late[0] else row(run, *name.split())
        gc.collect()
        torch._dynamo.reset()
        with contextlib.suppress(AssertionError, RuntimeError):
            torch.cuda.empty_cache()
        if rank == 0:
            print(describe(name, rows[name]), f"at {time.perf_counter() - began:.0f} s", flush=True)
    if rank == 0:
        compare(rows)
        record(run, rows)
    dist.destroy_process_group()


def _device_id(device: str) -> Any:
    import torch

    return torch.device(device) if device.startswith("cuda") else None


def record(run: Run, rows: dict[str, dict[str, Any]]) -> None:
    """Record figures in benchmarks/results; a trial on the CPU is printed only."""
    from benchmarks.record import write

    for name, found in rows.items():
        if "same_losses" in found:
            print(
                f"{name:16} losses differ by {found['largest_loss_difference']:.1e}, kept: {found.get('budget_kept')}"
            )
    if not run.device.startswith("cuda"):
        return
    command = ["torchrun", f"--nproc-per-node {run.ranks}", "-m benchmarks.memory_distributed", *sys.argv[1:]]
    shared = {k: v for k, v in asdict(run).items() if k not in ("rank", "device")}
    payload = {
        "command": " ".join(command),
        **shared,
        "margin": MARGIN,
        "loss_tolerance": LOSS_TOLERANCE,
        "rows": [{"row": name, **found} for name, found in rows.items()],
    }
    print(write("memory_distributed", payload))


if __name__ == "__main__":
    main()
