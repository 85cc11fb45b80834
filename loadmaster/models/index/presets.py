"""Index problems from traces: the usual candidates, each predicted on each trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from loadmaster.errors import InputError
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray, HashTable, SortedArray
from loadmaster.models.index.features import Features
from loadmaster.models.index.predictor import Coefficients, predict, shipped
from loadmaster.models.index.problem import Host, IndexProblem, Operations, Shard

# Gapped arrays by the cost model of [ALEX20] for the mixes of [Shah23], section 6.5.2, and with bounds of their own;
# fragmented logs from small leaves with short pauses to large ones that split rarely; the two that serve only some
# shards.
CANDIDATES: tuple[Configuration, ...] = (
    *(GappedArray(insert_share=share) for share in (0.0, 0.15, 0.5, 0.85, 1.0)),
    GappedArray(most_searches=2.0, most_shifts=32.0),
    GappedArray(most_searches=4.0, most_shifts=128.0),
    FragmentedLog(32, 64, 8),
    FragmentedLog(64, 256, 16),
    FragmentedLog(64, 1024, 16),
    FragmentedLog(128, 256, 16),
    FragmentedLog(256, 256, 16),
    SortedArray(),
    HashTable(),
)


def problem_of(
    name: str,
    traces: Sequence[tuple[str, Features]],
    *,
    candidates: Sequence[Configuration] = CANDIDATES,
    coefficients: Coefficients | None = None,
    ordered: bool = False,
    hosts: Sequence[Host] = (Host("host"),),
    objective: Literal["sum", "longest-thread"] = "sum",
    longest_pause_us: float | None = None,
) -> IndexProblem:
    """A problem of new shards, in turn on the hosts.

    Args:
        traces: the name of each shard, and the features of its trace.
        coefficients: to predict with; None: those that come with the package.
        ordered: whether order is asked for, in addition to the scans of the traces.

    Raises:
        InputError: a trace is missing, or the coefficients do not know a structure.
    """
    if not traces:
        raise InputError("traces", 0, "are none", "Give the trace of one shard at least.")
    known = shipped() if coefficients is None else coefficients
    shards = tuple(
        Shard(
            name=shard,
            keys=of.keys,
            operations=Operations(of.lookups, of.inserts, of.erases, of.scans),
            costs=tuple(predict(of, configuration, known) for configuration in candidates),
            ordered=ordered,
            host=number % len(hosts),
            features=of,
        )
        for number, (shard, of) in enumerate(traces)
    )
    return IndexProblem(
        name, tuple(candidates), shards, tuple(hosts), objective=objective, longest_pause_us=longest_pause_us
    )
