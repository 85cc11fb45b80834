"""The tensor cache: files compared with a plain O_DIRECT copy, steps with PyTorch's own ways to save memory.

    python -m benchmarks.tensor_cache --files /mnt/nvme0 --bytes 8GiB    on any machine
    python -m benchmarks.tensor_cache --steps                            on a GPU
    python -m benchmarks.tensor_cache --steps --device cpu --small       a trial with small models

Files: tensors of 64 MiB stored and loaded through the backend as a cache does it, and the same bytes written and read
by as many threads, and by one, from an aligned buffer each with nothing around it, in turns. A share is the median over
the rounds of what the backend reached against the faster plain copy.
Writes ``benchmarks/results/tensor_cache_files.json``.

Steps: forward and backward, gradients dropped before it, no optimizer; plain PyTorch, ``save_on_cpu(pin_memory=True)``,
every block under ``torch.utils.checkpoint``, and caches in host memory as the page tells readers to make them. Sums of
the gradients' bits say whether they are plain PyTorch's. Writes ``benchmarks/results/tensor_cache_steps.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import record
from benchmarks.gpu.cases import CASES, Case, build, checkpoint_blocks
from examples import gpt
from loadmaster.executor import TensorCache, measure
from loadmaster.executor.placement.cache.backends.files import CHUNK_BYTES, THREADS, Files
from loadmaster.executor.steps.pinned import HostPool
from loadmaster.executor.steps.spill_file import ALIGNMENT_BYTES
from loadmaster.models.units import parse_bytes

GIB = 1 << 30
TENSOR_BYTES = 64 << 20
# Hidden size 8192 and few layers: more arithmetic for each byte that is saved.
WIDE = Case(partial(gpt.gpt, 8, 2048, 8192, 3, 8192, 64), gpt.small, True, ("blocks",))
STEPS = {"gpt2_medium": CASES["gpt2_medium"], "wide": WIDE, "resnet50": CASES["resnet50"]}
METHODS = ("plain", "plain again", "save_on_cpu", "checkpoint", "cache", "cache, all", "checkpoint and cache, all")
WARM_UP, CACHE_WARM_UP = 2, 5  # a cache looks at its first steps
REPEATS = 8


class PlainFile:
    """Plain copy at the cache's place on the disk, past the page cache with nothing around it."""

    def __init__(self, files: Files, total_bytes: int) -> None:
        # Another file could be where the disk, or the host of a virtual one, is faster.
        self.descriptor, self.total_bytes = files._files[0]._descriptor, total_bytes

    def copy(self, threads: int) -> tuple[float, float]:
        """Seconds to write and to read all of it, by threads with an aligned buffer each."""
        return self._seconds(threads, write=True), self._seconds(threads, write=False)

    def _seconds(self, threads: int, *, write: bool) -> float:
        pool = HostPool(pinned=False, alignment_bytes=ALIGNMENT_BYTES)
        buffers = [pool.take(CHUNK_BYTES).random_() for _ in range(threads)]
        workers = [
            threading.Thread(target=self._work, args=(n, threads, memoryview(buffer.numpy()), write))
            for n, buffer in enumerate(buffers)
        ]
        settle(self.descriptor)
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - start

    def _work(self, first: int, threads: int, buffer: memoryview, write: bool) -> None:
        for at in range(first * CHUNK_BYTES, self.total_bytes, threads * CHUNK_BYTES):
            done = os.pwrite(self.descriptor, buffer, at) if write else os.preadv(self.descriptor, [buffer], at)
            assert done == CHUNK_BYTES


def settle(descriptor: int) -> None:
    """Let the disk, and whoever emulates it, finish what was written before."""
    os.fsync(descriptor)
    time.sleep(1)


def backend_copy(files: Files, sources: list[torch.Tensor]) -> tuple[float, float]:
    """Seconds to store and to load tensors, all at once, through the backend."""
    settle(files._files[0]._descriptor)
    start = time.perf_counter()
    stored = [files.store(source) for source in sources]
    for one in stored:
        assert one is not None
        one.wait()
        assert one.failure() is None, one.failure()
    written = time.perf_counter()
    targets = [torch.zeros_like(source) for source in sources]
    settle(files._files[0]._descriptor)
    begun = time.perf_counter()
    loads = [files.load(one, target) for one, target in zip(stored, targets, strict=True) if one is not None]
    for load in loads:
        load.wait()
        assert load.failure() is None, load.failure()
    read = time.perf_counter()
    assert all(map(torch.equal, sources, targets))
    for one in stored:
        assert one is not None
        files.free(one)
    return written - start, read - begun


def files_figure(folder: str, total_bytes: int, rounds: int) -> None:
    """Measure sustained write and read, compared with a plain copy."""
    count = total_bytes // TENSOR_BYTES
    total_bytes = count * TENSOR_BYTES
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sources = [torch.randint(0, 256, (TENSOR_BYTES,), dtype=torch.uint8, device=device) for _ in range(count)]
    files = Files([folder])
    plain = PlainFile(files, total_bytes)
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "tensor cache": lambda: backend_copy(files, sources),
        "plain, one thread": lambda: plain.copy(1),
        "plain, as many threads": lambda: plain.copy(THREADS),
    }
    backend_copy(files, sources)  # written once, as from a cache's second step on
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    rows = []
    for name, times in found.items():
        rates = [[total_bytes / seconds / 1e9 for seconds in column] for column in zip(*times, strict=True)]
        rows.append(
            {
                "way": name,
                "write_gbps": round(statistics.median(rates[0]), 3),
                "read_gbps": round(statistics.median(rates[1]), 3),
                "write_gbps_of_each_round": [round(rate, 3) for rate in rates[0]],
                "read_gbps_of_each_round": [round(rate, 3) for rate in rates[1]],
            }
        )
        print(rows[-1], flush=True)
    shares = {}
    for n, way in enumerate(("write", "read")):
        # The disk is another one every minute: each round against the faster plain copy of that round.
        rounds_s = [[times[n] for times in found[name]] for name in ways]
        shares[f"{way}_share"] = round(
            statistics.median(min(plain) / ours for ours, *plain in zip(*rounds_s, strict=True)), 3
        )
    print(shares)
    payload = {"bytes": total_bytes, "from": device, "threads": THREADS, "notes": files.counters().notes}
    files.close()
    print(record.write("tensor_cache_files", {**payload, **shares, "rows": rows}))


def step_row(name: str, method: str, device: str, *, small: bool, repeats: int) -> dict[str, Any]:
    """Measure one model and one method."""
    case = STEPS[name]
    model, inputs, loss, precision = build(case, device, small=small)
    if "checkpoint" in method:
        checkpoint_blocks(model, case.blocks)
    context: Any = contextlib.nullcontext()
    if "cache" in method:
        context = TensorCache(model, to="host", **({"keep": 0} if "all" in method else {}))
    if method == "save_on_cpu":
        context = torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda")

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with context:
            with precision():
                value = loss(model(*inputs[:-1]), inputs[-1])
            value.backward()
        return value.detach()

    torch.manual_seed(1)
    value = float(step())
    bits = [int(p.grad.view(torch.int32).sum(dtype=torch.int64)) for p in model.parameters() if p.grad is not None]
    measured = measure(step, device=device, warmup=CACHE_WARM_UP if "cache" in method else WARM_UP, repeats=repeats)
    model.zero_grad(set_to_none=True)
    resident_bytes = measured.resident_bytes
    if device == "cuda":
        torch.cuda.synchronize()
        resident_bytes = torch.cuda.memory_allocated()  # without the gradients of the step before
    row: dict[str, Any] = {
        "case": name,
        "method": method,
        "step_ms": round(measured.step_us / 1e3, 3),
        "peak_gib": round(measured.peak_bytes / GIB, 3),
        "resident_gib": round(resident_bytes / GIB, 3),
        "loss": value,
        "gradient_bits": hash(tuple(bits)),
    }
    if isinstance(context, TensorCache):
        row["stats"] = str(context.stats()).splitlines()
        context.close()
    return row


def steps_figure(names: list[str], methods: list[str], device: str, *, small: bool, repeats: int) -> None:
    """Measure step time and peak, compared with PyTorch's own ways."""
    rows: list[dict[str, Any]] = []
    for name in names:
        for method in methods:
            try:
                row = step_row(name, method, device, small=small, repeats=repeats)
            except torch.OutOfMemoryError as error:
                row = {"case": name, "method": method, "error": str(error).splitlines()[0]}
            plain = next((r for r in rows if r["case"] == name and r["method"] == "plain" and "loss" in r), None)
            if plain is not None and "loss" in row:
                row["gradients_equal_plain"] = row["gradient_bits"] == plain["gradient_bits"]
                row["times_plain_step"] = round(row["step_ms"] / plain["step_ms"], 3)
                # What a cache holds on to from step to step counts too: the rest is plain PyTorch's resident memory.
                room = plain["peak_gib"] - plain["resident_gib"]
                row["share_of_plain_activations"] = round((row["peak_gib"] - plain["resident_gib"]) / room, 3)
            rows.append(row)
            print(row, flush=True)
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    if not small:
        print(record.write("tensor_cache_steps", {"rows": rows}))


def main() -> None:
    """Measure what is asked for."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--files", metavar="FOLDER")
    p.add_argument("--bytes", default="1GiB", dest="size")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", action="store_true")
    p.add_argument("--cases", nargs="+", default=list(STEPS), choices=list(STEPS))
    p.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    p.add_argument("--device", default="cuda")
    p.add_argument("--repeats", type=int, default=REPEATS)
    p.add_argument("--small", action="store_true")
    a = p.parse_args()
    if a.files is not None:
        files_figure(a.files, parse_bytes(a.size, "--bytes"), a.rounds)
    if a.steps:
        steps_figure(a.cases, a.methods, a.device, small=a.small, repeats=a.repeats)


if __name__ == "__main__":
    main()
