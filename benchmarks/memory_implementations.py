"""Time and memory of each implementation beside the PyTorch operator it stands in for, on a CUDA device.

Run: ``PYTHONPATH=. python benchmarks/memory_implementations.py``. Median of 10 after 3 warm-up runs; memory is the
allocator's peak beyond what was there before, results included.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch.nn import functional as F

from loadmaster.executor.memory.implementations.batch_norm import batch_norm_apply
from loadmaster.executor.memory.implementations.chunked_loss import chunked_linear_cross_entropy
from loadmaster.executor.memory.implementations.dropout import seeded_dropout
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside
from loadmaster.executor.memory.implementations.pooling import pool_offset_backward, pool_offsets

aten = torch.ops.aten
MIB = 2**20


def median_ms(run: Callable[[], object]) -> float:
    """Device time, the host kept ahead of it."""
    times = []
    for repeat in range(13):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        if repeat >= 3:
            times.append(start.elapsed_time(stop))
    return statistics.median(times)


def peak_mib(run: Callable[[], object]) -> float:
    """Beyond what is allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def report(name: str, run: Callable[[], object]) -> None:
    run()
    print(f"| {name} | {median_ms(run):.3f} | {peak_mib(run):.1f} |")


def activations() -> None:
    """ResNet-50's first activation, batch 184: [184, 64, 112, 112] float32."""
    x, gradient = (torch.randn(184, 64, 112, 112, device="cuda") for _ in range(2))
    mask = pack_inside(x, 0.0)
    report("relu backward, PyTorch", lambda: aten.threshold_backward(gradient, x, 0))
    report("relu: pack the mask", lambda: pack_inside(x, 0.0))
    report("relu backward from the mask", lambda: masked_gradient(gradient, mask))

    seed = torch.tensor(1, device="cuda")
    report("dropout, PyTorch", lambda: torch.native_dropout(x, 0.1, True))
    report("dropout from a seed, forward or backward", lambda: seeded_dropout(x, seed, 0.1))

    window = ([3, 3], [2, 2], [1, 1], [1, 1])
    output, indices = aten.max_pool2d_with_indices(x, *window)
    pooled = torch.randn_like(output)
    offsets = pool_offsets(indices, 112, *window)
    report(
        "max-pool backward, PyTorch",
        lambda: aten.max_pool2d_with_indices_backward(pooled, x, *window, False, indices),
    )
    report("max-pool: offsets from indices", lambda: pool_offsets(indices, 112, *window))
    report(
        "max-pool backward from offsets",
        lambda: pool_offset_backward(pooled, offsets, 112, 112, *window, False),
    )

    weight, bias = torch.randn(2, 64, device="cuda").unbind()
    _, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    report(
        "batch norm forward, PyTorch",
        lambda: torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5),
    )
    report("batch norm from its statistics", lambda: batch_norm_apply(x, mean, rstd, weight, bias))


def loss() -> None:
    """GPT-2-medium's head, batch 32 x 1024 tokens, bfloat16, forward and backward."""
    hidden = torch.randn(32 * 1024, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = (0.02 * torch.randn(50_304, 1024, device="cuda")).bfloat16().requires_grad_()
    targets = torch.randint(50_304, (32 * 1024,), device="cuda")

    def step(value: torch.Tensor) -> None:
        torch.autograd.grad(value, (hidden, weight))

    report("linear + cross-entropy, PyTorch", lambda: step(F.cross_entropy(F.linear(hidden, weight).float(), targets)))
    for chunks in (None, 8, 32, 64):
        name = f"chunked, {chunks or 'default'} chunks"
        report(name, lambda c=chunks: step(chunked_linear_cross_entropy(hidden, weight, targets, chunks=c)))


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| operator | ms | MiB |\n| --- | --- | --- |")
    activations()
    loss()
