"""Measurements in place of predictions: which candidates to run, and the problem with what they came to.

A plan is solved, what it chose and what is nearly as good is run on a part of the trace, and the plan is solved again
with what was measured, until it stays the same ([Shah23], section 6.3.1).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from loadmaster.models.index.problem import Cost, Figure, IndexProblem, Predicted, Shard
from loadmaster.models.index.serving import serving

Measurements = Mapping[tuple[int, int], Cost]

# For the loop, plans and runs together, unless it is told otherwise.
SECONDS = 20.0

_TIMES = ("read_ns", "write_ns", "scan_ns")
# A median of fewer says little: predictions are then corrected by what a larger group came to.
_ENOUGH = 3
_DIGITS = 4


def near_ties(problem: IndexProblem, s: int, chosen: int) -> list[int]:
    """Candidates of a shard that were not measured and may be quicker than the chosen one, most promising first: their
    time by lower quantiles is less than its time by upper ones. The chosen one is first, if it was not measured."""
    shard = problem.shards[s]
    found = []
    for c in serving(problem, shard):
        if not _known(shard, c).measured and (c == chosen or may_gain_us(shard, chosen, c) > 0):
            found.append((c != chosen, _time_us(shard, c, "expected"), c))
    return [c for _, _, c in sorted(found)]


def may_gain_us(shard: Shard, chosen: int, candidate: int) -> float:
    """Time that a shard may gain by a candidate: the upper quantile of the chosen one's less the lower of its own."""
    return _time_us(shard, chosen, "upper") - _time_us(shard, candidate, "lower")


def with_measured(problem: IndexProblem, costs: Measurements) -> IndexProblem:
    """The problem with costs by (shard, candidate) in place of its own, which they keep as predictions."""
    return _with(problem, {at: _beside(_cost(problem, at), cost) for at, cost in costs.items()})


def corrected(problem: IndexProblem, costs: Measurements) -> IndexProblem:
    """The problem, as before any of ``costs`` was measured, with these costs, and predicted times corrected by how far
    off those of the runs were.

    That is a factor of the candidate times one of the shard. The candidate's is the median over the shards where it
    ran; if these are fewer than three, over all runs of its structure; if these are fewer, over all runs. The shard's
    is the median of what is left of its own runs. So shards learn from each other, though none is taken to be measured
    that was not, and it does not matter how fast a machine the predictions were made for.
    """
    factors = _Factors(problem, costs)
    others: dict[tuple[int, int], Cost] = {}
    for s, shard in enumerate(problem.shards):
        for c, cost in enumerate(shard.costs):
            if cost is not None and not cost.measured and (s, c) not in costs:
                others[s, c] = factors.applied(cost, s, c)
    return _with(with_measured(problem, costs), others)


class _Factors:
    """Logarithms of measured over predicted times, of each kind of operation."""

    def __init__(self, problem: IndexProblem, costs: Measurements) -> None:
        self._candidates = problem.candidates
        self._of_group: dict[tuple[str, object], list[float]] = defaultdict(list)
        self._of_shard: dict[tuple[str, int], list[float]] = defaultdict(list)
        found = [
            (name, s, c, math.log(now.expected / was.expected))
            for (s, c), measured in costs.items()
            for name in _TIMES
            # What did not run has kept its prediction, quantiles included.
            if (now := getattr(measured, name)) is not None and now.upper is None and now.expected > 0
            if (was := _figure(_cost(problem, (s, c)), name)) is not None and was.expected > 0
        ]
        for name, _, c, ratio in found:
            for group in self._groups(c):
                self._of_group[name, group].append(ratio)
        for name, s, c, ratio in found:
            self._of_shard[name, s].append(ratio - self._of_candidate(name, c))

    def applied(self, cost: Cost, s: int, c: int) -> Cost:
        """Correct a prediction by the factors of its candidate and shard."""
        changed = {}
        for name in _TIMES:
            figure = _figure(cost, name)
            if figure is not None and self._of_group[name, None]:
                of_shard = self._of_shard[name, s]
                by = self._of_candidate(name, c) + (median(of_shard) if of_shard else 0.0)
                changed[name] = _times(figure, math.exp(by))
        return replace(cost, **changed)  # type: ignore[arg-type]

    def _of_candidate(self, name: str, c: int) -> float:
        known = [self._of_group[name, group] for group in self._groups(c)]
        return median(next((ratios for ratios in known if len(ratios) >= _ENOUGH), known[-1]))

    def _groups(self, c: int) -> Iterator[object]:
        yield c
        yield self._candidates[c].structure
        yield None


def _with(problem: IndexProblem, costs: Measurements) -> IndexProblem:
    by_shard: dict[int, dict[int, Cost]] = {}
    for (s, c), cost in costs.items():
        by_shard.setdefault(s, {})[c] = cost
    shards = list(problem.shards)
    for s, of in by_shard.items():
        shards[s] = replace(shards[s], costs=tuple(of.get(c, cost) for c, cost in enumerate(shards[s].costs)))
    return replace(problem, shards=tuple(shards))


def _beside(predicted: Cost, measured: Cost) -> Cost:
    """A measured cost, rounded to what a measurement tells, together with what was predicted."""
    was = predicted.predicted
    if not predicted.measured:
        was = Predicted(
            _rounded(predicted.read_ns),
            _rounded(predicted.peak_bytes),
            None if predicted.write_ns is None else _rounded(predicted.write_ns),
            None if predicted.scan_ns is None else _rounded(predicted.scan_ns),
        )
    times = {name: _rounded(figure) for name in _TIMES if (figure := getattr(measured, name)) is not None}
    return replace(measured, **times, rebuild_us=_round(measured.rebuild_us), measured=True, predicted=was)


def _figure(cost: Cost, name: str) -> Figure | None:
    found: Figure | None = getattr(cost, name)
    return cost.read_ns if found is None and name == "scan_ns" else found


def _times(figure: Figure, factor: float) -> Figure:
    lower, upper = (None if at is None else at * factor for at in (figure.lower, figure.upper))
    return _rounded(Figure(figure.expected * factor, lower, upper))


def _rounded(figure: Figure) -> Figure:
    lower, upper = (None if at is None else _round(at) for at in (figure.lower, figure.upper))
    return Figure(_round(figure.expected), lower, upper)


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _cost(problem: IndexProblem, at: tuple[int, int]) -> Cost:
    return _known(problem.shards[at[0]], at[1])


def _known(shard: Shard, c: int) -> Cost:
    cost = shard.costs[c]
    assert cost is not None, "refused candidates serve nothing"
    return cost


def _time_us(shard: Shard, c: int, quantile: str) -> float:
    """Time of the operations of the horizon, and of a rebuild where the candidate is not what the shard is now."""
    cost, done = _known(shard, c), shard.operations
    counted = ((done.lookups, cost.read_ns), (done.writes, cost.write_ns), (done.scans, cost.scan_ns or cost.read_ns))
    total = 0.0
    for count, figure in counted:
        if figure is not None:
            at: float | None = getattr(figure, quantile)
            total += count * (figure.expected if at is None else at)
    return total / 1e3 + (cost.rebuild_us if shard.current not in (None, c) else 0.0)
