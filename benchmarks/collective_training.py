"""DDP training of a small transformer: collectives by plan, through the process group, beside NCCL; losses and steps.

    torchrun --nproc-per-node 8 benchmarks/collective_training.py

Every row trains the same model (8 layers of width 512) from the same seed on the same batches. Losses are those of rank
0; a step's time is that of the slowest rank. Rows take turns: NCCL, planned, planned, NCCL, each with a fresh model, so
that neither is always first; steps of equal rows are joined.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MIB = 1 << 20
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast")
TURNS = ("nccl", "planned", "planned", "nccl")
WARM_STEPS = 5
LENGTH, VOCABULARY = 512, 16_384


def train(steps: int, batch: int, bucket_mib: float, device: Any) -> tuple[list[float], list[float]]:
    """Losses, and microseconds of the steps after the first."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from examples import gpt

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        model, _, loss = gpt.gpt(batch=1, length=LENGTH, vocabulary=VOCABULARY, layers=8, width=512, heads=8)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=bucket_mib)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-4, fused=True)
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = [torch.randint(VOCABULARY, (2, batch, LENGTH), generator=generator).to(device) for _ in range(4)]
    losses, times = [], []
    for step in range(WARM_STEPS + steps):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        given, wanted = tokens[step % len(tokens)]
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(wrapped(given), wanted)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= WARM_STEPS:
            times.append((time.perf_counter() - start) * 1e6)
        losses.append(float(value.detach()))
    return losses, times


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=30, help="timed, of each turn")
    p.add_argument("--batch", type=int, default=8, help="sequences of each rank")
    p.add_argument("--bucket-mib", type=float, default=25.0, help="of DDP")
    p.add_argument("--plans", type=Path, help="folder of planned problems; without, direct plans")
    p.add_argument("--largest-mib", type=float, help="leave larger calls to NCCL")
    a = p.parse_args()

    import torch
    import torch.distributed as dist

    from benchmarks.collective import plans as made
    from benchmarks.record import write
    from loadmaster.executor import collective
    from loadmaster.executor.collective.fused.engine import FusedEngine

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    planned = made.read(a.plans, ranks) if a.plans else {}
    every = [planned.get(name) or made.direct(name, ranks) for name in COLLECTIVES]  # type: ignore[call-overload]
    largest = None if a.largest_mib is None else int(a.largest_mib * MIB)
    rows: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {"nccl": [], "planned": []}
    for name in TURNS:
        if name == "planned":
            with collective.use(every, engines=[FusedEngine, collective.ReferenceEngine], largest_bytes=largest) as on:
                losses, spent = train(a.steps, a.batch, a.bucket_mib, device)
                rows[name] = {"losses": losses, "calls": on.stats()}
        else:
            losses, spent = train(a.steps, a.batch, a.bucket_mib, device)
            rows[name] = {"losses": losses}
        slowest = torch.tensor(spent, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times[name] += slowest.tolist()
        if rank == 0:
            step_us = statistics.median(times[name])
            print(f"{name:8} {step_us:8.0f} us  losses {losses[0]:.6f} ... {losses[-1]:.6f}", flush=True)
    for name, row in rows.items():
        low, middle, high = statistics.quantiles(times[name], n=4)
        row.update({"step_us": middle, "q1_us": low, "q3_us": high})
    pairs = zip(rows["nccl"]["losses"], rows["planned"]["losses"], strict=True)
    difference = max(abs(x - y) / abs(x) for x, y in pairs)
    if rank == 0:
        print(f"losses differ by {difference:.1e}; calls {rows['planned']['calls']}")
        command = ["torchrun", f"--nproc-per-node {ranks}", "benchmarks/collective_training.py", *sys.argv[1:]]
        document = {
            "command": " ".join(command),
            "ranks": ranks,
            "batch": a.batch,
            "bucket_mib": a.bucket_mib,
            "largest_loss_difference": difference,
            "rows": [{"row": name, **row} for name, row in rows.items()],
        }
        print(write(f"collective_training_{ranks}", document))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
