"""Library models trained whole under a budget: ``fit``, and what people use without it.

    python -m benchmarks.training_models                            on a GPU
    python -m benchmarks.training_models --small                    a trial on a CPU, without ``fit``

Models are those of torchvision and transformers, under bfloat16 autocast with fused AdamW. Budgets are shares of the
peak of plain PyTorch, optimizer state included. ``fit`` is the call of docs/training.md; ``fit, activations`` is the
same without an optimizer; ``pager`` is the pager of docs/place-a-training-state.md, with checkpointed blocks. FSDP2
offloads to the CPU with checkpointed blocks, and so does torchao's CPUOffloadOptimizer; both take what they take, and
count under each budget that they keep. Times are the median of rounds of steps, peaks the allocator's.
Writes ``benchmarks/results/training_models.json``; rows of other models stay in it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import loadmaster
from benchmarks import record
from benchmarks.training import GIB, PLANNING_S, measured
from benchmarks.training_rivals import Loop, loop_of
from loadmaster.executor import Pager, PlannedTraining, fit
from loadmaster.executor.torch_private.operators import pytree

SHARES = (0.7, 0.5, 0.3)
WITHOUT_BUDGET = ("plain", "checkpointed", "FSDP2, CPU offload", "torchao, CPU offload")
UNDER_BUDGET = ("fit", "fit, activations", "pager")


@dataclass
class Case:
    """A model, its batch and loss, and the modules that one would checkpoint."""

    model: nn.Module
    batch: Any
    loss: Callable[[Any, Tensor], Tensor] | None
    blocks: list[nn.Module]

    def value(self, step: Callable[..., Any]) -> Tensor:
        """Compute the loss of the batch."""
        if self.loss is not None:
            images, labels = self.batch
            return self.loss(step(images), labels)
        found: Tensor = step(**self.batch).loss
        return found


def _images(name: str, batch: int, blocks: Callable[[Any], list[nn.Module]]) -> Case:
    from torchvision import models

    model = getattr(models, name)(weights=None)
    return Case(
        model, (torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))), nn.CrossEntropyLoss(), blocks(model)
    )


def _text(
    config: str, model: str, batch: int, length: int, blocks: Callable[[Any], list[nn.Module]], **options: Any
) -> Case:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(use_cache=False, **options)).train()
    tokens = torch.randint(2, made.config.vocab_size, (batch, length))
    return Case(made, {"input_ids": tokens, "labels": tokens}, None, blocks(made))


def _of_resnet(model: Any) -> list[nn.Module]:
    return [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]


def _qwen3(batch: int, length: int, layers: int, width: int, words: int) -> Case:
    options = {"head_dim": 128, "tie_word_embeddings": True, "num_hidden_layers": layers, "vocab_size": words}
    options |= {"hidden_size": width, "intermediate_size": 3 * width}
    options |= {"num_attention_heads": width // 64, "num_key_value_heads": width // 128}
    return _text("Qwen3Config", "Qwen3ForCausalLM", batch, length, lambda m: [*m.model.layers], **options)


def _gpt2(batch: int, length: int, layers: int, width: int) -> Case:
    options = {"n_embd": width, "n_layer": layers, "n_head": width // 64}
    return _text("GPT2Config", "GPT2LMHeadModel", batch, length, lambda m: [*m.transformer.h], **options)


# Factories of the model at its real size, and of one for trials.
CASES: dict[str, tuple[Callable[[], Case], Callable[[], Case]]] = {
    "gpt2-medium": (partial(_gpt2, 8, 1024, 24, 1024), partial(_gpt2, 1, 16, 2, 128)),
    "vit-l": (
        partial(_images, "vit_l_16", 128, lambda m: [*m.encoder.layers]),
        partial(_images, "vit_b_16", 2, lambda m: [*m.encoder.layers]),
    ),
    "resnet50": (partial(_images, "resnet50", 184, _of_resnet), partial(_images, "resnet50", 2, _of_resnet)),
    "qwen3-0.6b": (partial(_qwen3, 4, 2048, 28, 1024, 151_936), partial(_qwen3, 1, 16, 2, 128, 1000)),
}


def _checkpoint(blocks: list[nn.Module]) -> None:
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def _plain(case: Case, device: str) -> Iterator[Loop]:
    yield _loop(case, case.model.to(device), _adamw(case.model), device)


def _checkpointed(case: Case, device: str) -> Iterator[Loop]:
    _checkpoint(case.blocks)
    yield from _plain(case, device)


def _loop(case: Case, step: Callable[..., Any], optimizer: Any, device: str) -> Loop:
    def loss() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return case.value(step)

    return loop_of(loss, optimizer)


def _fsdp(case: Case, device: str) -> Iterator[Loop]:
    from torch import distributed
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513", RANK="0", WORLD_SIZE="1")
    distributed.init_process_group("cpu:gloo,cuda:nccl")
    _checkpoint(case.blocks)
    for module in (*case.blocks, case.model):
        fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=True))
    for buffer in case.model.buffers():
        buffer.data = buffer.data.to(device)
    yield _loop(case, case.model, _adamw(case.model), device)


def _torchao(case: Case, device: str) -> Iterator[Loop]:
    from torchao.optim import CPUOffloadOptimizer

    _checkpoint(case.blocks)
    case.model.to(device)
    optimizer = CPUOffloadOptimizer(
        case.model.parameters(), torch.optim.AdamW, offload_gradients=True, fused=True, lr=1e-4
    )
    yield _loop(case, case.model, optimizer, device)


def _fit(case: Case, device: str, budget_bytes: int, found: dict[str, Any], *, whole: bool) -> Iterator[Loop]:
    optimizer = _adamw(case.model) if whole else _adamw(case.model.to(device))
    options: dict[str, Any] = {"optimizer": optimizer, "device": device} if whole else {}
    began = time.perf_counter()
    with torch.autocast(device, torch.bfloat16):
        planner = partial(loadmaster.plan, time_limit_s=PLANNING_S, progress=False)
        fitted = fit(case.model, case.batch, case.loss, budget_bytes=budget_bytes, planner=planner, **options)
    plan = fitted.plan
    found |= {
        "is_whole_step": isinstance(fitted, PlannedTraining),
        "ready_s": round(time.perf_counter() - began, 1),
        "planned_ms": None if plan is None or plan.objective is None else round(plan.objective / 1e3, 1),
        "report": str(fitted.report),
    }

    def loss() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            value: Tensor = fitted.step(**case.batch) if case.loss is None else fitted.step(*case.batch)
        return value

    yield loop_of(loss, optimizer)


def _pager(case: Case, device: str, budget_bytes: int) -> Iterator[Loop]:
    _checkpoint(case.blocks)
    optimizer = _adamw(case.model.to(device))
    planner = partial(loadmaster.plan, time_limit_s=PLANNING_S, progress=False)
    with Pager(case.model, optimizer, budget_bytes=budget_bytes, planner=planner):
        yield _loop(case, case.model, optimizer, device)


def row(name: str, method: str, budget_bytes: int, *, small: bool) -> dict[str, Any]:
    """Train one model one way, in a process of its own."""
    device = "cpu" if small else "cuda"
    torch.manual_seed(0)
    case = CASES[name][small]()
    case.batch = pytree.tree_map(lambda t: t.to(device), case.batch)
    found: dict[str, Any] = {}
    ways: dict[str, Callable[[], Iterator[Loop]]] = {
        "plain": lambda: _plain(case, device),
        "checkpointed": lambda: _checkpointed(case, device),
        "FSDP2, CPU offload": lambda: _fsdp(case, device),
        "torchao, CPU offload": lambda: _torchao(case, device),
        "fit": lambda: _fit(case, device, budget_bytes, found, whole=True),
        "fit, activations": lambda: _fit(case, device, budget_bytes, found, whole=False),
        "pager": lambda: _pager(case, device, budget_bytes),
    }
    try:
        for loop in ways[method]():
            found |= measured(loop, device)
    except Exception as error:  # noqa: BLE001 - a row says what kept it from running
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    return found


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each model and budget, how many times as fast ``fit`` is as the best of the others that keep the budget."""
    found = []
    for ours in (r for r in rows if r["method"] == "fit"):
        others = [r for r in rows if r["case"] == ours["case"] and r["method"] != "fit" and "step_ms" in r]
        kept = [
            r for r in others if r["peak_gib"] * GIB <= ours["budget_bytes"] and r.get("share") in (None, ours["share"])
        ]
        best = min(kept, key=lambda r: r["step_ms"], default=None)
        times = None if best is None or "step_ms" not in ours else round(best["step_ms"] / ours["step_ms"], 2)
        named = None if best is None else best["method"]
        found.append({"case": ours["case"], "share": ours["share"], "best_other": named, "times_as_fast": times})
    return found


def main() -> None:
    """Measure what is asked for."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    p.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    p.add_argument("--methods", nargs="+", default=[*WITHOUT_BUDGET, *UNDER_BUDGET], metavar="METHOD")
    p.add_argument("--small", action="store_true", help="a trial on a CPU, of what runs there")
    a = p.parse_args()
    asked = [(method, None) for method in WITHOUT_BUDGET if method == "plain" or method in a.methods]
    asked += [(method, share) for share in a.shares for method in UNDER_BUDGET if method in a.methods]
    others = [] if a.small else [r for r in record.read_rows("training_models") if r["case"] not in a.cases]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in a.cases:
            plain_bytes = 0.0
            for method, share in asked:
                budget_bytes = int((share or 0.0) * plain_bytes)
                made = processes.submit(row, name, method, budget_bytes, small=a.small).result()
                plain_bytes = plain_bytes or made.get("peak_gib", 0.0) * GIB
                limit: dict[str, Any] = {} if share is None else {"share": share, "budget_bytes": budget_bytes}
                rows.append({"case": name, "method": method, "date": record.now(), **limit, **made})
                print(rows[-1], flush=True)
                if not a.small:
                    record.write("training_models", {"rows": [*others, *rows], "ratios": ratios([*others, *rows])})


if __name__ == "__main__":
    main()
