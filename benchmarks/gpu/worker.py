"""Process of one row: ``python -m benchmarks.gpu.worker ORDER``; what is found out is written as the order says."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.gpu import cases, promise, zoo
from benchmarks.gpu.budgets import OFFLOADING, Row
from benchmarks.gpu.process import Turn, first_runs_alone
from loadmaster.errors import BudgetError, LimitReachedError
from loadmaster.executor import measure
from loadmaster.executor.memory.capture import capture
from loadmaster.executor.steps.measure import queued_us
from loadmaster.models.memory.minimum import minimum_budget

WARM_UP = 2
STEPS = 15
TRIES = 3


class Runner:
    """Step of a row, and what has been found out about it."""

    def __init__(self, order: dict[str, Any], turn: Turn) -> None:
        self.row: Row = order["row"]
        self.device: str = order["device"]
        self.folder = Path(order["folder"])
        self.turn = turn
        self.case = zoo.case(self.row["case"])
        self.model, self.inputs, self.loss, self.precision = cases.build(self.case, self.device, small=order["small"])
        self.facts: dict[str, Any] = {}

    @property
    def backend(self) -> str:
        """Inductor on a GPU; trials on a CPU compile nothing."""
        return "inductor" if self.device == "cuda" else "eager"

    def shared(self, what: str) -> Path:
        """Path of a file that the rows of this case share."""
        return self.folder / f"{self.row['case'].replace(' ', '_')}.{what}.json"

    def capture(self) -> None:
        """Measure the costs that all rows of this case read, and the least budget."""
        start, waited = time.perf_counter(), self.turn.waited_s
        with self.precision(), promise.remembering(self.shared("costs"), self.turn):
            problem = capture(self.model, self.inputs, self.loss, backend=self.backend)
        self.facts |= {
            "capture_s": time.perf_counter() - start - (self.turn.waited_s - waited),
            "least_bytes": minimum_budget(problem).budget_bytes,
            "forward_operators": len(problem.forward),
            "backward_operators": len(problem.backward),
        }

    def call(self) -> Callable[..., torch.Tensor]:
        """Make the function that takes the inputs and returns the loss, by the row's method."""
        model, loss, method = self.model, self.loss, self.row["method"]

        def plain(*batch: Any) -> torch.Tensor:
            return model(*batch) if loss is None else loss(model(*batch[:-1]), batch[-1])

        if method == "loadmaster":
            with self.precision():
                return promise.under_budget(
                    model,
                    self.inputs,
                    loss,
                    budget_bytes=self.row["budget_bytes"],
                    name=self.row["case"],
                    costs=self.shared("costs"),
                    corrections=self.shared("corrections"),
                    turn=self.turn,
                    backend=self.backend,
                    offload=self.row.get("implementations") == OFFLOADING,
                    implementations=promise.offered(self.row.get("implementations", OFFLOADING)),
                    tries=TRIES,
                    facts=self.facts,
                )
        if "checkpoint" in method:
            cases.checkpoint_blocks(model, self.case.blocks)
        if method.startswith("compile"):
            import torch._functorch.config as functorch_config

            functorch_config.activation_memory_budget = self.row.get("knob", 1.0)
            compiler = "inductor" if self.device == "cuda" else "aot_eager_decomp_partition"
            return torch.compile(plain, dynamic=False, backend=compiler)
        return plain

    def run(self) -> None:
        """Prepare the step, and measure it alone."""
        call = self.call()
        if not self.row["method"].startswith("compile") or self.device != "cuda":
            self.turn.take()  # others take theirs when they have compiled

        def step() -> torch.Tensor:
            for p in self.model.parameters():
                p.grad = None
            with self.precision():
                value = call(*self.inputs)
            value.backward()
            return value.detach()

        start, waited = time.perf_counter(), self.turn.waited_s
        torch.manual_seed(1)
        value = step()
        self.facts["gradient_norm"] = self.gradient_norm()
        self.facts["loss"] = float(value)
        self.facts["first_step_s"] = time.perf_counter() - start - (self.turn.waited_s - waited)
        del value
        self.facts |= timing(self.measured(step))
        if not self.case.autocast:
            # The same parameters, and convolutions without tf32, whose rounding hides what else may be wrong.
            torch.backends.cudnn.allow_tf32 = False
            torch.manual_seed(1)
            step()
            self.facts["exact_gradient_norm"] = self.gradient_norm()
        self.turn.end()

    def gradient_norm(self) -> float:
        """Norm of all gradients together."""
        norms = [p.grad.double().square().sum() for p in self.model.parameters() if p.grad is not None]
        return float(torch.stack(norms).sum().sqrt())

    def measured(self, step: Callable[[], Any]) -> list[float]:
        """Measure the times of some steps in a row, in us; their highest bytes go to the facts."""
        self.turn.take()
        if self.device != "cuda":
            return self.measured_on_cpu(step)
        step()
        for p in self.model.parameters():
            p.grad = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.facts["resident_bytes"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        times = queued_us(step, WARM_UP + STEPS)[WARM_UP:]
        self.facts["peak_bytes"] = torch.cuda.max_memory_allocated()
        self.facts["reserved_bytes"] = torch.cuda.max_memory_reserved()
        return times

    def measured_on_cpu(self, step: Callable[[], Any]) -> list[float]:
        """Measure steps on a CPU, in a trial: times in us, and the peak to the facts."""
        resident = [*self.model.parameters(), *self.model.buffers(), *self.inputs]
        self.facts["peak_bytes"] = measure(step, resident=resident, warmup=1, repeats=0).peak_bytes
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e6)
        return times


def timing(times_us: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of times."""
    low, median, high = statistics.quantiles(times_us, n=4)
    return {"step_us": median, "quartiles_us": [low, high], "steps": len(times_us)}


def main() -> None:
    """Run one row; an error is the row's result, together with what was found out before."""
    order = json.loads(sys.argv[1])
    facts: dict[str, Any] = {}
    try:
        turn = Turn(order["lock"])
        if order["lock"] is not None:
            first_runs_alone(turn)
        runner = Runner(order, turn)
        facts = runner.facts
        if runner.row["method"] == "capture":
            runner.capture()
        else:
            runner.run()
    except (BudgetError, LimitReachedError) as error:
        facts["refused"] = f"{type(error).__name__}: {error}"[:500]
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:500]
        raise
    finally:
        record.write_whole(Path(order["result"]), json.dumps(facts))


if __name__ == "__main__":
    main()
