"""Train under a plan, and hold it against plain PyTorch: loss, gradients, peak memory and step time.

    python -m examples.train examples.resnet50:small plan.json --steps 3

The factory returns ``(model, batch, loss)``, as for ``loadmaster capture``; the plan is one for that capture. What
makes the difference in a training script of your own is one line: ``step = apply(plan, model, loss)``.

Gradients are compared where they can be: a model with dropout (``examples.gpt:small``) draws other masks under a plan
than without one, and the report says so; ``examples.demo_models:gpt`` is the same model without.
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
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.models.documents import load_document
from loadmaster.models.memory.documents import read_plan

SEED = 0
LEARNING_RATE = 0.01
# A gradient this far below the largest one is rounding of float32 (the bias of attention's keys is one that is 0).
ROUNDING = 1e-4
DRAWS = (
    "the step draws random numbers (dropout), and a planned step draws others than plain PyTorch from the same seed: "
    "compare gradients with dropout off"
)

Call = Callable[..., Tensor]


def gradients(call: Call, model: nn.Module, batch: Batch) -> tuple[float, dict[str, Tensor], bool]:
    """Loss and gradients of one step from a fixed random state, and whether it draws random numbers.

    The model's gradients are taken away again.
    """
    torch.manual_seed(SEED)
    before = random_state(model)
    loss = call(*batch.args, **batch.kwargs)
    loss.backward()
    draws = not torch.equal(before, random_state(model))
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), found, draws


def random_state(model: nn.Module) -> Tensor:
    """Of the generator that the model's operators draw from."""
    device = next(model.parameters()).device
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Any]:
    """How two sets of gradients differ: bit-equal or not, and the largest difference of an entry.

    It is relative to the largest entry of the same parameter's gradient: about 1e-7 to 1e-4 are other orders of
    summation in float32, 1 is another gradient. A parameter whose gradient is rounding is held against the others.
    """
    assert ours.keys() == theirs.keys(), "the steps give gradients to different parameters"
    largest = {n: float(theirs[n].abs().max()) for n in theirs}
    least = max(ROUNDING * max(largest.values()), 1e-30)
    relative = [float((ours[n] - theirs[n]).abs().max()) / max(largest[n], least) for n in theirs]
    return {"bit_equal": all(torch.equal(ours[n], theirs[n]) for n in theirs), "largest_relative": max(relative)}


def train(call: Call, model: nn.Module, batch: Batch, steps: int) -> dict[str, Any]:
    """Peak memory of one step; then losses, and the median time, of some steps of SGD on the same batch."""

    def run() -> None:
        call(*batch.args, **batch.kwargs).backward()
        model.zero_grad(set_to_none=True)

    resident = [*model.parameters(), *model.buffers(), *tensors(batch)]
    peak_bytes = measure(run, resident=resident, device=device_of(model, batch), warmup=0, repeats=0).peak_bytes
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(SEED)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        loss = call(*batch.args, **batch.kwargs)
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
    model, given, *more = getattr(importlib.import_module(module), name)()
    loss = more[0] if more else None
    twin = copy.deepcopy(model)
    plan = read_plan(load_document(plan_path))

    planned = apply(plan, model, loss, backend=backend)
    plain = Step(twin, loss)  # the model and the loss, as they are
    batch = plain.batch(given)

    # This first step also puts the plan in place.
    our_loss, ours, _ = gradients(planned, model, batch)
    their_loss, theirs, draws = gradients(plain, twin, batch)
    return {
        "factory": factory,
        "budget_bytes": plan.budget_bytes,
        "loss": {"planned": our_loss, "plain": their_loss},
        "gradients": {"not_compared": DRAWS} if draws else difference(ours, theirs),
        "planned": train(planned, model, batch, steps),
        "plain": train(plain, twin, batch, steps),
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
