"""Measurement of one model of the zoo: captured, planned under four budgets, applied and compared with plain PyTorch.

The row is written after each thing that is known, so that a crash or the clock leaves what came before it.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import loadmaster
from benchmarks import record
from benchmarks.zoo.entries import Entry, entry
from loadmaster.errors import LoadmasterError
from loadmaster.executor import apply, capture, measure
from loadmaster.models.memory import plain
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.plan import MemoryPlan

SHARES = (0.7, 0.5, 0.35)
# A budget so little above the least that no plan is easily found.
NEAR_LEAST = 1.1
PLAN_LIMIT_S = 30.0
SEED = 0
# Of a parameter's gradient, the least that its difference is compared with, as a share of the whole gradient: what is
# zero but for rounding (a bias under a batch norm) has no digits to agree in.
LEAST_SHARE = 1e-3

Row = dict[str, Any]


def gradients(step: Callable[[], Tensor], model: nn.Module) -> tuple[float, dict[str, Tensor]]:
    """Compute loss and gradients of one step from a fixed random state; the model's gradients are taken away again."""
    torch.manual_seed(SEED)
    loss = step()
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), found


def difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Largest relative error of a gradient over all parameters, by norms; 0 if bit-equal."""
    if ours.keys() != theirs.keys():
        return float("inf")
    whole = float(torch.stack([g.double().norm() for g in theirs.values()]).norm())
    return max(
        float((ours[name] - g).double().norm()) / max(float(g.double().norm()), LEAST_SHARE * whole)
        for name, g in theirs.items()
    )


def plain_step(model: nn.Module, batch: Any, loss: Callable[..., Tensor] | None) -> Callable[[], Tensor]:
    """Make one step as the library's documentation writes it."""

    def run() -> Tensor:
        if isinstance(batch, Mapping):
            return model(**batch).loss  # type: ignore[no-any-return]
        assert loss is not None, "a positional batch has a loss beside it"
        return loss(model(*batch[:-1]), batch[-1])

    return run


def beside_plain(planned: Callable[..., Tensor], model: nn.Module, batch: Any, theirs: Mapping[str, Tensor]) -> Row:
    """Compare a planned step's gradients with plain PyTorch's, and measure its peak."""

    def step() -> Tensor:
        return planned(**batch) if isinstance(batch, Mapping) else planned(*batch)

    def whole() -> None:
        step().backward()
        model.zero_grad(set_to_none=True)

    _, ours = gradients(step, model)
    given = pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else tuple(batch))
    resident = [*model.parameters(), *model.buffers(), *(t for t in given if isinstance(t, Tensor))]
    peak_bytes = measure(whole, resident=resident, warmup=1, repeats=0).peak_bytes
    return {"gradient_difference": difference(ours, theirs), "peak_bytes": peak_bytes}


def without_folders(text: str) -> str:
    """Take this machine's folders of libraries out of a message."""
    return re.sub(r'"[^"]*/site-packages/', '"', text)


def tracing_cpu_s(step: Callable[[], Tensor]) -> float:
    """CPU seconds that PyTorch takes to trace a step, forward and backward: a first compiled step less a later one.

    The quicker of two later steps counts, since a library's own first call may make PyTorch trace the second again.
    """
    torch.compiler.reset()
    compiled = torch.compile(step, backend="aot_eager")
    seconds = []
    for _ in range(3):
        start = time.process_time()
        compiled().backward()
        seconds.append(time.process_time() - start)
    torch.compiler.reset()
    return seconds[0] - min(seconds[1:])


class Measured:
    """Row of one entry, filled step by step."""

    def __init__(self, one: Entry, backend: str, save: Callable[[Row], None]) -> None:
        self.entry, self.backend, self.save = one, backend, save
        self.row: Row = {"model": one.name, "library": one.library, "sort": one.sort, "backend": backend, "budgets": []}
        self.row |= {"machine": record.machine(), "versions": record.versions(one.library)}

    def run(self, problem_path: Path) -> None:
        """Measure everything; a refusal or an error ends it, with its words in the row."""
        try:
            self._all(problem_path)
        except LoadmasterError as refusal:
            self.add(refused=without_folders(str(refusal)))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with a model is what the row is for
            self.add(ended=f"{type(error).__name__}: {error}", traceback=without_folders(traceback.format_exc()))

    def add(self, **found: Any) -> None:
        """Add facts to the row, and write it down."""
        self.row.update(found)
        self.save(self.row)

    def _all(self, problem_path: Path) -> None:
        model, batch, loss = self.entry.build()
        twin = copy.deepcopy(model)
        start = time.process_time()
        problem = capture(model, batch, loss, backend=self.backend, name=self.entry.name)
        capture_cpu_s = time.process_time() - start
        peak_bytes, least_bytes = plain.peak_bytes(problem), minimum_budget(problem).budget_bytes
        self.add(
            capture_cpu_s=round(capture_cpu_s, 2),
            operators=len(problem.forward) + len(problem.backward),
            peak_bytes=peak_bytes,
            least_bytes=least_bytes,
        )
        problem_path.write_text(json.dumps(loadmaster.write_problem(problem)))
        self.add(tracing_cpu_s=round(tracing_cpu_s(plain_step(twin, batch, loss)), 2))
        twin.zero_grad(set_to_none=True)
        _, theirs = gradients(plain_step(twin, batch, loss), twin)
        budgets = {f"{share:.0%}": int(share * peak_bytes) for share in SHARES}
        budgets[f"{NEAR_LEAST} x least"] = int(NEAR_LEAST * least_bytes)
        for name, budget_bytes in budgets.items():
            self.row["budgets"].append(found := {"budget": name, "budget_bytes": budget_bytes})
            self._planned(found, problem)
            if found.get("status") in ("optimal", "feasible"):
                self._applied(found, model, batch, loss, theirs)
            found.pop("plan", None)
            self.save(self.row)

    def _planned(self, found: Row, problem: Any) -> None:
        start = time.perf_counter(), time.process_time()
        try:
            plan = loadmaster.plan(problem, budget_bytes=found["budget_bytes"], time_limit_s=PLAN_LIMIT_S)
        except LoadmasterError as refusal:
            found.update(status="none", refused=str(refusal), plan_s=round(time.perf_counter() - start[0], 1))
            return
        assert isinstance(plan, MemoryPlan)
        found.update(
            status=plan.status,
            plan=plan,
            plan_s=round(time.perf_counter() - start[0], 1),
            gap=plan.gap,
            objective_us=plan.objective,
            unconstrained_us=plan.unconstrained,
            planned_peak_bytes=plan.check.get("peak_bytes"),
            stopped_by=plan.stopped_by,
        )
        if plan.infeasibility is not None:
            found.update(least_bytes=plan.infeasibility.minimum_budget_bytes, where=plan.infeasibility.where)

    def _applied(self, found: Row, model: nn.Module, batch: Any, loss: Any, theirs: Mapping[str, Tensor]) -> None:
        found.update(beside_plain(apply(found["plan"], model, loss, backend=self.backend), model, batch, theirs))
        torch.compiler.reset()


def measure_one(name: str, backend: str, path: Path) -> None:
    """Measure one model, its row to ``path``, its problem next to it."""
    torch.set_num_threads(1)
    # Work that a process does once belongs to no model: imports, and the first graph of all.
    capture(nn.Linear(2, 2), (torch.ones(2, 2), torch.zeros(2, dtype=torch.long)), nn.functional.cross_entropy)
    one = entry(name)

    def save(row: Row) -> None:
        record.write_whole(path, json.dumps(row, default=lambda _: None))

    Measured(one, backend, save).run(path.with_suffix(".problem"))


def run_alone(run: Callable[..., None], arguments: Sequence[Any], limit_s: float, preload: Sequence[str]) -> str | None:
    """Call a function in a process of its own.

    Args:
        preload: modules that all such processes have in common, imported once.

    Returns:
        what ended it early, if anything did.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    process = context.Process(target=run, args=tuple(arguments))
    process.start()
    process.join(limit_s)
    if process.is_alive():
        process.kill()
        process.join()
        return f"took more than {limit_s:.0f} s"
    return None if process.exitcode == 0 else f"ended with exit status {process.exitcode}"
