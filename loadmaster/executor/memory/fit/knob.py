"""torch.compile's own partition under a budget, as a side of the contest: its knob is searched by measured steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.executor.memory.fit.contest import Offer
from loadmaster.executor.memory.fit.knob_search import NOISE, Probe, at_least_us, expected_us, next_knob
from loadmaster.executor.memory.fit.phases import KNOB
from loadmaster.executor.memory.fit.setting import Setting
from loadmaster.executor.memory.fit.values import Comparison, Difference
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.executor.steps.measure import Measurement
from loadmaster.models.fit_record import KnobTryRecord
from loadmaster.models.units import show_bytes, show_cost

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnobTrial:
    """torch.compile's own partition under one knob, and what running it measured.

    Attributes:
        budget_bytes: the user's.
        knob: the ``activation_memory_budget``.
        used_bytes: what counts against the budget.
    """

    budget_bytes: int
    knob: float
    used_bytes: int
    measured: Measurement

    @property
    def kept(self) -> bool:
        """True if the step stayed within the budget."""
        return self.probe.keeps(self.budget_bytes)

    @property
    def probe(self) -> Probe:
        """The trial as the knob search reads it."""
        return Probe(self.knob, self.used_bytes, self.measured.step_us, self.measured.ran_out)

    @property
    def record(self) -> KnobTryRecord:
        """The trial as it is written to a file."""
        found = self.measured
        return KnobTryRecord(
            budget_bytes=self.budget_bytes,
            knob=self.knob,
            used_bytes=self.used_bytes,
            peak_bytes=found.peak_bytes,
            step_us=found.step_us,
            kept=self.kept,
            ran_out=found.ran_out,
        )


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
    """Tries of torch.compile's knob under one budget, as a side of the contest.

    Args:
        known: what other budgets and runs measured: it steers the search; what would win is measured again.
        share: where the search begins, see :func:`~loadmaster.executor.memory.fit.knob_search.next_knob`.
        most: compilations at most.
        on_try: called with each trial.
    """

    def __init__(
        self,
        setting: Setting,
        budget_bytes: int,
        known: Sequence[Probe],
        most: int,
        on_try: Callable[[KnobTrial], None] | None,
        share: float = 1.0,
    ) -> None:
        self.setting, self.budget_bytes, self.most, self.on_try = setting, budget_bytes, most, on_try
        self.share = share
        self.is_hopeless: Callable[[], bool] = lambda: False
        """Returns whether no knob will keep the budget."""
        self.only_hope = False
        """True if there are no plans: see :func:`~loadmaster.executor.memory.fit.knob_search.next_knob`."""
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
    def best_us(self) -> float | None:
        """Step time of the chosen try; None where no try kept the budget."""
        if self.chosen is None:
            return None
        return self.final_us or self.tries[self.chosen].measured.step_us

    def begin(self) -> None:
        """Compile the next knob ahead, as long as no knob keeps the budget: it is wanted in any case."""
        if self.best_us is None and (offer := self.offer()) is not None:
            self.setting.ahead.knob(offer.knob)

    def is_at_work(self) -> bool:
        """Return False: the next offer never has to be waited for."""
        return False

    def offer(self) -> KnobOffer | None:
        """Return the knob to try next: one that has kept the budget before, or the next of the search. While it is
        compiled ahead, another side's step is compiled here.
        """
        if self.failed is not None or self.differs is not None or len(self.tries) >= self.most or self.is_hopeless():
            return None
        before = [p for p in self.known if p.keeps(self.budget_bytes) and p.knob not in {t.knob for t in self.tries}]
        knob = next_knob(self.probes, self.budget_bytes, self.share, only_hope=self.only_hope)
        at_least, expected = (0.0, 0.0) if knob is None else self._promise(knob)
        if before:
            best = min(before, key=lambda p: p.step_us)
            if knob is None or best.step_us <= expected:
                knob, at_least, expected = best.knob, (1.0 - NOISE) * best.step_us, best.step_us
        if knob is None:
            return None
        if self.setting.ahead.is_at(knob):
            expected = math.inf
        return KnobOffer(at_least, expected, lambda: self.measure(knob), lambda: self._is_ready(knob), knob=knob)

    def measure(self, knob: float) -> None:
        """Compile the step under the knob, and run it."""
        step = KnobStep(self.setting.model, self.setting.loss, knob=knob)
        self.setting.ahead.knob(knob)
        name = f"{KNOB}, activation_memory_budget {knob:.3g}"
        try:
            measured = self.setting.run(step, self.budget_bytes, KNOB, name)
        except Exception as error:  # noqa: BLE001 - the model's own, or of what a compiler wrote
            self.failed = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0].rstrip('.')}"
            logger.info("torch.compile's own partition cannot be tried: %s", self.failed)
            return
        tried = KnobTrial(self.budget_bytes, knob, self.setting.used_bytes(measured), measured)
        self.tries.append(tried)
        if self.chosen == len(self.tries) - 1:
            self._compare(step)
        logger.info("%s", describe_knob(tried))
        if self.on_try is not None:
            self.on_try(tried)

    def _compare(self, step: KnobStep) -> None:
        compared = self.setting.compared(step)
        if compared.differs is None:
            self.step, self.compared = step, compared
        else:
            self.differs = compared.differs
            self._refused.add(len(self.tries) - 1)

    def _is_ready(self, knob: float) -> bool:
        self.setting.ahead.knob(knob)
        return not self.setting.ahead.is_pending(knob)

    def _promise(self, knob: float) -> tuple[float, float]:
        return at_least_us(self.probes, knob), expected_us(self.probes, knob)
