"""Sources of traces: files, each of them a shard, or the names of distributions that they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from loadmaster.models.index.generators import Mix, make_trace
from loadmaster.models.index.trace import Trace, load_trace

NamedTraces = Iterator[tuple[str, Trace]]


def traces_of_files(paths: Sequence[str | PathLike[str]]) -> NamedTraces:
    """Yield the trace of each file with its name; files of the same name have their number added.

    Raises:
        InputError: as :func:`loadmaster.models.index.trace.load_trace`.
    """
    names = [Path(path).stem for path in paths]
    for number, (name, path) in enumerate(zip(names, paths, strict=True)):
        yield name if names.count(name) == 1 else f"{name}-{number}", load_trace(path)


@dataclass(frozen=True)
class Distributions:
    """Traces that are made, each with a seed of its own.

    Attributes:
        names: of their distributions, which take turns.
        shards: how many traces.
        keys, operations: of each.
        seed: of the first one.
    """

    names: tuple[str, ...]
    shards: int
    keys: int
    operations: int
    mix: Mix
    seed: int

    def traces(self) -> NamedTraces:
        """Yield each trace with its name."""
        for number in range(self.shards):
            name = self.names[number % len(self.names)]
            trace = make_trace(name, self.keys, self.operations, self.mix, seed=self.seed + number)
            yield f"{name}-{number}", trace

    @classmethod
    def of(cls, told: dict[str, Any]) -> Distributions:
        """Distributions from what ``plain`` made of them."""
        return cls(**{**told, "names": tuple(told["names"]), "mix": Mix(**told["mix"])})
