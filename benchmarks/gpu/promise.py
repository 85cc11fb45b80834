"""Step under a byte budget, as a row measures it: captured, fitted by trials, planned where it runs."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from benchmarks.gpu.process import Turn
from benchmarks.record import write_whole
from loadmaster.executor.costs import CostModel
from loadmaster.executor.costs.profiled import operator_key
from loadmaster.executor.memory import capture as capturing
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.memory.fit.trials import Correction
from loadmaster.executor.memory.implementations import registry
from loadmaster.executor.memory.implementations.registry import ImplementationFilter
from loadmaster.executor.steps.host_link import host_link
from loadmaster.executor.steps.resident import device_of
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner import PlanOptions, plan

PLAN_LIMIT_S = 30.0
# Plans are made again for their times only where these are this far off: a second try compiles again.
TIME_TOLERANCE = 0.15


class Remembered:
    """Costs of one case, measured by its first row while nothing else ran, and read by the others.

    Args:
        base: measures what is not known yet.
        path: where they are kept.
        turn: taken at the first measurement, ended by :meth:`close`.
    """

    def __init__(self, base: CostModel, path: Path, turn: Turn) -> None:
        self.base = base
        self.path = path
        self.turn = turn
        self.is_measuring = False
        self.closed = False
        known = json.loads(path.read_text()) if path.exists() else {"nodes": {}, "moves": None}
        self.nodes: dict[str, list[float]] = known["nodes"]
        self.moves: list[float] | None = known["moves"]

    def node_us(self, node: fx.Node) -> float:
        """Time of one operator in us."""
        return self._of(node)[0]

    def workspace_bytes(self, node: fx.Node) -> int:
        """Bytes of workspace that an operator takes."""
        return int(self._of(node)[1])

    def move_us(self, size_bytes: int, kernels: int = 1) -> float:
        """Time of fused kernels in us: linear in bytes and kernels."""
        if self.moves is None:
            self._hold()
            probe = 1 << 30
            self.moves = [self.base.move_us(probe, 0) / probe, self.base.move_us(0, 1)]
        return size_bytes * self.moves[0] + kernels * self.moves[1]

    def close(self) -> None:
        """Let other rows run again, and keep what was measured; the little that is measured later is not kept."""
        self.closed = True
        if self.is_measuring:
            self.is_measuring = False
            self.turn.end()
            write_whole(self.path, json.dumps({"nodes": self.nodes, "moves": self.moves}))

    def _of(self, node: fx.Node) -> list[float]:
        key = str(operator_key(node))
        if key not in self.nodes:
            self._hold()
            self.nodes[key] = [self.base.node_us(node), self.base.workspace_bytes(node)]
        return self.nodes[key]

    def _hold(self) -> None:
        if not self.closed:
            self.turn.take()
            self.is_measuring = True


@contextlib.contextmanager
def remembering(path: Path, turn: Turn) -> Iterator[None]:
    """Make captures within the block read and write their costs at ``path``."""
    original = capturing.profiled
    made: list[Remembered] = []

    def profiled(*args: Any, **options: Any) -> CostModel:
        made.append(Remembered(original(*args, **options), path, turn))
        return made[-1]

    capturing.profiled = profiled
    try:
        yield
    finally:
        capturing.profiled = original
        for costs in made:
            costs.close()


SORTS = {
    "none": (),
    "input": ("input",),
    "output": ("output",),
    "intermediate": ("mask", "offsets"),
}
"""What each part of the ablation may use, by words in the names of implementations: those that go backward from their
input (fused operators that compute results again inside themselves among them), from their output, and from something
smaller that was kept. The published one (Figure 4.5) has convolution algorithms too; PyTorch offers no choice of them.
"""


def offered(implementations: str) -> ImplementationFilter:
    """Filter the implementations that a part of the ablation may use; all of them for other names."""
    if implementations not in SORTS:
        return ImplementationFilter()
    words = SORTS[implementations]
    left_out = (a.name for a in registry.alternatives() if not any(word in a.name for word in words))
    return ImplementationFilter(tuple(left_out), inline="input" in words)


def under_budget(
    model: nn.Module,
    inputs: tuple[Any, ...],
    loss: Any,
    *,
    budget_bytes: int,
    name: str,
    costs: Path,
    corrections: Path,
    turn: Turn,
    backend: str,
    offload: bool,
    implementations: ImplementationFilter,
    tries: int,
    facts: dict[str, Any],
) -> Callable[..., torch.Tensor]:
    """Make the step that keeps the budget.

    Args:
        costs, corrections: files that the rows of one case share: measured costs, and what trials taught.
        turn: taken to measure.
        offload: whether host memory may hold results.
        implementations: what plans may choose from.
        tries: plans that are run at most.
        facts: what is found out goes here, also when no step is.

    Raises:
        BudgetError: no plan keeps the budget.
        LimitReachedError: no plan was found in time.
    """
    link: HostLink | bool = False
    if offload:
        device = device_of(model, inputs)
        turn.take()
        link = host_link(device, None if device.type == "cuda" else "h200", compiled=backend == "inductor")
        turn.end()
        facts |= {"to_host_gbps": link.to_host_gbps, "from_host_gbps": link.from_host_gbps}
        facts |= {"cut_us": link.cut_us, "cut_gbps": link.cut_gbps}
    start = time.perf_counter()
    with remembering(costs, turn):
        fitter = Fitter(
            model,
            inputs,
            loss,
            CaptureOptions(backend=backend, name=name, host_link=link, implementations=implementations),
            time_tolerance=TIME_TOLERANCE,
        )
        fitter.capture()
    facts |= {"budget_bytes": budget_bytes, "capture_s": time.perf_counter() - start, "plan_s": 0.0}
    if corrections.exists():
        fitter.capture().learned = Correction(**json.loads(corrections.read_text()))

    def planner(problem: MemoryProblem) -> MemoryPlan:
        began = time.perf_counter()
        found = plan(problem, PlanOptions(time_limit_s=PLAN_LIMIT_S))
        facts["plan_s"] = max(facts["plan_s"], time.perf_counter() - began)
        facts["status"], facts["gap"] = found.status, found.gap
        return found

    try:
        fitted = fitter.fit(planner, budget_bytes, tries, knob_tries=0)
    finally:
        write_whole(corrections, json.dumps(asdict(fitter.capture().learned)))
    assert fitted.chosen is not None and fitted.plan is not None, "there are plans alone"
    first, chosen = fitted.tries[0], fitted.tries[fitted.chosen]
    facts |= {
        "gap": fitted.plan.gap,
        "planned_peak_bytes": chosen.planned_peak_bytes,
        "planned_step_us": chosen.planned_us,
        "trial_step_us": chosen.measured.step_us,
        "tries": len(fitted.tries),
        "first_time_error": first.time_error,
        "first_peak_error": first.excess_bytes / first.planned_peak_bytes,
        "corrections": [fitter.capture().learned.products, fitter.capture().learned.moves],
    }
    return fitted.step
