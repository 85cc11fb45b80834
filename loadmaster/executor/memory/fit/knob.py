"""torch.compile's own partition under a budget, as a side of the contest: its knob is searched by measured steps.

The knob is the ``activation_memory_budget``: looked for is the fastest that keeps the budget, in few tries. Each try is
a compilation, as long as the user's own. Times are all but monotone in the knob: the less is kept, the more is computed
again. Peaks are not: below some knob the backward pass computes much again at once, and takes more than at a higher one
(BERT-large in ``benchmarks/results/memory_gpu.json``). So the highest knob that keeps the budget is looked for. The
search begins where the budget is between nothing kept and everything, goes on at points spread over the range until one
keeps it, then towards the lowest one above that does not. While none keeps it, it stays on the side of the least peak:
two peaks at low knobs say what a higher one takes. It ends where little can be won: the constants below suit the models
and knobs in that file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.executor.memory.fit.contest import Offer
from loadmaster.executor.memory.fit.phases import KNOB
from loadmaster.executor.memory.fit.trial_runs import TrialRuns
from loadmaster.executor.memory.fit.trials import StepTrial
from loadmaster.executor.memory.fit.values import Comparison, Difference
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.models.fit_record import KnobTryRecord
from loadmaster.models.units import show_bytes, show_cost

logger = logging.getLogger(__name__)

# In this order, while none keeps the budget; the first is the one that is nearest to where the budget is.
SPREAD = (1.0, 0.5, 0.2, 0.75, 0.1)
LEAST_STEP = 0.06  # of the knob: closer ones hardly differ
NEARLY_FULL = 0.95  # of the budget: a higher knob has no room
SAME_PEAK = 0.005  # of a peak: the knob does not move what takes so nearly the same at 1 and at a half
LEAST_GAIN = 0.02  # of the step's time: less is not worth a compilation
LEAST_WHOLE = 0.5  # of what plain PyTorch keeps: a compiled step that computes nothing again keeps that at least (0.55)
FAR = 1.25  # of the budget: what the best of two takes where another one hardly keeps it
_LOW = 0.2  # below a half peaks hardly fall any more
_COMPILED = 1.25  # by how much a knob may be above the share that the captured step tells of
NOISE = 0.03  # of a time: how far times are from monotone
# Of the forward pass at most all is computed again, which is about a third of a step: of six models on an H200 no step
# took more than 1.29 of the one at 1.
RECOMPUTED_SHARE = 1 / 3


@dataclass(frozen=True)
class Probe:
    """A knob that was tried, in this process or before. Its ``used_bytes`` count against a budget; where the device
    ``ran_out`` of memory, they are what it takes at least, and the time is unknown."""

    knob: float
    used_bytes: int
    step_us: float
    ran_out: bool = False

    def keeps(self, budget_bytes: int) -> bool:
        """Return whether the step stayed within the budget."""
        return not self.ran_out and self.used_bytes <= budget_bytes


@dataclass(frozen=True)
class KnobTrial(StepTrial):
    """torch.compile's own partition under one knob, its ``activation_memory_budget``, and what running it measured."""

    knob: float

    @property
    def probe(self) -> Probe:
        """The trial as the knob search reads it."""
        return Probe(self.knob, self.used_bytes, self.measured.step_us, self.measured.ran_out)

    @property
    def record(self) -> KnobTryRecord:
        """The trial as it is written to a file."""
        return KnobTryRecord(**self.figures, knob=self.knob, ran_out=self.measured.ran_out)


def describe_knob(tried: KnobTrial) -> str:
    """One line: budget, knob, measured peak and time."""
    budget = f"budget {show_bytes(tried.budget_bytes)}"
    what = f"torch.compile with activation_memory_budget {tried.knob:.3g}"
    if tried.measured.ran_out:
        return f"{budget}: {what} ran out of memory"
    over = show_bytes(tried.used_bytes - tried.budget_bytes)
    held = "kept" if tried.kept else f"exceeded by {over}"
    measured = f"{show_bytes(tried.used_bytes)}, {show_cost(tried.measured.step_us, 'us')}"
    return f"{budget} {held}: {what} measured {measured}"


@dataclass(frozen=True, kw_only=True)
class KnobOffer(Offer):
    """A knob that can be tried next."""

    knob: float


class KnobSide:
    """Tries of torch.compile's knob under one budget, ``most`` at most, as a side of the contest. ``known`` is what
    other budgets and runs measured: it steers the search; what would win is measured again. ``share`` is where the
    search begins, see :func:`next_knob`."""

    def __init__(
        self,
        runs: TrialRuns,
        budget_bytes: int,
        known: Sequence[Probe],
        most: int,
        on_try: Callable[[KnobTrial], None] | None,
        share: float = 1.0,
    ) -> None:
        self.runs, self.budget_bytes, self.most, self.on_try = runs, budget_bytes, most, on_try
        self.share = share
        self.is_hopeless: Callable[[], bool] = lambda: False
        """Returns whether no knob will keep the budget."""
        self.only_hope = False
        """True if there are no plans: see :func:`next_knob`."""
        self.known = tuple(known)
        self.tries: list[KnobTrial] = []
        self.failed: str | None = None
        """Reason why torch.compile could not run the step; None if it could."""
        self.step: KnobStep | None = None
        """Step of the chosen try."""
        self.compared = Comparison("")
        """Comparison of the chosen step with plain PyTorch's."""
        self.differs: Difference | None = None
        """Difference from plain PyTorch's step: a try that kept the budget is not taken, and no other knob is tried."""
        self._refused: set[int] = set()
        self.final_us: float | None = None
        """Time of the chosen step, if it was timed again."""

    @property
    def probes(self) -> tuple[Probe, ...]:
        """All known probes: those measured here, then those of earlier fits."""
        here = {t.knob: t.probe for t in self.tries}
        return (*here.values(), *(p for p in self.known if p.knob not in here))

    @property
    def chosen(self) -> int | None:
        """Index of the fastest try that kept the budget; None where none did."""
        kept = [i for i, t in enumerate(self.tries) if t.kept and i not in self._refused]
        return min(kept, key=lambda i: self.tries[i].measured.step_us, default=None)

    @property
    def best_step(self) -> KnobStep | None:
        """Step of the chosen try; None where no try kept the budget."""
        return None if self.chosen is None else self.step

    @property
    def best_us(self) -> float | None:
        """Step time of the chosen try; None where no try kept the budget."""
        if self.chosen is None:
            return None
        return self.final_us or self.tries[self.chosen].measured.step_us

    def begin(self) -> None:
        """Compile the next knob ahead, as long as no knob keeps the budget: it is wanted in any case."""
        if self.best_us is None and (offer := self.offer()) is not None:
            self.runs.ahead.knob(offer.knob)

    def is_at_work(self) -> bool:
        """Return False: the next offer never has to be waited for."""
        return False

    def offer(self) -> KnobOffer | None:
        """Return the knob to try next: one that has kept the budget before, or the next of the search. While it is
        compiled ahead, another side's step is compiled here."""
        if self.failed is not None or self.differs is not None or len(self.tries) >= self.most or self.is_hopeless():
            return None
        before = [p for p in self.known if p.keeps(self.budget_bytes) and p.knob not in {t.knob for t in self.tries}]
        knob = next_knob(self.probes, self.budget_bytes, self.share, only_hope=self.only_hope)
        at_least = expected = 0.0
        if knob is not None:
            at_least, expected = at_least_us(self.probes, knob), expected_us(self.probes, knob)
        if before:
            best = min(before, key=lambda p: p.step_us)
            if knob is None or best.step_us <= expected:
                knob, at_least, expected = best.knob, (1.0 - NOISE) * best.step_us, best.step_us
        if knob is None:
            return None
        if self.runs.ahead.is_at(knob):
            expected = math.inf
        return KnobOffer(at_least, expected, lambda: self.measure(knob), lambda: self._is_ready(knob), knob=knob)

    def measure(self, knob: float) -> None:
        """Compile the step under the knob, and run it."""
        step = KnobStep(self.runs.model, self.runs.loss, knob=knob)
        self.runs.ahead.knob(knob)
        name = f"{KNOB}, activation_memory_budget {knob:.3g}"
        try:
            measured = self.runs.run(step, self.budget_bytes, KNOB, name)
        except Exception as error:  # noqa: BLE001 - the model's own, or of what a compiler wrote
            self.failed = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0].rstrip('.')}"
            logger.info("torch.compile's own partition cannot be tried: %s", self.failed)
            return
        tried = KnobTrial(self.budget_bytes, self.runs.used_bytes(measured), measured, knob)
        self.tries.append(tried)
        if self.chosen == len(self.tries) - 1:
            self._compare(step)
        logger.info("%s", describe_knob(tried))
        if self.on_try is not None:
            self.on_try(tried)

    def _compare(self, step: KnobStep) -> None:
        compared = self.runs.compared(step)
        if compared.differs is None:
            self.step, self.compared = step, compared
        else:
            self.differs = compared.differs
            self._refused.add(len(self.tries) - 1)

    def _is_ready(self, knob: float) -> bool:
        self.runs.ahead.knob(knob)
        return not self.runs.ahead.is_pending(knob)


def next_knob(
    probes: Sequence[Probe], budget_bytes: int, share: float = 1.0, *, only_hope: bool = False
) -> float | None:
    """Return the knob to try next; None where no other knob is likely to do better.

    ``share`` is where the budget is, as far as the captured step tells: at 0 nothing is kept for the backward pass, at
    1 all. Its peak is that of plain PyTorch; a compiled step takes less. With ``only_hope`` nothing but the knob can
    keep the budget, so that unlikely ones are tried too: of a step in several graphs it may move nothing at a half and
    more than half of the peak at a fifth (BART-large).
    """
    kept = max((p for p in probes if p.keeps(budget_bytes)), key=lambda p: p.knob, default=None)
    if kept is None:
        tried = {p.knob: p for p in probes}
        if not only_hope and all(k in tried for k in SPREAD[:2]) and _same_peak(*(tried[k] for k in SPREAD[:2])):
            return None
        if len(tried) > 1 and min(tried) <= _LOW and min(p.used_bytes for p in probes) > FAR * budget_bytes:
            return None
        left = [k for k in SPREAD if all(abs(k - t) >= LEAST_STEP for t in tried)]
        left = [k for k in left if not _is_behind_a_higher(k, probes)]
        within = [k for k in left if k <= _COMPILED * share]
        return (within[0] if tried else max(within)) if within else min(left, default=None)
    above = min((p for p in probes if p.knob > kept.knob), key=lambda p: p.knob, default=None)
    if above is None:
        if kept.knob >= 1.0 or kept.used_bytes >= NEARLY_FULL * budget_bytes:
            return None
        higher = min(k for k in SPREAD if k > kept.knob)
        return None if higher == 1.0 and share < LEAST_WHOLE else higher
    gain = 1.0 - above.step_us / kept.step_us if above.step_us and kept.step_us else 1.0
    is_close = above.knob - kept.knob < 2 * LEAST_STEP or kept.used_bytes >= NEARLY_FULL * budget_bytes
    # Half-way, half of it is to be won.
    return None if is_close or gain / 2 < LEAST_GAIN else (kept.knob + above.knob) / 2


def _is_behind_a_higher(knob: float, probes: Sequence[Probe]) -> bool:
    """Return whether a knob between this one and the one of the least peak was tried, and took more than that."""
    least = min(probes, key=lambda p: p.used_bytes, default=None)
    return least is not None and any(
        min(knob, least.knob) < p.knob < max(knob, least.knob) and p.used_bytes > least.used_bytes for p in probes
    )


def _same_peak(one: Probe, other: Probe) -> bool:
    apart_bytes = abs(one.used_bytes - other.used_bytes)
    return not (one.ran_out or other.ran_out) and apart_bytes < SAME_PEAK * one.used_bytes


def at_least_us(probes: Sequence[Probe], knob: float) -> float:
    """Lower bound of a step's time at the knob: as long as one at a higher knob took, or as one at a lower knob took if
    that computed the whole forward pass again."""
    timed = [p for p in probes if not p.ran_out]
    return (1.0 - NOISE) * max(
        max((p.step_us for p in timed if p.knob >= knob), default=0.0),
        max((p.step_us for p in timed if p.knob < knob), default=0.0) / (1.0 + RECOMPUTED_SHARE),
    )


def expected_us(probes: Sequence[Probe], knob: float) -> float:
    """Expected time of a step at the knob: more than at the next higher one by what is computed again, or less than at
    the next lower one by what is not. 0 where nothing is known."""
    timed = sorted((p for p in probes if not p.ran_out), key=lambda p: p.knob)
    above = next((p for p in timed if p.knob >= knob), None)
    if above is not None:
        return above.step_us * (1.0 + RECOMPUTED_SHARE * (above.knob - knob))
    return timed[-1].step_us / (1.0 + RECOMPUTED_SHARE * (knob - timed[-1].knob)) if timed else 0.0
