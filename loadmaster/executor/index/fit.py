"""Measures what the predictor is fitted to, on this machine, and writes its coefficients.

    python -m loadmaster.executor.index.fit -o predictor.json --rows rows.json

Every candidate of the presets and some drawn ones run on traces of every distribution, sizes and mixes of operations.
The rows measured are a document, too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.executor.index import native
from loadmaster.executor.index.files import STRUCTURES
from loadmaster.executor.index.measuring import Measured, measure, quickest
from loadmaster.models.canonical import plain
from loadmaster.models.documents import Document
from loadmaster.models.files import expect_writable, write_text
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray
from loadmaster.models.index.features import Features, features, image
from loadmaster.models.index.generators import DISTRIBUTIONS, Mix, make_trace
from loadmaster.models.index.predictor import FIGURES, Coefficients, MeasuredRow, fit, moved_keys, write_coefficients
from loadmaster.models.index.presets import CANDIDATES

SCHEMA = "loadmaster/index-rows/1"
LEAST_KEYS, SIZES = 10_000, 5
# Shares of inserts of [Shah23], section 6.5.2, and one mix with everything.
_MIXES = (
    *(Mix(inserts=share, zipf=zipf) for share in (0.0, 0.15) for zipf in (False, True)),
    *(Mix(inserts=share) for share in (0.5, 0.85, 1.0)),
    Mix(inserts=0.25, erases=0.1, scans=0.05),
)
# Operations by keys, in turn: a shard that hardly grows, and one that outgrows what it was built as.
_GROWTH = (0.3, 1.0, 3.0)
# Configurations that are drawn for a trace in addition to the candidates.
_DRAWN_LOGS, _DRAWN_ARRAYS = 4, 2
# Of each trace all configurations run in turn, so many rounds, and the least of each time counts: what else a machine
# does comes and goes. Short traces are disturbed the most.
_LEAST_ROUNDS, _MOST_ROUNDS, _ROUND_OPERATIONS = 2, 4, 1_000_000
# Traces of more keys run with every other mix.
_ALL_MIXES_KEYS = 100_000
COMMAND = "python -m loadmaster.executor.index.fit"


@dataclass(frozen=True)
class Trial:
    """A trace to be made and run."""

    distribution: str
    keys: int
    operations: int
    mix: Mix
    seed: int

    @property
    def name(self) -> str:
        """Name for a person: ``clustered, 10000 keys, 5000 operations, 15 % inserts, zipf``."""
        shares = {what: getattr(self.mix, what) for what in ("inserts", "erases", "scans")}
        parts = [f"{100 * share:g} % {what}" for what, share in shares.items() if share] or ["lookups"]
        size = f"{self.keys} keys, {self.operations} operations"
        return ", ".join([self.distribution, size, *parts, *(["zipf"] if self.mix.zipf else [])])

    @property
    def rounds(self) -> int:
        """Number of runs of each configuration."""
        return min(max(_LEAST_ROUNDS, _ROUND_OPERATIONS // self.operations), _MOST_ROUNDS)


@dataclass(frozen=True, eq=False)
class Ran:
    """A trace that ran: the ``picture`` of its keys (``features.image``), and a row for each fitting configuration."""

    trial: Trial
    features: Features
    picture: NDArray[np.float64]
    rows: Sequence[MeasuredRow]


def trials(most_keys: int, most_operations: int) -> list[Trial]:
    """Every distribution in sizes up to the largest with every mix, the largest sizes with half of them. InputError: a
    number is too small."""
    for name, value, least in (("keys", most_keys, 100), ("operations", most_operations, 100)):
        if value < least:
            raise InputError(name, value, f"is less than {least}", f"Give {least} or more.")
    sizes = dict.fromkeys(int(n) for n in np.geomspace(min(LEAST_KEYS, most_keys), most_keys, SIZES).round())
    found: list[Trial] = []
    for s, keys in enumerate(sizes):
        for d, distribution in enumerate(DISTRIBUTIONS):
            for m, mix in enumerate(_MIXES):
                if keys > _ALL_MIXES_KEYS and (s + d + m) % 2:
                    continue
                growth = _GROWTH[(s + d + m) % len(_GROWTH)]
                operations = max(1, min(int(growth * keys), most_operations))
                found.append(Trial(distribution, keys, operations, mix, seed=len(found)))
    return found


def configurations(seed: int) -> list[Configuration]:
    """The candidates of the presets, and some that are drawn."""
    random = np.random.default_rng([20, seed])

    def power(least: int, most: int) -> int:
        return 1 << int(random.integers(least, most + 1))

    logs = []
    for _ in range(_DRAWN_LOGS):
        fragments = power(4, 12)
        logs.append(FragmentedLog(power(4, 9), fragments, min(fragments, power(2, 7))))
    arrays = [
        GappedArray(float(np.exp2(random.uniform(0, 4))), float(np.exp2(random.uniform(2, 9))), float(random.random()))
        for _ in range(_DRAWN_ARRAYS)
    ]
    return [*CANDIDATES, *logs, *arrays]


def run(trial: Trial) -> Ran:
    """Make the trace and measure every configuration that can serve it."""
    trace = make_trace(trial.distribution, trial.keys, trial.operations, trial.mix, trial.seed)
    seen = features(trace)
    able = [configuration for configuration in configurations(trial.seed) if serves(configuration, seen)]
    rounds = [[measure(trace, configuration) for configuration in able] for _ in range(trial.rounds)]
    rows = [
        row_of(trial, seen, configuration, quickest(times))
        for configuration, times in zip(able, zip(*rounds, strict=True), strict=True)
    ]
    return Ran(trial, seen, image(trace.keys), rows)


def serves(configuration: Configuration, of: Features) -> bool:
    """Return whether a configuration can run a trace with these features."""
    return (configuration.writable or not of.inserts + of.erases) and (configuration.ordered or not of.scans)


def row_of(trial: Trial, of: Features, configuration: Configuration, measured: Measured) -> MeasuredRow:
    """A measurement as the predictor takes it."""
    keys = of.keys + of.inserts
    moved = moved_keys(configuration, keys)
    return MeasuredRow(
        trial.distribution,
        of,
        configuration,
        read_ns=measured.read_ns,
        write_ns=measured.write_ns,
        key_bytes=measured.peak_bytes / max(1.0, keys),
        build_ns=measured.build_ns,
        scan_ns=measured.scan_ns,
        change_ns=measured.pause_us * 1e3 / moved if measured.pause_us and moved else None,
    )


def write_rows(ran: Sequence[Ran], source: str) -> dict[str, object]:
    """Write the rows of trials as a document."""
    return {
        "schema": SCHEMA,
        "source": source,
        "traces": [
            {
                "trial": plain(of.trial),
                "features": plain(of.features),
                "picture": [[round(float(share), 5) for share in row] for row in of.picture],
                "rows": [
                    {
                        "configuration": plain(row.configuration),
                        **{name: round(value, 3) for name in FIGURES if (value := getattr(row, name)) is not None},
                    }
                    for row in of.rows
                ],
            }
            for of in ran
        ],
    }


def read_rows(document: Document) -> list[Ran]:
    """Read the rows of trials from a document; InputError: it is of another schema, or lacks what rows have."""
    remedy = "Measure again: python -m loadmaster.executor.index.fit --rows rows.json"
    if document.get("schema") != SCHEMA:
        raise InputError("schema", document.get("schema"), "holds no rows of the index", remedy)
    try:
        return [_ran(of) for of in document["traces"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError("traces", str(error), "are no measured traces", remedy) from None


def _ran(of: Document) -> Ran:
    trial = Trial(**{**of["trial"], "mix": Mix(**of["trial"]["mix"])})
    seen = Features(**of["features"])
    rows = [
        MeasuredRow(
            trial.distribution,
            seen,
            STRUCTURES[row["configuration"]["structure"]](**row["configuration"]),
            **{name: row.get(name) for name in FIGURES},
        )
        for row in of["rows"]
    ]
    return Ran(trial, seen, np.array(of["picture"]), rows)


def parser() -> argparse.ArgumentParser:
    """Argument parser of the command."""
    p = argparse.ArgumentParser(prog=COMMAND, description="Measure this machine and fit the index's predictor to it.")
    p.add_argument("-o", "--output", metavar="PREDICTOR.json", help="coefficients; none: standard output")
    p.add_argument("--rows", metavar="ROWS.json", help="where to write what was measured")
    p.add_argument("--keys", type=int, default=1_000_000, help="of the largest trace (default: a million)")
    p.add_argument("--operations", type=int, default=1_000_000, help="of a trace at most (default: a million)")
    return p


def measured(most_keys: int, most_operations: int) -> list[Ran]:
    """Run all trials, with a line about each on standard error. InputError: the compiled index is missing, or a number
    is too small."""
    wanted = trials(most_keys, most_operations)
    if native.library() is None:
        remedy = "Install a C++ compiler, or a wheel for this platform; the predictor is of the compiled index."
        raise InputError("implementation", "numpy", "is all that there is here", remedy)
    ran, began = [], time.monotonic()
    for n, trial in enumerate(wanted, start=1):
        ran.append(run(trial))
        sys.stderr.write(f"{n}/{len(wanted)} after {time.monotonic() - began:.0f} s: {trial.name}\n")
    return ran


def fitted(ran: Sequence[Ran], arguments: Sequence[str]) -> Coefficients:
    """Fit coefficients that say where they come from."""
    rows = [row for of in ran for row in of.rows]
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    source = (
        f"{len(rows)} rows measured on {len(ran)} traces on {day}, on one core of {_processor()}, "
        f"by: {shlex.join([*COMMAND.split(), *arguments])}"
    )
    return fit(rows, source)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    try:
        expect_writable(options.output, "output")
        expect_writable(options.rows, "rows")
        ran = measured(options.keys, options.operations)
        found = fitted(ran, given)
        if options.rows is not None:
            write_text(options.rows, json.dumps(write_rows(ran, found.source)) + "\n", "rows")
        text = json.dumps(_rounded(write_coefficients(found)), indent=1) + "\n"
        if options.output is None:
            sys.stdout.write(text)
        else:
            write_text(options.output, text, "output")
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status
    return 0


def _rounded(value: object) -> object:
    """Round all numbers of a document, whose further digits say nothing."""
    if isinstance(value, dict):
        return {name: _rounded(of) for name, of in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


if __name__ == "__main__":
    sys.exit(main())
