"""Time and memory of each implementation compared with the PyTorch operator it replaces, on a CUDA device.

Run: ``python -m benchmarks.memory_implementations``. Median of 10 after 3 warm-up runs, host ahead of the
device; memory is the allocator's peak beyond what was there before, results included. Writes
``benchmarks/results/memory_implementations.json``.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks import record
from loadmaster.executor.memory.implementations.decompositions import decompositions
from loadmaster.executor.memory.implementations.dropout import seeded_dropout
from loadmaster.executor.memory.implementations.masks import masked_gradient, pack_inside
from loadmaster.executor.memory.implementations.norms import batch_norm_apply, layer_norm_apply
from loadmaster.executor.memory.implementations.pooling import pool_offset_backward, pool_offsets
from tests.executor.memory.implementations.chunked_loss import chunked_linear_cross_entropy

aten = torch.ops.aten
MIB = 2**20
LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
ROWS: list[dict[str, Any]] = []


def median_ms(run: Callable[[], object]) -> float:
    """Median device time in ms, the host kept ahead of it."""
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
    """Peak of a call in MiB, beyond what is allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def report(case: str, name: str, run: Callable[[], object]) -> None:
    """Measure and print one row; what a GPU cannot run is a row that says so."""
    try:
        run()
        row = {"case": case, "operator": name, "ms": round(median_ms(run), 3), "mib": round(peak_mib(run), 1)}
    except (RuntimeError, torch.OutOfMemoryError) as error:
        row = {"case": case, "operator": name, "error": str(error).splitlines()[0]}
    ROWS.append(row)
    print(f"| {' | '.join(str(v) for v in row.values())} |", flush=True)


def activations(layout: str, dtype: torch.dtype) -> None:
    """ResNet-50's first activation, batch 184: [184, 64, 112, 112]."""
    case = f"{str(dtype).removeprefix('torch.')}, {layout}"
    x, gradient = (
        torch.randn(184, 64, 112, 112, device="cuda", dtype=dtype).to(memory_format=LAYOUTS[layout]) for _ in range(2)
    )
    report(case, "copy", lambda: x.clone())
    mask = pack_inside(x, 0.0)
    report(case, "relu backward, PyTorch", lambda: aten.threshold_backward(gradient, x, 0))
    report(case, "relu: pack the mask", lambda: pack_inside(x, 0.0))
    report(case, "relu backward from the mask", lambda: masked_gradient(gradient, mask))
    table = decompositions()
    for name, op, args in (
        ("relu: pack the mask, compiled", pack_inside, (x, 0.0)),
        ("relu backward from the mask, compiled", masked_gradient, (gradient, mask)),
    ):
        compiled = torch.compile(table[op._opoverload], dynamic=False)
        report(case, name, lambda compiled=compiled, args=args: compiled(*args))

    seed = torch.tensor(1, device="cuda")
    report(case, "dropout, PyTorch", lambda: torch.native_dropout(x, 0.1, True))
    report(case, "dropout from a seed, forward or backward", lambda: seeded_dropout(x, seed, 0.1))

    window = ([3, 3], [2, 2], [1, 1], [1, 1])
    output, indices = aten.max_pool2d_with_indices(x, *window)
    pooled = torch.randn_like(output)
    offsets = pool_offsets(indices, 112, *window)
    report(
        case,
        "max-pool backward, PyTorch",
        lambda: aten.max_pool2d_with_indices_backward(pooled, x, *window, False, indices),
    )
    report(case, "max-pool: offsets from indices", lambda: pool_offsets(indices, 112, *window))
    report(
        case,
        "max-pool backward from offsets",
        lambda: pool_offset_backward(pooled, offsets, 112, 112, *window, False),
    )

    weight, bias = torch.randn(2, 64, device="cuda").unbind()
    _, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    report(
        case,
        "batch norm forward, PyTorch",
        lambda: torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5),
    )
    report(case, "batch norm from its statistics", lambda: batch_norm_apply(x, mean, rstd, weight, bias))


def row_norms(dtype: torch.dtype) -> None:
    """GPT-2-medium's LayerNorm, batch 32 x 1024 tokens."""
    case = f"[32, 1024, 1024] {str(dtype).removeprefix('torch.')}"
    x = torch.randn(32, 1024, 1024, device="cuda", dtype=dtype)
    weight, bias = torch.randn(2, 1024, device="cuda", dtype=dtype).unbind()
    _, mean, rstd = torch.native_layer_norm(x, [1024], weight, bias, 1e-5)
    report(case, "layer norm, PyTorch", lambda: torch.native_layer_norm(x, [1024], weight, bias, 1e-5))
    report(case, "layer norm from its statistics", lambda: layer_norm_apply(x, mean, rstd, weight, bias))


def loss() -> None:
    """GPT-2-medium's head, batch 32 x 1024 tokens, bfloat16, forward and backward."""
    case = "32 x 1024 tokens, width 1024, 50,304 classes, bfloat16"
    hidden = torch.randn(32 * 1024, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = (0.02 * torch.randn(50_304, 1024, device="cuda")).bfloat16().requires_grad_()
    targets = torch.randint(50_304, (32 * 1024,), device="cuda")

    def plain(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), targets)

    def by_hand(hidden: torch.Tensor, weight: torch.Tensor, chunks: int = 8) -> torch.Tensor:
        """Compute the loss as a PyTorch user would write it: chunks, each under checkpoint."""
        parts = zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True)

        def part(h: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(F.linear(h, weight).float(), t, reduction="sum")

        return sum(torch.utils.checkpoint.checkpoint(part, h, t, use_reentrant=False) for h, t in parts) / len(targets)

    def step(run: Callable[..., torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(run(hidden, weight), (hidden, weight))

    def products() -> None:
        logits = hidden.detach() @ weight.detach().t()
        torch.mm(logits.t(), hidden.detach())
        torch.mm(logits, weight.detach())

    report(case, "the three matrix products alone", products)
    report(case, "linear + cross-entropy, PyTorch", step(plain))
    report(case, "linear + cross-entropy, compiled", step(torch.compile(plain, dynamic=False)))
    report(case, "8 chunks by hand", step(by_hand))
    report(case, "8 chunks by hand, compiled", step(torch.compile(by_hand, dynamic=False)))
    for chunks in (None, 4, 16, 32):

        def ours(h: torch.Tensor, w: torch.Tensor, chunks: int | None = chunks) -> torch.Tensor:
            return chunked_linear_cross_entropy(h, w, targets, chunks=chunks)

        report(case, f"chunked, {chunks or 'default (8)'} chunks", step(ours))
    report(
        case,
        "chunked, label smoothing",
        step(lambda h, w: chunked_linear_cross_entropy(h, w, targets, label_smoothing=0.1)),
    )


def attention() -> None:
    """Forward and backward of GPT-2-medium's and BERT-large's attention under each kernel, bfloat16."""
    backends = torch.nn.attention.SDPBackend
    chosen = (backends.FLASH_ATTENTION, backends.EFFICIENT_ATTENTION, backends.CUDNN_ATTENTION, backends.MATH)
    for (batch, tokens, causal), dropout in itertools.product(((32, 1024, True), (32, 512, False)), (0.0, 0.1)):
        q, k, v = torch.randn(
            3, batch, 16, tokens, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True
        ).unbind()
        case = f"attention {batch} x 16 x {tokens} x 64, {'causal' if causal else 'full'}, dropout {dropout}"
        for backend in chosen:

            def run(backend: Any = backend, q=q, k=k, v=v, p=dropout, causal=causal) -> object:
                with torch.nn.attention.sdpa_kernel(backend):
                    made = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)
                return torch.autograd.grad(made, (q, k, v), made.detach())

            report(case, backend.name.lower(), run)


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| case | operator | ms | MiB |\n| --- | --- | --- | --- |")
    for wanted, kind in itertools.product(LAYOUTS, (torch.float32, torch.bfloat16)):
        activations(wanted, kind)
        torch.cuda.empty_cache()
    for kind in (torch.float32, torch.bfloat16):
        row_norms(kind)
    loss()
    attention()
    print(record.write("memory_implementations", {"rows": ROWS}))
