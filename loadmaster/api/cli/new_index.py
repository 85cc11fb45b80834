"""``new index``: shards from traces in files, or from traces that are made by the name of their distribution."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from loadmaster.api.cli.lazy import suggest
from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.index.documents import check_problem, write_problem
from loadmaster.models.index.features import Features, features
from loadmaster.models.index.generators import DISTRIBUTIONS, Distributions, Mix, traces_of_files
from loadmaster.models.index.presets import problem_of
from loadmaster.models.index.problem import Host, IndexProblem


def add_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the flags of an index problem: traces, hosts and objective. Returns the group of sources."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace", action="append", metavar="FILE.npz", help="of a shard: keys, operations, operation_keys; repeat it"
    )
    known = ", ".join(DISTRIBUTIONS)
    named = source.add_argument(
        "--distribution", action="append", metavar="NAME", help=f"of a shard's keys: {known}; repeat it"
    )
    suggest(named, list(DISTRIBUTIONS))
    parser.add_argument("--shards", type=int, metavar="N", help="distribution: so many, by turns (one of each)")
    parser.add_argument("--keys", type=int, default=100_000, metavar="N", help="distribution: of a shard (100000)")
    parser.add_argument("--operations", type=int, default=200_000, metavar="N", help="distribution: of each (200000)")
    for what, share in (("inserts", 0.15), ("erases", 0.0), ("scans", 0.0)):
        parser.add_argument(
            f"--{what}", type=float, default=share, metavar="X", help=f"distribution: share of operations ({share:g})"
        )
    parser.add_argument("--zipf", action="store_true", help="distribution: few keys get most lookups")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="distribution: of the traces (0)")
    parser.add_argument("--ordered", action="store_true", help="order is asked for, though the traces hold no scans")
    parser.add_argument("--hosts", type=int, default=1, metavar="N", help="shards are on them by turns (1)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each host (1)")
    parser.add_argument(
        "--objective",
        choices=("sum", "longest-thread"),
        default="sum",
        help="the time of all threads together, or of the longest one (sum)",
    )
    parser.add_argument("--longest-pause-us", type=float, metavar="T", help="no operation waits longer for a change")
    return source


def build(arguments: argparse.Namespace) -> Document:
    """The problem document of shards with the traces that the flags name. Raises InputError naming the flag."""
    expect_arguments(arguments)
    source = arguments.trace or distributions(arguments)
    traces = source.traces() if isinstance(source, Distributions) else traces_of_files(source)
    return write_problem(problem_with(arguments, [(name, features(trace)) for name, trace in traces]))


def expect_arguments(arguments: argparse.Namespace) -> None:
    """Refuse numbers that are out of range. Raises InputError naming the flag."""
    for flag in ("shards", "keys", "hosts", "threads"):
        if (value := getattr(arguments, flag)) is not None and value < 1:
            raise InputError(f"--{flag}", value, "is less than 1", "Give a whole number of at least 1.")
    if arguments.longest_pause_us is not None and not arguments.longest_pause_us > 0:
        raise InputError("--longest-pause-us", arguments.longest_pause_us, "is not above 0", "Give microseconds.")


def distributions(arguments: argparse.Namespace) -> Distributions:
    """The distributions that traces are to be made from. Raises InputError if the shares of operations are none."""
    names = tuple(arguments.distribution)
    mix = Mix(arguments.inserts, arguments.erases, arguments.scans, zipf=arguments.zipf)
    shards = arguments.shards or len(names)
    return Distributions(names, shards, arguments.keys, arguments.operations, mix, arguments.seed)


def problem_with(arguments: argparse.Namespace, shards: Sequence[tuple[str, Features]]) -> IndexProblem:
    """The problem of shards by name, with the features of their traces. Raises InputError naming a shard that no
    candidate can serve."""
    problem = problem_of(
        "index" if arguments.trace else f"index-{'-'.join(dict.fromkeys(arguments.distribution))}",
        shards,
        ordered=arguments.ordered,
        hosts=[Host(f"host-{n}", arguments.threads) for n in range(arguments.hosts)],
        objective=arguments.objective,
        longest_pause_us=arguments.longest_pause_us,
    )
    check_problem(problem)
    return problem
