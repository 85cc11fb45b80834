"""Training steps on several GPUs under a plan, compared with what people write by hand, in one run.

Usage: torchrun --standalone --nproc-per-node N -m benchmarks.partition_gpus [--small] [--model NAME] [--only WORDS]

``llama``  1.3 billion parameters, bfloat16, sequences of 2,048 tokens, AdamW
``wide``   a wide residual network without batch norms, bfloat16, images of 64 x 64, AdamW

Rivals, each through the call that its users make, eager and with every block compiled: ``DistributedDataParallel``,
``fully_shard`` (FSDP2) of every block, tensor parallelism by ``parallelize_module`` (llama only), and FSDP2 with it
from four GPUs on. Ours are ``split``, as the README has it, with the executors ``graph`` and ``module``. Two limits:
what data parallelism takes at its peak, and what FSDP2 takes, which it cannot meet. A rival that takes more
than a limit does not count there.

Times are medians of ten steps after three, the slowest rank's; peaks are those of PyTorch's allocator, the largest of
all ranks. ``--small`` is for a try on CPUs over gloo, ``--only`` for some of the ways: nothing is recorded. On CPUs
peaks are not known. Models that are not asked for keep the rows of an earlier run on the same sort of GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import loadmaster
from benchmarks import record
from examples.llama import Example, llama
from loadmaster.errors import LoadmasterError
from loadmaster.executor import split

WARM, STEPS = 3, 10
Stepper = Callable[[], Tensor]
Made = tuple[Stepper, Iterable[nn.Parameter], dict[str, Any]]


class WideBlock(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.second(torch.relu(self.first(torch.relu(x))))
        return found


def wide(batch: int, side: int, width: int, blocks: int) -> Example:
    """Build convolutions that are wide enough to be worth splitting by channels."""
    stem, body = nn.Conv2d(3, width, 3, padding=1), nn.Sequential(*(WideBlock(width) for _ in range(blocks)))
    model = nn.Sequential(stem, body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))
    images = torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))
    return model, images, nn.functional.cross_entropy


def made(name: str, small: bool) -> Example:
    """Build the model of a name, equal on all ranks."""
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    with torch.device(device()):
        if name == "llama":
            sizes = dict(length=32, vocabulary=512, layers=2, width=64, heads=8, groups=8, hidden=128)
            if not small:
                sizes = dict(length=2048, vocabulary=32_000, layers=24, width=2048, heads=16, groups=16, hidden=5632)
            model, batch, loss = llama(batch=4 * ranks, **sizes)
        else:
            model, batch, loss = wide(4 * ranks, 8, 16, 2) if small else wide(32 * ranks, 64, 1024, 24)
    if small:
        return model, batch, loss
    return model.to(torch.bfloat16), tuple(x.bfloat16() if x.is_floating_point() else x for x in batch), loss


def device() -> torch.device:
    """Device of this rank."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def hardware() -> str:
    """Name of the GPU in the catalogue that estimates are made for."""
    return "h100" if torch.cuda.is_available() and "H100" in torch.cuda.get_device_name() else "h200"


def blocks_of(model: nn.Module) -> Iterable[nn.Module]:
    """Blocks of a model that repeat."""
    found: Iterable[nn.Module] = model.blocks if hasattr(model, "blocks") else model[1]  # type: ignore[index, assignment]
    return found


def compiled(make: Callable[[Example], Made]) -> Callable[[Example], Made]:
    """Train in a given way, with every block under ``torch.compile``."""

    def made_so(example: Example) -> Made:
        torch.compiler.reset()
        for block in blocks_of(example[0]):
            block.compile()
        return make(example)

    return made_so


def by_hand(model: nn.Module, batch: Sequence[Tensor], loss: Callable[..., Tensor], shares: int, share: int) -> Made:
    """Train a wrapped model on this rank's share of the batch."""
    own = [x.chunk(shares)[share] for x in batch]
    return lambda: loss(model(*own[:-1]), own[-1]), model.parameters(), {}


def data_parallel(example: Example) -> Made:
    """Train under ``DistributedDataParallel``."""
    model, batch, loss = example
    return by_hand(DistributedDataParallel(model), batch, loss, dist.get_world_size(), dist.get_rank())


def sharded(example: Example, over: DeviceMesh | None = None) -> Made:
    """Train under FSDP2: every block wrapped, then the rest."""
    model, batch, loss = example
    over = over or init_device_mesh(device().type, (dist.get_world_size(),))
    for block in blocks_of(model):
        fully_shard(block, mesh=over)
    fully_shard(model, mesh=over)
    return by_hand(model, batch, loss, over.size(), over.get_local_rank())


def tensor_parallel(example: Example, over: DeviceMesh | None = None) -> Made:
    """Train under tensor parallelism of heads and hidden units, as in Megatron."""
    model, batch, loss = example
    over = over or init_device_mesh(device().type, (dist.get_world_size(),))
    columns = {name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
    rows = {name: RowwiseParallel() for name in ("project", "down")}
    for block in model.blocks:
        parallelize_module(block, over, {**columns, **rows})
        block.heads, block.groups = block.heads // over.size(), block.groups // over.size()
    return by_hand(model, batch, loss, 1, 0)


def both(example: Example) -> Made:
    """Train under tensor parallelism over pairs, FSDP2 over the others."""
    mesh = init_device_mesh(device().type, (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    tensor_parallel(example, mesh["tensor"])
    return sharded(example, mesh["data"])


def planned(example: Example, limit_bytes: int, **how: Any) -> Made:
    """Train under a plan by ``split``, as the README has it."""
    model, batch, loss = example
    ranks = dist.get_world_size()
    step = split(
        model,
        batch,
        loss,
        mesh=f"{ranks // 2}x2" if ranks > 2 else str(ranks),
        gbps="350",
        hardware=hardware(),
        budget_bytes=limit_bytes,
        optimizer=torch.optim.AdamW,
        planner=loadmaster.plan,
        **how,
    )
    said = {"planned_us": step.plan.objective, "planned_bytes": step.plan.check["peak_bytes"], "gap": step.plan.gap}
    return lambda: step(*batch), step.parameters(), said


def measured(name: str, make: Callable[[Example], Made], example: Callable[[], Example]) -> dict[str, Any]:
    """Measure one way to train; a row without figures where it fails, most often for memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    row: dict[str, Any] = {"way": name}
    began = time.monotonic()
    try:
        step, parameters, said = make(example())
        row |= said | {"ready_s": round(time.monotonic() - began, 1), **_steps(step, parameters)}
    except (RuntimeError, LoadmasterError) as error:
        row["failed"] = f"{type(error).__name__}: {error}"[:300]
    if dist.get_rank() == 0:
        print(row, flush=True)
    return row


def _steps(step: Stepper, parameters: Iterable[nn.Parameter]) -> dict[str, Any]:
    optimizers = _optimizers([*parameters])
    times = []
    for n in range(WARM + STEPS):
        if n == WARM and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        dist.barrier()
        began = time.perf_counter()
        loss = step()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    every = torch.tensor([statistics.median(times[WARM:]), peak], dtype=torch.float64, device=device())
    dist.all_reduce(every, op=dist.ReduceOp.MAX)
    return {"step_us": round(1e6 * every[0].item()), "peak_bytes": int(every[1].item())}


def _optimizers(parameters: Sequence[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Make an optimizer for plain tensors and one for shares: PyTorch 2.11 updates no list of both at once."""
    sorts = [[p for p in parameters if isinstance(p, DTensor) == shared] for shared in (False, True)]
    return [torch.optim.AdamW(sort, lr=1e-4) for sort in sorts if sort]


def compared(name: str, small: bool, only: str) -> list[dict[str, Any]]:
    """Measure all ways, by hand first: they say what the limits are."""
    example = partial(made, name, small)
    ways: dict[str, Callable[[Example], Made]] = {"data parallel": data_parallel, "fsdp2": sharded}
    if name == "llama":
        ways["tensor parallel"] = tensor_parallel
        if dist.get_world_size() >= 4:
            ways["fsdp2 and tensor parallel"] = both
    ways |= {f"{way}, compiled": compiled(make) for way, make in ways.items()}
    by_hand = [way for way in ways if way in ("data parallel", "fsdp2") or only in way]
    rows = [measured(way, ways[way], example) for way in by_hand]
    peaks = {row["way"]: row.get("peak_bytes", 0) for row in rows}
    limits = {"what data parallelism takes": peaks["data parallel"], "what fsdp2 takes": peaks["fsdp2"]}
    for words, limit_bytes in limits.items():
        for executor in ("graph", "module"):
            if only not in f"plan, {executor}":
                continue
            make = partial(planned, limit_bytes=limit_bytes or 1 << 40, executor=executor)
            found = measured(f"plan, {executor}", make, example)
            rows.append(found | {"limit": words, "limit_bytes": limit_bytes})
    return [row | {"model": name} for row in rows]


def main() -> None:
    """Measure the models that are asked for, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("llama", "wide"), action="append")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="", metavar="WORDS", help="ways whose names have these words")
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    if on_gpu:
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    models = given.model or ["llama", "wide"]
    rows = [row for name in models for row in compared(name, given.small, given.only)]
    if dist.get_rank() == 0 and not given.small and not given.only:
        name = f"partition_gpus_{dist.get_world_size()}"
        print(record.write(name, {"rows": [*_other_rows(name, models), *rows]}))
    dist.destroy_process_group()


def _other_rows(name: str, models: Sequence[str]) -> list[dict[str, Any]]:
    """Read the recorded rows of models that were not measured now."""
    path = record.RESULTS / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {"rows": [], "machine": record.machine()}
    if known["machine"].get("gpu") != record.machine().get("gpu"):
        return []
    return [row for row in known["rows"] if row["model"] not in models]


if __name__ == "__main__":
    main()
