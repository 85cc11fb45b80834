"""Checker of graph plans against their problem, from program and statistics alone.

A plan holds when

(G1)  its program is what a step computes in one of the orders of the problem's program (:mod:`.orders`), with the
      choices that it names;
(G2)  its schedule holds by the rules of schedules (:mod:`.schedule_rules`), and the forward pass stores every value of
      the forward pass that is kept;
(G3)  the bytes in memory while any kernel runs (:mod:`.residence`), with the hot rows, are within the budget; there
      are no more hot rows than rows;
(G4)  its kernels are cut into tiles that the problem's device has.

The objective is the time of all kernels (:mod:`.costs`), and of reading the other feature rows over the host link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.graph.costs import Costs
from loadmaster.models.graph.hot_rows import gather_us
from loadmaster.models.graph.inline import Inline, Need
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.plan import GraphPlan, KernelCost
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import over_time
from loadmaster.models.graph.schedule import Kernel, Schedule
from loadmaster.models.graph.schedule_rules import broken_rules, tiles_left_out
from loadmaster.models.units import show_bytes


@dataclass(frozen=True)
class GraphCheck:
    """Verdict on a graph plan, with the figures of the replay: the highest bytes in memory and the kernel that runs
    then, and the two parts of the step, kernels and gathers. ``violations`` are in words, empty when the plan holds."""

    violations: tuple[str, ...]
    objective: float
    peak_bytes: int
    peak_at: str
    kernels_us: float
    gather_us: float
    dram_bytes: float
    flops: float
    kernels: tuple[KernelCost, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """True if there are no violations."""
        return not self.violations

    def summary(self) -> dict[str, object]:
        """Fields that a plan document records of the check."""
        names = ("ok", "peak_bytes", "peak_at", "kernels_us", "gather_us", "dram_bytes", "flops")
        return {name: getattr(self, name) for name in names}


def check_plan(problem: GraphProblem, plan: GraphPlan) -> GraphCheck:
    """Check a graph plan against its problem; raise InputError for a plan of another problem, or an infeasible one."""
    expect_problem(plan.problem_sha256, problem.sha256)
    if plan.program is None or plan.schedule is None:
        raise InputError("status", plan.status, "there is no schedule", "Check a plan that was found.")
    return check(problem, plan.choices, plan.program, plan.schedule, plan.hot_rows, plan.budget_bytes)


def check(
    problem: GraphProblem,
    choices: Mapping[str, str],
    program: Program,
    schedule: Schedule,
    hot_rows: int,
    budget_bytes: int,
) -> GraphCheck:
    """Check an order, a schedule and a number of hot rows by the rules above."""
    wrong = _order(problem, choices, program) or broken_rules(program, schedule)
    if wrong:
        return GraphCheck(tuple(wrong), 0.0, 0, "", 0.0, 0.0, 0.0, 0.0)
    for n in sorted(n for k in schedule.kernels[schedule.forward_count :] for n in k.stores):
        if n < program.forward_count:
            wrong.append(f"(G2) the backward pass stores {program.values[n].name}, a value of the forward pass")
    device = problem.hardware
    wrong += tiles_left_out("(G4)", schedule, device.tiles.of, f"{device.name} has")
    costs = kernel_costs(problem, program, schedule)
    memory = over_time(problem, program, schedule)
    hot_bytes = 0 if problem.store is None else hot_rows * problem.store.row_bytes
    at = int(memory.argmax())
    peak = int(memory[at]) + hot_bytes
    rows = 0 if problem.store is None else problem.store.rows
    if hot_rows > rows:
        wrong.append(f"(G3) there are {rows} feature rows, not {hot_rows}, to lie on the GPU")
    if peak > budget_bytes:
        wrong.append(
            f"(G3) {show_bytes(peak)} ({peak} bytes) lie in memory at {kernel_words(program, schedule, at)}; the "
            f"budget is {show_bytes(budget_bytes)} ({budget_bytes} bytes)"
        )
    kernels_us = sum(cost.time_us for cost in costs)
    link_us = gather_us(problem, hot_rows)
    return GraphCheck(
        tuple(wrong),
        kernels_us + link_us,
        peak,
        kernel_words(program, schedule, at),
        kernels_us,
        link_us,
        sum(cost.dram_bytes for cost in costs),
        sum(cost.flops for cost in costs),
        costs,
    )


def _order(problem: GraphProblem, choices: Mapping[str, str], program: Program) -> list[str]:
    for order in orders(problem.program):
        if dict(order.choices) == dict(choices):
            same = _unnamed(problem.step(order.program)) == _unnamed(program)
            return [] if same else ["(G1) the program is not what its choices make of the problem's"]
    return ["(G1) its choices are those of no order of the problem's program"]


def _unnamed(program: Program) -> Program:
    """Program without the names of its computed values; names of features and parameters stay."""
    values = tuple(v if v.op in ("feature", "parameter") else replace(v, name="") for v in program.values)
    return replace(program, values=values)


def kernel_costs(problem: GraphProblem, program: Program, schedule: Schedule) -> tuple[KernelCost, ...]:
    """Cost of each kernel of a schedule."""
    costs = Costs(program, problem.statistics, problem.element_bytes, problem.hardware)
    needs = Inline(program, frozenset(schedule.kept))
    found = []
    for kernel in schedule.kernels:
        work = costs.work(kernel, kernel_need(needs, kernel))
        time_us = work.time_us(problem.hardware, problem.element_bytes)
        found.append(KernelCost(time_us, work.dram_bytes, work.stored_bytes, work.matrix_flops))
    return tuple(found)


def fastest_tiles(problem: GraphProblem, program: Program, schedule: Schedule) -> Schedule:
    """Cut each kernel of a schedule into the tiles of the device that take least time."""
    costs = Costs(program, problem.statistics, problem.element_bytes, problem.hardware)
    needs = Inline(program, frozenset(schedule.kept))
    kernels = tuple(costs.fastest(kernel, kernel_need(needs, kernel))[0] for kernel in schedule.kernels)
    return replace(schedule, kernels=kernels)


def kernel_need(needs: Inline, kernel: Kernel) -> Need:
    """Collect what a kernel needs for all values that it stores."""
    found = Need()
    for n in kernel.stores:
        found |= needs.to_make(n)
    return found


def kernel_words(program: Program, schedule: Schedule, at: int) -> str:
    """Describe a kernel for a person: ``traverse of target: aggregate12, aggregate16``."""
    kernel = schedule.kernels[at]
    return f"{kernel.template} of {kernel.rows}: {', '.join(program.values[n].name for n in kernel.stores)}"
