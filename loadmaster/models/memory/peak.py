"""Parts of a step's memory peak, by module of the model: the checker's accounting, term by term.

Every term of the accounting at the moment of the peak goes to a module: results and workspaces to that of their
operator. What belongs to no one module keeps the name of what it is. The parts add up to the checker's peak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import BackwardOperator, ForwardOperator, MemoryProblem
from loadmaster.models.memory.verdict import Moment

Parts = list[tuple[str, int]]
Path = tuple[str, ...]

RESIDENT = "parameters, gradients and inputs"
GRADIENTS = "live gradients"
TRAVELLING = "copies to and from the host"
NO_MODULE = "operators of no known module"
OTHER = "other"

_SMALL = 0.03  # of the peak: rows below give way where there are many


def peak_by_module(problem: MemoryProblem, schedule: Schedule | None = None) -> Parts:
    """Module paths and the bytes of each at the peak, largest first; they add up to the peak. ``schedule``: of a plan.
    None: the plain step, nothing recomputed, which budgets such as "50 %" are taken of."""
    schedule = schedule or plain.formulate(problem)
    moment = check(problem, schedule, budget_bytes=0).peak
    return [] if moment is None else at_moment(problem, schedule, moment)


def at_moment(problem: MemoryProblem, schedule: Schedule, moment: Moment) -> Parts:
    """Module paths and the bytes of each at a moment that the checker named, largest first."""
    return _summed(_terms(problem, schedule, moment))


def folded(parts: Sequence[tuple[str, int]], most: int = 8) -> Parts:
    """Fold parts into at most ``most`` rows of the same bytes. Like blocks of a repeated module go together
    (``layers.*.mlp``), paths are as deep as there is room for, and the smallest become "other"."""
    repeated = _repeated([name for name, _ in parts])
    rows: dict[Path, list[tuple[Path, int]]] = {}
    for name, size in parts:
        path = _pattern(name, repeated)
        rows.setdefault(path[:1], []).append((path, size))
    whole: set[Path] = set()
    while open_rows := [row for row in rows if row not in whole]:
        row = max(open_rows, key=lambda r: (_bytes(rows[r]), r))
        deeper: dict[Path, list[tuple[Path, int]]] = {}
        for path, size in rows[row]:
            deeper.setdefault(path[: len(row) + 1], []).append((path, size))
        split = {other: members for other, members in rows.items() if other != row} | deeper
        whole.add(row)  # tried; what is left of a row that is split is the module's own
        if _worth_naming(split) <= most:
            rows = split
    shown = _joined(rows)
    if len(shown) > most:
        shown = [*shown[: most - 1], (OTHER, sum(size for _, size in shown[most - 1 :]))]
    return shown


def _joined(rows: Mapping[Path, Iterable[tuple[Path, int]]]) -> Parts:
    return _summed((".".join(row), _bytes(members)) for row, members in rows.items())


def _worth_naming(rows: Mapping[Path, Iterable[tuple[Path, int]]]) -> int:
    """Number of rows, all those of next to nothing counted as one."""
    sizes = [size for _, size in _joined(rows)]
    small = sum(size < _SMALL * sum(sizes) for size in sizes)
    return len(sizes) - max(0, small - 1)


def _bytes(members: Iterable[tuple[Path, int]]) -> int:
    return sum(size for _, size in members)


def _repeated(names: Sequence[str]) -> set[Path]:
    """The paths of lists of modules that have modules of their own: their numbers say only which of them it is."""
    paths = [tuple(name.split(".")) for name in names]
    return {path[:i] for path in paths for i, part in enumerate(path[:-1]) if part.isdigit()}


def _pattern(name: str, repeated: set[Path]) -> Path:
    path = tuple(name.split("."))
    return tuple("*" if part.isdigit() and path[:i] in repeated else part for i, part in enumerate(path))


def _terms(problem: MemoryProblem, schedule: Schedule, moment: Moment) -> Iterator[tuple[str, int]]:
    t, stage = moment.stage, schedule.stages[moment.stage]
    keep = set(stage.keep)
    yield TRAVELLING, moment.travelling_bytes
    needs: set[int] = set()
    if t > 0:
        assert stage.implementation is not None  # it was replayed
        choice = problem.backward[t - 1].implementations[stage.implementation]
        needs = set(choice.needs)
    if moment.what == "backward":
        operator = problem.backward[t - 1]
        yield _module(operator), choice.workspace_bytes + operator.output_bytes
        yield GRADIENTS, operator.live_bytes
        yield RESIDENT, operator.fixed_bytes
        yield from _results(problem, needs | keep)
        return
    live_gradients = problem.backward[t - 1].live_bytes if t > 0 else 0
    yield GRADIENTS, live_gradients
    yield RESIDENT, problem.gradient_bytes(t) - live_gradients
    j = moment.operator
    f = problem.forward[j]
    stored = {fetch.forward for fetch in stage.fetches} | (set(schedule.stages[t - 1].keep) if t > 0 else set())
    held = [i for i in (*keep, *(needs - keep)) if i < j]
    if moment.what == "forward":
        chosen = (f.implementations if t == 0 else f.recompute_implementations)[moment.implementation]
        if moment.in_place and f.in_place is not None:
            yield _module(problem.forward[f.in_place.overwrites]), f.in_place.workspace_delta_bytes
        unlisted = f.live_bytes - sum(problem.forward[i].output_bytes for i in f.live_inputs)
        yield _module(f), chosen.workspace_bytes + f.output_bytes + unlisted
        yield from _results(problem, f.live_inputs)
        held = [i for i in held if i not in keep or i not in f.live_inputs]
        stored.discard(j)
    yield from _results(problem, held)
    yield from _results(problem, (i for i in stored if i >= j))


def _results(problem: MemoryProblem, ids: Iterable[int]) -> Iterator[tuple[str, int]]:
    return ((_module(problem.forward[i]), problem.forward[i].output_bytes) for i in ids)


def _module(operator: ForwardOperator | BackwardOperator) -> str:
    return NO_MODULE if operator.module is None else operator.module


def _summed(terms: Iterable[tuple[str, int]]) -> Parts:
    total: Counter[str] = Counter()
    for name, size in terms:
        total[name] += size
    return sorted(((n, size) for n, size in total.items() if size), key=lambda row: (-row[1], row[0]))
