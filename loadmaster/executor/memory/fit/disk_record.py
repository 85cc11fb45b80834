"""Record that a fit leaves on disk for the next one of the same step: who won, what the knob measured and plans taught.

Steps are the same where model, batch, loss, precision, device and versions are. That is known before anything is
traced, so that the next call goes to the knob that won at once. What is read here is never believed: every step that a
user gets was measured by the process that gives it.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch

import loadmaster
from loadmaster.executor.memory.fit.knob import Probe
from loadmaster.executor.memory.fit.trial_runs import TrialRuns
from loadmaster.executor.memory.fit.trials import Correction
from loadmaster.executor.steps.guards import guards_of
from loadmaster.executor.steps.resident import optimizer_state_bytes
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.user_cache import keep, kept_path, read_kept

ROOM = "memory_fits"
RECORD = 2  # 1 has knobs that won with masks drawn twice: their gradients were wrong


@dataclass(frozen=True)
class Kept:
    """All that is known of a step before it is captured.

    Attributes:
        probes: knobs that were measured, under any budget.
        knobs: by budget as the user writes it, its bytes and the knob that won: faster than every plan, or the only one
            to keep it.
        correction: what the latest trials of plans taught; None where none ran.
    """

    probes: tuple[Probe, ...] = ()
    knobs: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    correction: Correction | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def with_probes(self, probes: Sequence[Probe]) -> Kept:
        """The record with these probes, which replace those of the same knobs."""
        newer = {p.knob: p for p in (*self.probes, *probes)}
        return replace(self, probes=tuple(newer.values()))

    def with_taken(self, budget: int | str, budget_bytes: int, knob: float | None) -> Kept:
        """The record with the knob that won a budget; None: a plan won."""
        others = {b: k for b, k in self.knobs.items() if b != str(budget)}
        return replace(self, knobs=others if knob is None else {**others, str(budget): (budget_bytes, knob)})


def path_of(runs: TrialRuns) -> Path:
    """Path of the file that keeps the record of this step."""
    step, options = Step(runs.model, runs.loss), runs.options
    guards = guards_of(runs.model, step.batch(runs.batch))
    modules = {type(m) for m in runs.model.modules()}
    said = {
        "loadmaster": f"{loadmaster.__version__}, {RECORD}",
        "torch": torch.__version__,
        "device": _device(runs.device),
        "model": repr(runs.model),
        "loss": _code(runs.loss),
        "code": sorted(_code(kind.forward) for kind in modules),
        "guards": sorted(guards.items()),
        "state_bytes": 0 if options.optimizer is None else optimizer_state_bytes(options.optimizer),
        "options": (options.gradients_held, repr(options.host_link), repr(options.implementations)),
        "mode": runs.mode,
        "fragmentation": runs.fragmentation_reserve_bytes,
    }
    return kept_path(ROOM, *(f"{name}: {value}" for name, value in said.items()))


def read(path: Path) -> Kept:
    """Read a record; an empty one where the file does not read as it was written."""
    found = read_kept(path)
    try:
        learned = found.get("correction")
        kept = Kept(
            tuple(Probe(**p) for p in found.get("probes", ())),
            {str(budget): (int(size), float(knob)) for budget, (size, knob) in found.get("knobs", {}).items()},
            None if learned is None else Correction(**learned),
            {str(name): float(s) for name, s in found.get("seconds", {}).items()},
        )
        return kept if _is_sane(kept) else Kept()
    except (TypeError, ValueError, AttributeError):
        return Kept()


def _is_sane(kept: Kept) -> bool:
    knobs = [*(p.knob for p in kept.probes), *(knob for _, knob in kept.knobs.values())]
    learned = kept.correction or Correction()
    times = [*(p.step_us for p in kept.probes), *kept.seconds.values()]
    return (
        all(0 <= knob <= 1 for knob in knobs)
        and all(p.used_bytes > 0 for p in kept.probes)
        and all(0 <= t < math.inf for t in times)
        and all(0 < f < math.inf for f in (learned.products, learned.moves))
        and isinstance(learned.resident_bytes, int)
    )


def write(path: Path, kept: Kept) -> None:
    """Write a record for the next run."""
    keep(path, asdict(kept))


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {os.cpu_count()} processors, {torch.get_num_threads()} threads"


def _code(called: Any) -> str:
    """Text of a function's or module's code: equal for functions that do the same."""
    if called is None:
        return "none"
    if isinstance(called, torch.nn.Module):
        return f"{called!r}: {_code(type(called).forward)}"
    name = f"{getattr(called, '__module__', '')}.{getattr(called, '__qualname__', type(called).__qualname__)}"
    code = getattr(called, "__code__", None)
    return name if code is None else f"{name}: {_instructions(code)}"


def _instructions(code: CodeType) -> str:
    return f"{code.co_code.hex()} {code.co_names} {[_constant(c) for c in code.co_consts]}"


def _constant(value: object) -> str:
    if isinstance(value, frozenset):  # in another order in every process
        return repr(sorted(map(repr, value)))
    return _instructions(value) if isinstance(value, CodeType) else repr(value)
