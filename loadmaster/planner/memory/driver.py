"""Driver of memory problems: bound, plans, better bound, better plans, until the gap is proved or time is up.

``auto`` first plays the step through, evicting what does not fit (a plan in a second, if one exists), and asks the
boundary relaxation for a bound (a second more). Where that leaves much to gain, as in loops of hundreds of positions,
whole segments run again as people write it by hand, and what they leave of the budget is filled. Then comes a portfolio
of banded restrictions for plans, each started from the best so far, in turn with relaxations of more boundaries. On
middling graphs these stand where they tell most (:mod:`~loadmaster.planner.memory.refinement`); small ones have the
exact formulation. Under a tight budget a restriction may have no plan, or show none for long: bytes are minimized then,
until the budget holds them. Where a large restriction is not solved to its end, large neighbourhood search goes on from
it. The other methods are baselines; their bound is that of the relaxation too, so gaps compare.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable

from loadmaster.errors import CheckFailedError, InputError, LimitReachedError
from loadmaster.models.memory import checkmate, chen, gist, plain, relaxation, unconstrained
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.groups import groups_by_mass
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.plan import MemoryInfeasibility, MemoryPlan, Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.units import show_bytes
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory.checkpoint_search import checkpointed, keep_more
from loadmaster.planner.memory.eviction_search import all_again, evict, least_planned, planned_budget
from loadmaster.planner.memory.exact import solve_exactly
from loadmaster.planner.memory.feasibility import find_feasible
from loadmaster.planner.memory.large_neighbourhood import improve
from loadmaster.planner.memory.refinement import Refinement
from loadmaster.planner.memory.search import Search
from loadmaster.planner.memory.slots import Slots
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.solvers.solution import Progress, SolverStatus

# Restrictions in the order tried. Few slots first: they answer in seconds on graphs of hundreds of operators. The later
# ones have finer slots, wider bands, or reach further back for long skips; each starts from the best plan so far.
PORTFOLIO = (Slots(30, 4, 6), Slots(45, 5, 6), Slots(40, 6, 12), Slots(60, 4, 4), Slots(30, 8, 12), Slots(90, 8, 0))
# On graphs of more stage-by-operator cells than this a narrow band comes before all others: a wide one's first plan is
# poor there, and its next may be ten seconds away. But it comes soon, also where a narrow band has none: it is looked
# for during this share of the time limit, and kept as a fallback.
LARGE_CELLS = 12_000
NARROW = Slots(30, 2, 0)
FALLBACK_SHARE = 0.12
# With a host link, offload joins after the first and multiplies the choices: narrow bands answer in time then.
OFFLOADING = (NARROW, Slots(45, 2, 0))
# On graphs of up to this many stage-by-operator cells, a slot for every stage that reads something new, and no band, is
# worth trying early: tight budgets there want results computed again and again.
SMALL_CELLS = 4_000
EVERY_STAGE = Slots(500, None, 0)
# Boundaries of the relaxations after the first, tried in turn while the gap is open.
MORE_BOUNDARIES = (4, 2, 6, 9)
# Up to this many stage-by-operator cells boundaries are refined, and the exact formulation is tried after that; on the
# larger of them late; up to the smallest number it solves to the end, and is all that is needed.
LATE_CELLS = 30_000
PROVABLE_CELLS = 12_000
EXACT_CELLS = 1_500
# A schedule lists what every stage keeps. With more stage-by-operator cells than this (two thousand operators and
# their backward ones) it takes seconds to write down even the trivial one, and nothing better is in reach.
MOST_CELLS = 5_000_000
# The exact formulations, asked for by name, have several variables a cell: more than this is beyond any solver.
MOST_EXACT_CELLS = 250_000
# Plans by eviction take a second in all; of a large graph or a short limit this share, and the first of them that one.
EVICT_SHARE = 0.1
FIRST_SHARE = 0.3
# Whole segments run again (:mod:`~loadmaster.models.memory.checkpoints`) where eviction has no plan in its time, as of
# hundreds of layers, or leaves such a gap.
CHECKPOINT_GAP = 0.1
CHECKPOINT_SHARE = 0.2
# What these leave of the budget is filled for this long (:mod:`~loadmaster.planner.memory.checkpoint_search`).
KEEP_SHARE = 0.1
# Where no plan exists, a budget that has one is looked for this long at most.
MOST_SEEKING_S = 2.0
# The shares of the time limit after which a relaxation, a sequence of refined ones, or a restriction has had its
# chance. The refined ones have a second chance, twice as long.
RELAX_SHARE = 0.25
REFINE_SHARE = 0.25
RESTRICT_SHARE = 0.4


def plan_memory(
    problem: MemoryProblem,
    options: PlanOptions,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> MemoryPlan:
    """Plan one memory problem under the options' budget.

    Raises:
        InputError: more operators than can be planned.
        LimitReachedError: the limit came before any plan, or a baseline does not fit the budget.
        CancelledError, SolverError: cancelled, or a solve broke, before any plan.
    """
    _expect_size(problem, options.method)
    effort = Effort(options, on_progress, cancelled)
    search = Search(problem, effort.budget_bytes, effort)
    if minimum_budget(problem).budget_bytes > search.budget_bytes:
        search.infeasible = True
        return _infeasible(search)
    with search.effort.keep_plan_on_crash(search.has_plan):
        if options.method == "auto":
            _auto(search)
        elif options.method == "monet":
            solve_exactly(search)
        else:
            _baseline(search)
    if search.infeasible:
        return _infeasible(search)
    return _answer(search)


def _expect_size(problem: MemoryProblem, method: str) -> None:
    most = MOST_EXACT_CELLS if method in ("monet", "checkmate") else MOST_CELLS
    if _cells(problem) > most:
        raise InputError(
            "forward",
            f"{len(problem.forward)} operators",
            f"with {len(problem.backward)} backward operators are more than can be planned",
            f"At most {most} pairs of a stage and a forward operator can: about {math.isqrt(most)} operators each way. "
            "Merge operators that are computed together"
            + (", or use --method auto." if most < MOST_CELLS and _cells(problem) <= MOST_CELLS else "."),
        )


def _auto(search: Search) -> None:
    problem, limit_s = search.problem, search.effort.options.time_limit_s
    search.say("start", f"{len(problem.forward)} forward and {len(problem.backward)} backward operators")
    _take_trivial_plan(search)
    evict(search, EVICT_SHARE * limit_s, FIRST_SHARE * limit_s)
    last_resort = None
    if search.best is None and not search.done():
        search.fallback = Search(problem, search.budget_bytes, search.effort, closing_s=search.closing_s)
        _by_segments(search.fallback)
        if search.fallback.best is None:
            least_planned(search, search.budget_bytes, EVICT_SHARE * limit_s)
            last_resort = all_again(search, EVICT_SHARE * limit_s)
    _by_programs(search)
    search.take_fallback()
    # Not before: what starts from so long a step ends near it.
    if search.best is None and last_resort is not None and not search.infeasible:
        search.adopt(last_resort, "eviction")


def _take_trivial_plan(search: Search) -> None:
    """Try the plain step and that with memory to spare: if they fit, a plan is there before anything else is tried."""
    spare = functools.partial(unconstrained.formulate, budget_bytes=search.budget_bytes)
    for method, make in (("plain", plain.formulate), ("unconstrained", spare)):
        began = time.monotonic()
        search.adopt(search.built(functools.partial(make, search.problem)), method)
        search.closing_s = max(search.closing_s, time.monotonic() - began)


def _by_segments(search: Search) -> None:
    """Run whole segments again. Where that is the best plan, what it leaves of the budget is filled."""
    limit_s = search.effort.options.time_limit_s
    checkpointed(search, CHECKPOINT_SHARE * limit_s)
    if search.method == "checkpoints":
        keep_more(search, KEEP_SHARE * limit_s)


def _by_programs(search: Search) -> None:
    """Look for bounds and plans in turn, until the gap is proved or time is up."""
    problem, limit_s = search.problem, search.effort.options.time_limit_s
    relaxed = search.relax([1], RELAX_SHARE * limit_s)
    if search.gap is not None and search.gap > CHECKPOINT_GAP:
        _by_segments(search)
    is_large = _cells(problem) > LARGE_CELLS
    first, *others = (NARROW, *PORTFOLIO) if is_large else PORTFOLIO
    early = (EVERY_STAGE,) if _cells(problem) <= SMALL_CELLS else ()
    portfolio = (first, *early, *(OFFLOADING if problem.may_offload else ()), *others)
    if search.fallback is not None:
        search.fallback.raise_bound(search.bound)
        if is_large and not search.done():
            search.fallback.restrict(PORTFOLIO[0], FALLBACK_SHARE * limit_s, offload=False)
        if search.fallback.done():
            search.take_fallback()
    proofs = iter(_proofs(search, Refinement(search, [1], relaxed)))
    bound_first = _is_refined(problem)
    fruitless, enough = 0, len(portfolio) if _cells(problem) <= EXACT_CELLS else math.inf
    for rounds in itertools.count():
        # On the smallest graphs every move is solved to the end: once all have failed, another seed changes nothing.
        if search.done() or (search.best is not None and fruitless > enough):
            return
        before = search.objective, search.bound
        slots = portfolio[rounds % len(portfolio)]
        share_s, seed = RESTRICT_SHARE * limit_s, rounds // len(portfolio)
        status = search.restrict(slots, share_s, seed=seed, offload=rounds > 0)
        if problem.may_offload and rounds > 0 and search.is_small and not search.done():
            # Where bytes travel one by one a plan that sends nothing may look dear, and no point be a plan.
            search.restrict(slots, share_s, seed=seed, offload=False)
        search.take_fallback()
        if (search.may_minimize_bytes or (search.best is None and rounds == 0)) and not search.done():
            find_feasible(search, portfolio, share_s)
        proof = next(proofs, None)
        if bound_first and proof is not None and not search.done():
            proof()
        if status is not SolverStatus.OPTIMAL and not search.is_small:
            while search.best is not None and not search.done():
                if not improve(search, slots, share_s, seed=seed, offload=rounds > 0):
                    break
        if not bound_first and proof is not None and not search.done():
            proof()
        fruitless = fruitless + 1 if proof is None and (search.objective, search.bound) == before else 0


def _cells(problem: MemoryProblem) -> int:
    """Size of the exact formulation: stages times forward operators."""
    return problem.stage_count * len(problem.forward)


def _is_refined(problem: MemoryProblem) -> bool:
    """Return whether to refine boundaries where they tell most: if such a relaxation is solved within its time."""
    return EXACT_CELLS < _cells(problem) <= PROVABLE_CELLS and not problem.may_offload


def _proofs(search: Search, refinement: Refinement) -> list[Callable[[], object]]:
    """List ways to a better bound, most promising first."""
    problem, whole_s = search.problem, search.effort.options.time_limit_s
    limit_s, cells = RELAX_SHARE * whole_s, _cells(problem)
    more = [functools.partial(search.relax, groups_by_mass(problem, n), limit_s) for n in MORE_BOUNDARIES]
    if problem.may_offload:
        # The exact formulation knows no offload; a boundary at every stage that reads something new comes nearest.
        every_stage = functools.partial(search.relax, groups_by_mass(problem, EVERY_STAGE.count), limit_s)
        return (
            [every_stage, functools.partial(solve_exactly, search, limit_s), *more] if cells <= EXACT_CELLS else [*more]
        )
    if cells <= EXACT_CELLS:
        return [functools.partial(solve_exactly, search, math.inf), *more]
    if cells > LATE_CELLS:
        return [*more]
    refine = [functools.partial(refinement.go_on, n * REFINE_SHARE * whole_s) for n in (1, 2)]
    late = [] if _is_refined(problem) else more
    return [*late, *refine, functools.partial(solve_exactly, search, 1.5 * limit_s)]


def _baseline(search: Search) -> None:
    """Take one baseline's schedule as it is: no better one is looked for."""
    problem, method = search.problem, search.effort.options.method
    search.relax([1], RELAX_SHARE * search.effort.options.time_limit_s)
    if search.infeasible:
        return
    schedule: Schedule
    if method == "checkmate":
        found = _checkmate(search, relaxes=True)
        if found is not None and not check(problem, found, search.budget_bytes).ok:
            found = _checkmate(search, relaxes=False)
        if found is None:
            return
        schedule = found
    else:
        formulate = {"chen": chen.formulate, "gist": gist.formulate, "plain": plain.formulate}[method]
        schedule = search.built(lambda: formulate(problem))
        peak_bytes = check(problem, schedule, search.budget_bytes).peak_bytes
        if peak_bytes > search.budget_bytes:
            raise LimitReachedError(
                f"{method} needs {peak_bytes} bytes, {peak_bytes - search.budget_bytes} more than the budget of "
                f"{search.budget_bytes}. Give a larger budget, or use --method auto."
            )
    if not search.adopt(schedule, method).ok:
        raise CheckFailedError(f"the {method} schedule of {problem.name} fails its check: please report it")


def _checkmate(search: Search, *, relaxes: bool) -> Schedule | None:
    """Find Checkmate's schedule; None if time was too short. With ``relaxes`` it may take some bytes too many; without,
    there may be one where none is found. Raises LimitReachedError if it has none."""
    make = functools.partial(checkmate.formulate, search.problem, search.budget_bytes, relaxes=relaxes)
    program = search.built(make)

    def live(progress: Progress) -> None:
        search.say("checkmate", f"{progress.nodes} nodes", progress.objective)

    solution = search.solved(program.program, math.inf, search.effort.options.gap, live, lambda: False)
    if solution.status is SolverStatus.INFEASIBLE:
        raise LimitReachedError(
            f"checkmate has {'no' if relaxes else 'found no'} schedule within {search.budget_bytes} bytes. "
            "Give a larger budget, or use --method auto, which has more to choose from."
        )
    return None if solution.values is None else program.schedule(solution.values)


def _answer(search: Search) -> MemoryPlan:
    """Build the plan in hand."""
    if search.best is None or search.verdict is None:
        search.effort.expect_uncancelled()
        raise LimitReachedError(_no_plan(search))
    least_s = 1.0 + search.effort.left_s - search.left_s
    return search.plan(search.effort.stopped_by(proved=search.gap_is_proved(), least_s=least_s))


def _no_plan(search: Search) -> str:
    """Explain why no plan was found, and which of budget and time would bring one."""
    budget_bytes, limit_s = search.budget_bytes, search.effort.options.time_limit_s
    least = minimum_budget(search.problem).budget_bytes
    text = f"no plan under {show_bytes(budget_bytes)} ({budget_bytes} bytes) within {limit_s:g} s. "
    if search.nearest is None:
        return f"{text}No plan takes less than {show_bytes(least)} (proved). Give more time (--time-limit)."
    found = search.nearest[1].peak_bytes
    return (
        f"{text}The least peak found takes {show_bytes(found)}, the proved minimum is {show_bytes(least)}: "
        f"give at least {found} bytes, or more time (--time-limit)."
    )


def _infeasible(search: Search) -> MemoryPlan:
    """Build the answer that no plan exists: how much more the budget needs, and what stands in the way."""
    problem = search.problem
    floor = minimum_budget(problem)
    needed, where = floor.budget_bytes, floor.where
    if needed <= search.budget_bytes:
        # No single operator is in the way: the least budget of the relaxation is.
        relaxed = search.built(lambda: relaxation.build(problem, None, [1]))
        solution = search.solved(relaxed.program, 10.0, 1e-3, lambda _: None, lambda: False)
        if solution.bound is not None:
            needed = max(needed, relaxed.least_budget_bytes(solution.bound))
            where = f"the end of the forward pass; largest operator: {floor.where}"
        needed = max(needed, search.budget_bytes + 1)
    seeking_s = min(MOST_SEEKING_S, EVICT_SHARE * search.effort.options.time_limit_s)
    planned = planned_budget(search, needed, seeking_s)
    return MemoryPlan(
        **search.effort.envelope(problem, "proof"),
        budget_bytes=search.budget_bytes,
        unconstrained=search.unconstrained,
        infeasibility=MemoryInfeasibility(needed, needed - search.budget_bytes, where, floor.blockers, planned),
    )
