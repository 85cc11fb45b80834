"""DDP and FSDP2 training of a small transformer: planned collectives compared with the group's own; losses and steps.

    torchrun --nproc-per-node 8 -m benchmarks.collective_training
    torchrun --nproc-per-node 2 -m benchmarks.collective_training --device cpu --small      # does it run? (gloo)

Every row trains the same model from the same seed on the same batches. Losses are those of rank 0; a step's time is
that of the slowest rank. Rows take turns: plain, planned, planned, plain, each with a fresh model, so that neither is
always first; steps of equal rows are joined. Planned rows differ in the blocks that a collective may take of the GPU.
``use`` measures first, as it does for everybody; ``calls`` says which calls went which way.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

MIB = 1 << 20
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast")
WRAPPERS = ("ddp", "fsdp")
WARM_STEPS = 5


@dataclass(frozen=True)
class Size:
    """Size of the model, and of a batch of each rank."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int


def train(wrapper: str, size: Size, steps: int, bucket_mib: float, device: Any) -> tuple[list[float], list[float]]:
    """Train a model; return losses of all steps, and microseconds of those after the warm ones."""
    import torch
    import torch.distributed as dist

    from examples import gpt

    gpu = device.type == "cuda"
    settle: Callable[[], None] = torch.cuda.synchronize if gpu else lambda: None
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        model, _, loss = gpt.gpt(
            batch=1,
            length=size.length,
            vocabulary=size.vocabulary,
            layers=size.layers,
            width=size.width,
            heads=size.heads,
        )
    wrapped = wrap(wrapper, model, bucket_mib)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-4, fused=gpu)
    generator = torch.Generator().manual_seed(dist.get_rank())
    shape = (2, size.batch, size.length)
    tokens = [torch.randint(size.vocabulary, shape, generator=generator).to(device) for _ in range(4)]
    losses, times = [], []
    for step in range(WARM_STEPS + steps):
        settle()
        dist.barrier()
        settle()
        start = time.perf_counter()
        given, wanted = tokens[step % len(tokens)]
        with torch.autocast("cuda", torch.bfloat16) if gpu else nullcontext():
            value = loss(wrapped(given), wanted)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle()
        if step >= WARM_STEPS:
            times.append((time.perf_counter() - start) * 1e6)
        losses.append(float(value.detach()))
    return losses, times


def wrap(wrapper: str, model: Any, bucket_mib: float) -> Any:
    """Wrap a model data parallel, by the default group as it is now: replicated, or every block sharded."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if wrapper == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=bucket_mib)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def compare(wrapper: str, size: Size, a: argparse.Namespace, pairs: Any, device: Any) -> list[dict[str, Any]]:
    """Measure a row of plain steps and those of planned ones, turn by turn."""
    import torch
    import torch.distributed as dist

    from loadmaster.executor import collective
    from loadmaster.executor.collective.fused.choice import Limits
    from loadmaster.executor.collective.fused.engine import FusedEngine

    largest = None if a.largest_mib is None else int(a.largest_mib * MIB)
    rows: dict[str, dict[str, Any]] = {}
    planned = {f"planned, {blocks} blocks": blocks for blocks in a.blocks} if device.type == "cuda" else {"planned": 0}
    turns = ["plain", *planned]
    times: dict[str, list[float]] = {name: [] for name in turns}
    for name in [*turns, *reversed(turns)]:
        calls = None
        if name in planned:
            fused = [functools.partial(FusedEngine, limits=Limits(blocks=planned[name]))] if planned[name] else None
            with collective.use(pairs, largest_bytes=largest, engines=fused) as switched:
                losses, spent = train(wrapper, size, a.steps, a.bucket_mib, device)
                calls = switched.stats()
        else:
            losses, spent = train(wrapper, size, a.steps, a.bucket_mib, device)
        slowest = torch.tensor(spent, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times[name] += slowest.tolist()
        rows[name] = {"wrapper": wrapper, "collectives": name, "losses": losses, "calls": calls}
        if dist.get_rank() == 0:
            step_us = statistics.median(times[name])
            print(f"{wrapper:5} {name:19} {step_us:8.0f} us  losses {losses[0]:.6f} ... {losses[-1]:.6f}", flush=True)
    for name, row in rows.items():
        low, middle, high = statistics.quantiles(times[name], n=4)
        row.update({"step_us": middle, "q1_us": low, "q3_us": high})
    for name in planned:
        both = zip(rows["plain"]["losses"], rows[name]["losses"], strict=True)
        rows[name]["largest_loss_difference"] = max(abs(x - y) / abs(x) for x, y in both)
        rows[name]["plain_over_planned"] = rows["plain"]["step_us"] / rows[name]["step_us"]
    return list(rows.values())


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--small", action="store_true", help="a model for a trial, whose figures say nothing")
    p.add_argument("--wrappers", nargs="+", default=WRAPPERS, choices=WRAPPERS)
    p.add_argument("--steps", type=int, help="timed, of each turn; None: 30, of a trial 3")
    p.add_argument("--batch", type=int, default=8, help="sequences of each rank")
    p.add_argument("--bucket-mib", type=float, default=25.0, help="of DDP")
    p.add_argument("--blocks", nargs="+", type=int, default=[64], help="of one call, at most; a row for each")
    p.add_argument("--largest-mib", type=float, help="leave larger calls to the group's own")
    a = p.parse_args()
    a.steps = a.steps or (3 if a.small else 30)

    import torch
    import torch.distributed as dist

    from benchmarks.collective.plans import direct
    from benchmarks.record import write

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if a.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    if a.small:
        size = Size(layers=2, width=64, heads=2, vocabulary=256, length=32, batch=2)
    else:
        size = Size(layers=8, width=1024, heads=16, vocabulary=16_384, length=1024, batch=a.batch)
    pairs = [direct(name, ranks) for name in COLLECTIVES]  # type: ignore[arg-type]
    rows = [row for wrapper in a.wrappers for row in compare(wrapper, size, a, pairs, device)]
    if rank == 0:
        command = ["torchrun", f"--nproc-per-node {ranks}", "-m benchmarks.collective_training", *sys.argv[1:]]
        document = {
            "command": " ".join(command),
            "ranks": ranks,
            "backend": dist.get_backend(),
            **asdict(size),
            "bucket_mib": a.bucket_mib,
            "rows": rows,
        }
        if a.small:
            print(*({key: row[key] for key in row if key != "losses"} for row in rows), sep="\n")
        else:
            print(write(f"collective_training_{ranks}", document))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
