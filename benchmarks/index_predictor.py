"""Quality of a predictor: how well it ranks configurations of the index on traces of a kind that it never saw.

    python -m loadmaster.executor.index.fit -o predictor.json --rows rows.json
    python -m benchmarks.index_predictor rows.json

One distribution of keys is left out, then one size, in turn. Predictors learn from the other traces and choose a
candidate for each trace that was left out. The regret is the time of what they chose over that of the best measured
candidate, less one. The line that ships is compared with a small network (``index_network.py``), and with averages of
each configuration. A hash table is often the quickest by far; so all is told for shards that ask for order, too. Writes
``benchmarks/results/index_predictor.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from benchmarks import record
from benchmarks.index_network import Network
from loadmaster.executor.index.fit import Ran, read_rows
from loadmaster.models.index.configuration import Configuration
from loadmaster.models.index.features import Features
from loadmaster.models.index.predictor import FIGURES, MeasuredRow, fit, moved_keys, predict
from loadmaster.models.index.presets import CANDIDATES
from loadmaster.models.index.problem import Figure

LEFT_OUT: dict[str, Callable[[Ran], object]] = {
    "distribution": lambda ran: ran.trial.distribution,
    "keys": lambda ran: ran.trial.keys,
}


class Predictor(Protocol):
    """Predictor learned from some traces, and asked about others."""

    def figures(self, ran: Ran, configuration: Configuration) -> dict[str, Figure]:
        """Predict the figures of a configuration, by the names of FIGURES, as far as it has any."""


class LinePredictor:
    """Predictor that ships with Loadmaster."""

    def __init__(self, seen: Sequence[Ran]) -> None:
        self._coefficients = fit([row for ran in seen for row in ran.rows], "others")

    def figures(self, ran: Ran, configuration: Configuration) -> dict[str, Figure]:
        keys = max(1.0, ran.features.keys + ran.features.inserts)
        cost = predict(ran.features, configuration, self._coefficients)
        peak = cost.peak_bytes
        found = {"read_ns": cost.read_ns, "write_ns": cost.write_ns, "scan_ns": cost.scan_ns, "pause_us": cost.pause_us}
        found["key_bytes"] = Figure(*(v and v / keys for v in (peak.expected, peak.lower, peak.upper)))
        return {name: figure for name, figure in found.items() if figure is not None}


class AveragePredictor:
    """Predictor by averages: each configuration's figures over all traces, whatever the trace."""

    def __init__(self, seen: Sequence[Ran]) -> None:
        self._known: dict[tuple[Configuration, str], list[float]] = {}
        for row in (row for ran in seen for row in ran.rows):
            for name in FIGURES:
                if (value := getattr(row, name)) is not None:
                    self._known.setdefault((row.configuration, name), []).append(math.log(value))

    def figures(self, ran: Ran, configuration: Configuration) -> dict[str, Figure]:
        known = {name: self._known.get((configuration, name)) for name in FIGURES}
        return {name: Figure(math.exp(fmean(values))) for name, values in known.items() if values}


PREDICTORS: dict[str, Callable[[Sequence[Ran]], Predictor]] = {
    "line": LinePredictor,
    "network": Network,
    "averages": AveragePredictor,
}


def trace_ns(of: Features, read: float | None, write: float | None, scan: float | None) -> float:
    counted = ((of.lookups, read), (of.inserts + of.erases, write), (of.scans, scan))
    return sum(count * ns for count, ns in counted if count and ns is not None)


def measured_ns(row: MeasuredRow) -> float:
    return trace_ns(row.features, row.read_ns, row.write_ns, row.scan_ns)


def predicted_ns(figures: dict[str, Figure], of: Features) -> float:
    expected = {name: figure.expected for name, figure in figures.items()}
    return trace_ns(of, expected.get("read_ns"), expected.get("write_ns"), expected.get("scan_ns"))


@dataclass(frozen=True)
class Choice:
    """Choice of one predictor on one trace that it never saw."""

    trace: str
    group: str
    chosen: str
    best: str
    regret: float
    tau: float


def kendall(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau: of all pairs, how many more are in the same order than in the other one, as a share."""
    a, b = np.array(first), np.array(second)
    signs = np.sign(a[:, None] - a) * np.sign(b[:, None] - b)
    pairs = len(a) * (len(a) - 1)
    return float(signs.sum() / pairs) if pairs else 1.0


def chosen(predictor: Predictor, ran: Ran, group: str, *, ordered: bool) -> Choice | None:
    rows = [r for r in ran.rows if r.configuration in CANDIDATES and (r.configuration.ordered or not ordered)]
    truth = [measured_ns(row) for row in rows]
    told = [predicted_ns(predictor.figures(ran, row.configuration), ran.features) for row in rows]
    if not rows or not min(truth) > 0:
        return None
    at, best = int(np.argmin(told)), int(np.argmin(truth))
    names = [str(rows[i].configuration) for i in (at, best)]
    return Choice(ran.trial.name, group, *names, truth[at] / truth[best] - 1, kendall(truth, told))


def told(choices: Sequence[Choice]) -> dict[str, Any]:
    regrets = np.array([c.regret for c in choices])
    worst = max(choices, key=lambda c: c.regret)
    return {
        "traces": len(choices),
        "regret_mean": _short(regrets.mean()),
        "regret_p90": _short(np.quantile(regrets, 0.9)),
        "regret_worst": _short(worst.regret),
        "within_5_percent": _short((regrets <= 0.05).mean()),
        "kendall_tau": _short(fmean(c.tau for c in choices)),
        "worst": f"{worst.trace}: {worst.chosen} for {worst.best}",
    }


def coverage(pairs: Sequence[tuple[Predictor, Ran]]) -> dict[str, Any]:
    """Share of rows above the upper and below the lower quantile, of those not learned from, and the usual error."""
    found: dict[str, dict[str, float]] = {}
    for name in ("read_ns", "write_ns", "scan_ns", "key_bytes", "pause_us"):
        below, above, errors = [], [], []
        for predictor, ran in pairs:
            for row in ran.rows:
                value = pause_us(row) if name == "pause_us" else getattr(row, name)
                figure = predictor.figures(ran, row.configuration).get(name)
                if value is None or figure is None or figure.lower is None or figure.upper is None:
                    continue
                # A hair: figures that differ in the last digits only are hits.
                below.append(value < figure.lower * (1 - 1e-6))
                above.append(value > figure.upper * (1 + 1e-6))
                errors.append(abs(math.log(value / figure.expected)) if figure.expected > 0 else math.inf)
        if errors:
            median = math.exp(float(np.median(errors))) - 1
            found[name] = {
                "rows": len(errors),
                "below_lower": _short(fmean(below)),
                "above_upper": _short(fmean(above)),
                "median_error": _short(median),
            }
    return found


def pause_us(row: MeasuredRow) -> float | None:
    if row.change_ns is None:
        return None
    return row.change_ns * moved_keys(row.configuration, row.features.keys + row.features.inserts) / 1e3


def compared(ran: Sequence[Ran], by: str, names: Sequence[str]) -> dict[str, Any]:
    group_of = LEFT_OUT[by]
    groups = list(dict.fromkeys(map(group_of, ran)))
    result: dict[str, Any] = {}
    for name in names:
        began = time.process_time()
        pairs = []
        for group in groups:
            predictor = PREDICTORS[name]([of for of in ran if group_of(of) != group])
            pairs += [(predictor, of, str(group)) for of in ran if group_of(of) == group]
        trained_s = time.process_time() - began
        entry: dict[str, Any] = {"train_cpu_s": round(trained_s / len(groups), 2)}
        for ordered in (True, False):
            choices = [c for p, of, g in pairs if (c := chosen(p, of, g, ordered=ordered)) is not None]
            entry["ordered" if ordered else "any"] = told(choices) | {
                "regret_mean_by_group": {
                    g: _short(fmean(c.regret for c in choices if c.group == g)) for g in map(str, groups)
                }
            }
        entry["quantiles"] = coverage([(p, of) for p, of, _ in pairs])
        result[name] = entry
        print(by, name, json.dumps(entry, indent=1))
    return result


def _short(value: float) -> float:
    return round(float(value), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path, help="what the fitting command wrote")
    parser.add_argument(
        "--only", nargs="+", choices=list(PREDICTORS), default=list(PREDICTORS), help="shown, not written"
    )
    options = parser.parse_args()
    document = json.loads(options.rows.read_text())
    ran = read_rows(document)
    found = {f"left_out_{by}": compared(ran, by, options.only) for by in LEFT_OUT}
    if options.only == list(PREDICTORS):
        print(record.write("index_predictor", {"rows": document["source"], **found}))


if __name__ == "__main__":
    main()
