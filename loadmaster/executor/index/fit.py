"""Measures what the predictor is fitted to, on this machine, and writes its coefficients.

    python -m loadmaster.executor.index.fit -o predictor.json --rows rows.json

Every candidate of the presets and some drawn ones run on traces of every distribution, sizes and mixes of operations.
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
from pathlib import Path

from loadmaster.errors import InputError
from loadmaster.executor.index import native
from loadmaster.executor.index.trials import Ran, run, trials, write_rows
from loadmaster.models.files import expect_writable, write_text
from loadmaster.models.index.predictor import Coefficients, fit, write_coefficients

COMMAND = "python -m loadmaster.executor.index.fit"


def parser() -> argparse.ArgumentParser:
    """Argument parser of the command."""
    p = argparse.ArgumentParser(prog=COMMAND, description="Measure this machine and fit the index's predictor to it.")
    p.add_argument("-o", "--output", metavar="PREDICTOR.json", help="coefficients; none: standard output")
    p.add_argument("--rows", metavar="ROWS.json", help="where to write what was measured")
    p.add_argument("--keys", type=int, default=1_000_000, help="of the largest trace (default: a million)")
    p.add_argument("--operations", type=int, default=1_000_000, help="of a trace at most (default: a million)")
    return p


def measured(most_keys: int, most_operations: int) -> list[Ran]:
    """Run all trials, with a line about each on standard error.

    Raises:
        InputError: the compiled index is missing, or a number is too small.
    """
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
