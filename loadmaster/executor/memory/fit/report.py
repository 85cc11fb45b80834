"""Report of a fit: which step is taken, what plans and torch.compile's partition measured; and a step as a trace."""

from __future__ import annotations

from typing import Any

from loadmaster.errors import BudgetError, InputError, LoadmasterError
from loadmaster.executor.memory.fit.knob import KnobSide
from loadmaster.executor.memory.fit.planned import PlannedSide
from loadmaster.executor.memory.fit.trials import PlainTrial
from loadmaster.executor.steps.timeline import Timeline
from loadmaster.models.memory.checker import check_plan
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.verdict import planned_events
from loadmaster.models.trace_events import TraceEvent, level, process, run
from loadmaster.models.units import show_bytes, show_cost

MORE = "What may be faster is tried while it trains."
MEASURED = 2
"""The process number of the measured step in a trace; the planned one is 1."""
_NAME = "torch.compile's own partition"


def report(planned: PlannedSide | None, knob: KnobSide | None, why_no_plan: Exception | None = None) -> str:
    """Say which side has the fastest step that kept the budget, and what both measured. A side is None where it was not
    asked for; ``why_no_plan`` is what kept the step from having one."""
    plan_us, knob_us = (None if side is None else side.best_us for side in (planned, knob))
    plans, own = _plans(planned, why_no_plan), _own(knob)
    taken = own if knob_us is not None and (plan_us is None or knob_us < plan_us) else plans
    other = plans if taken is own else own
    side = knob if taken is own else planned
    compared = "" if side is None else side.compared.said
    words = (f"{taken}: it is taken.", other and f"{other}.", _in_turns(planned, knob), compared)
    return " ".join(filter(None, words))


def plain_report(planned: PlannedSide | None, knob: KnobSide, plain: PlainTrial) -> str:
    """Say why plain PyTorch's step is taken, and what it measured."""
    differ = [f"{said}." for said in (_plans(planned, None), _own(knob)) if said]
    measured = f"{show_cost(plain.measured.step_us, 'us')} at {show_bytes(plain.used_bytes)}"
    over = "" if plain.kept else f", more than the budget of {show_bytes(plain.budget_bytes)}"
    return " ".join([f"Plain PyTorch's step is taken, which measured {measured}{over}:", *differ])


def _in_turns(planned: PlannedSide | None, knob: KnobSide | None) -> str:
    if planned is None or knob is None or planned.final_us is None or knob.final_us is None:
        return ""
    plan, own = show_cost(planned.final_us, "us"), show_cost(knob.final_us, "us")
    return f"Timed once more, in turns: the plan {plan}, {_NAME} {own}."


def refusal(error: Exception | None, knob: KnobSide) -> Exception:
    """The error to raise; where no plan exists it also says what torch.compile's own partition took at least."""
    assert error is not None, "some side failed"
    own = _own(knob)
    if own and type(error) is BudgetError:
        return BudgetError(f"{error} {own}.", error.budget_bytes, error.needed_bytes, error.measured_bytes)
    if own and isinstance(error, InputError):
        # First: reasons are long, and cut at their end.
        why = f"{own}, and there is no plan: {error.problem}"
        return type(error)(error.field, error.value, why, error.remedy)
    return error


def _own(knob: KnobSide | None) -> str:
    """Words on what torch.compile's own partition measured, without a full stop; empty where it was not tried."""
    if knob is None or not (knob.probes or knob.failed):
        return ""
    if knob.chosen is not None:
        best = knob.tries[knob.chosen]
        measured = f"{show_cost(best.measured.step_us, 'us')} at {show_bytes(best.used_bytes)}"
        return f"{_NAME}, activation_memory_budget {best.knob:.3g}, measured {measured}"
    if knob.differs is not None:
        return f"Of {_NAME}, activation_memory_budget {knob.tries[-1].knob:.3g}, {knob.differs}"
    if knob.failed is not None:
        return f"{_NAME} could not be run: {knob.failed}"
    least = min(knob.probes, key=lambda p: (p.ran_out, p.used_bytes))
    us = min((p.step_us for p in knob.probes if p.keeps(knob.budget_bytes)), default=None)
    if us is not None:  # known from before, and slower than the plan
        return f"{_NAME} takes {show_cost(us, 'us')}, as measured before"
    took = "ran out of memory" if least.ran_out else f"took {show_bytes(least.used_bytes)} at least"
    return f"{_NAME} {took}"


def _plans(planned: PlannedSide | None, why: Exception | None) -> str:
    """Words on what the best plan measured or why there is none, without a full stop; empty if none was asked for."""
    if planned is not None and planned.chosen is not None:
        best = planned.state.trials[planned.chosen]
        return f"The plan measured {show_cost(best.measured.step_us, 'us')} at {show_bytes(best.used_bytes)}"
    if planned is not None and planned.differs is not None:
        return f"Under the plan {planned.differs}"
    if planned is not None and planned.waiting_us is not None and not planned.state.trials:
        return f"The plan would take {show_cost(planned.waiting_us, 'us')} and was not run"
    error = why or (None if planned is None else planned.error())
    if error is None:
        return ""
    said = str(error) if isinstance(error, LoadmasterError) else f"{type(error).__name__}: {error}"
    return f"There is no plan: {said.removesuffix('.')}"


def side_by_side(problem: MemoryProblem, plan: MemoryPlan, timeline: Timeline) -> dict[str, Any]:
    """A trace document with the planned step and the measured one, both from 0 on, for https://ui.perfetto.dev.
    InputError: the plan is another problem's, or holds no schedule."""
    title = problem.title or problem.name
    events: list[TraceEvent] = planned_events(title, check_plan(problem, plan), plan.budget_bytes)
    events += _measured(title, timeline)
    for at_us in (0.0, timeline.memory[-1][0]):
        events.append(level(MEASURED, "budget", at_us, budget_bytes=plan.budget_bytes))
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"problem_sha256": plan.problem_sha256, "budget_bytes": plan.budget_bytes},
    }


def measured_alone(title: str, timeline: Timeline) -> dict[str, Any]:
    """A trace document with the measured step of a model that runs no plan."""
    return {"displayTimeUnit": "ms", "traceEvents": _measured(title, timeline)}


def _measured(title: str, timeline: Timeline) -> list[TraceEvent]:
    tracks = sorted({s.track for s in timeline.spans})
    what = "stream" if timeline.device == "cuda" else "thread"
    events: list[TraceEvent] = process(MEASURED, f"{title} (measured)", {t: f"{what} {t}" for t in tracks})
    for s in timeline.spans:
        sort = "copy" if s.is_host_copy else "product" if s.is_product else "move"
        events.append(run(MEASURED, s.track, s.name, sort, s.start_us, s.duration_us))
    for at_us, size in timeline.memory:
        events.append(level(MEASURED, "memory", at_us, allocated_bytes=size))
    return events
