"""Train under a plan, and hold it against plain PyTorch: loss, gradients, peak memory and step time.

    python -m examples.train examples.gpt:small plan.json --steps 3

The factory returns ``(model, batch, loss)``, as for ``loadmaster capture``; the plan is one for that capture. What
makes the difference in a training script of your own is one line: ``step = apply(plan, model, loss)``.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.executor import apply, measure
from loadmaster.models.documents import load_document
from loadmaster.models.memory.documents import read_plan

SEED = 0
LEARNING_RATE = 0.01

Step = Callable[..., Tensor]


def gradients(step: Step, model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one step from a fixed random state; the model's gradients are taken away again."""
    torch.manual_seed(SEED)
    loss = step(*inputs)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), found


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Any]:
    """How two sets of gradients differ: bit-equal or not, and the largest difference relative to the largest entry."""
    assert ours.keys() == theirs.keys(), "the steps give gradients to different parameters"
    relative = [float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp_min(1e-30)) for n in theirs]
    return {"bit_equal": all(torch.equal(ours[n], theirs[n]) for n in theirs), "largest_relative": max(relative)}


def train(step: Step, model: nn.Module, inputs: tuple[Tensor, ...], steps: int) -> dict[str, Any]:
    """Peak memory of one step; then losses, and the median time, of some steps of SGD on the same batch."""

    def run() -> None:
        step(*inputs).backward()
        model.zero_grad(set_to_none=True)

    resident = [*model.parameters(), *model.buffers(), *inputs]
    peak_bytes = measure(run, resident=resident, device=inputs[0].device, warmup=0, repeats=0).peak_bytes
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(SEED)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        loss = step(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - start)
    return {"peak_bytes": peak_bytes, "step_us": 1e6 * statistics.median(seconds), "losses": losses}


def compare(factory: str, plan_path: Path, steps: int, backend: str) -> dict[str, Any]:
    """Everything, for one model and one plan."""
    module, _, name = factory.partition(":")
    torch.manual_seed(SEED)
    model, inputs, loss = getattr(importlib.import_module(module), name)()
    twin = copy.deepcopy(model)
    plan = read_plan(load_document(plan_path))

    planned = apply(plan, model, loss, backend=backend)

    def plain(*batch: Tensor) -> Tensor:
        return loss(twin(*batch[:-1]), batch[-1])

    # This first step also puts the plan in place.
    our_loss, ours = gradients(planned, model, inputs)
    their_loss, theirs = gradients(plain, twin, inputs)
    return {
        "factory": factory,
        "budget_bytes": plan.budget_bytes,
        "loss": {"planned": our_loss, "plain": their_loss},
        "gradients": difference(ours, theirs),
        "planned": train(planned, model, inputs, steps),
        "plain": train(plain, twin, inputs, steps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("factory", metavar="MODULE:FACTORY")
    parser.add_argument("plan", metavar="PLAN.json", type=Path)
    parser.add_argument("--steps", type=int, default=3, help="training steps (3)")
    parser.add_argument("--backend", choices=("inductor", "eager"), default="inductor")
    parser.add_argument("-o", "--output", metavar="REPORT.json", type=Path)
    arguments = parser.parse_args()
    report = json.dumps(compare(arguments.factory, arguments.plan, arguments.steps, arguments.backend), indent=2)
    if arguments.output is None:
        print(report)
    else:
        arguments.output.write_text(report + "\n")


if __name__ == "__main__":
    main()
