"""Traces by the name of their distribution: keys from easy to hard, and operations mixed as asked.

``clustered`` and ``outliers`` have about the hardness, by lines per key, of OpenStreetMap cells and of user ids of a
large network as SOSD [Kipf19] has them. They do not replace those where their figures are meant: what is quick on
stand-ins need not be quick on the originals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.index.trace import ERASE, INSERT, LOOKUP, SCAN, Keys, Trace, load_trace
from loadmaster.solvers.program import FloatArray, IntArray

_LARGEST = 2**64 - 1
_Draw = Callable[[np.random.Generator, int], Keys]


def _scaled(values: FloatArray) -> Keys:
    """Numbers of at least 0 over the lower half of all keys."""
    return (values * (2.0**63 / (values.max() or 1.0))).astype(np.uint64)


def _uniform(random: np.random.Generator, count: int) -> Keys:
    return random.integers(0, _LARGEST, count, dtype=np.uint64, endpoint=True)


def _lognormal(random: np.random.Generator, count: int) -> Keys:
    return _scaled(random.lognormal(0.0, 2.0, count))


def _clustered(random: np.random.Generator, count: int) -> Keys:
    """A cascade: each half of the range gets a random share, down to ranges of a few keys."""
    levels = max(1, int(np.log2(max(count, 2))) - 3)
    weights = np.ones(1)
    for _ in range(levels):
        left = random.beta(0.8, 0.8, len(weights))
        weights = np.column_stack([weights * left, weights * (1 - left)]).ravel()
    cells = random.choice(len(weights), count, p=weights / weights.sum()).astype(np.uint64)
    width = 2**63 >> levels
    return cells * np.uint64(width) + random.integers(0, width, count, dtype=np.uint64)


def _outliers(random: np.random.Generator, count: int) -> Keys:
    """Runs of ids with gaps of their own, and a few keys at the far end that stretch the range."""
    far = min(count // 2, 21)
    near = count - far
    runs = max(1, near // 400)
    scale = np.repeat(random.lognormal(4.0, 1.5, runs), -(-near // runs))[:near]
    ids = np.cumsum(1 + (random.exponential(1.0, near) * scale)).astype(np.uint64)
    return np.concatenate([ids, np.uint64(2**63) + random.integers(0, 2**63, far, dtype=np.uint64)])


def _sequential(random: np.random.Generator, count: int) -> Keys:
    return np.arange(count, dtype=np.uint64) + random.integers(0, 2**32, dtype=np.uint64)


def _powers(random: np.random.Generator, count: int) -> Keys:
    return np.exp2(random.uniform(20.0, 63.0, count)).astype(np.uint64)


DISTRIBUTIONS: Mapping[str, _Draw] = {
    "uniform": _uniform,
    "lognormal": _lognormal,
    "clustered": _clustered,
    "outliers": _outliers,
    "sequential": _sequential,
    "powers": _powers,
}
# More is drawn until there are as many different ones as asked for; a distribution that has no more is refused.
_MOST_DRAWS = 20


def make_keys(distribution: str, count: int, seed: int = 0) -> Keys:
    """Draw so many different keys, [count], ascending. Raises InputError, naming the field, for an unknown
    distribution, or one that has fewer keys."""
    if distribution not in DISTRIBUTIONS:
        known = ", ".join(DISTRIBUTIONS)
        raise InputError("distribution", distribution, "is no distribution", f"Choose one of: {known}.")
    if count < 1:
        raise InputError("keys", count, "is less than 1", "Give a whole number of at least 1.")
    random = np.random.default_rng(seed)
    draw = DISTRIBUTIONS[distribution]
    found = np.unique(draw(random, count))
    for _ in range(_MOST_DRAWS):
        if len(found) >= count:
            # Not the first ones: these would be another distribution.
            return np.sort(random.permutation(found)[:count])
        found = np.union1d(found, draw(random, count))
    raise InputError("keys", count, f"are more than {distribution} has", f"Give at most {len(found)}.")


@dataclass(frozen=True)
class Mix:
    """Operations of each sort, as shares of all; what is left are lookups. With ``zipf``, few keys get most lookups (by
    the law of Zipf). Raises InputError if a share is none, or together they are more than all."""

    inserts: float = 0.15
    erases: float = 0.0
    scans: float = 0.0
    zipf: bool = False

    def __post_init__(self) -> None:
        for name in ("inserts", "erases", "scans"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(name, getattr(self, name), "is no share", "Give a number from 0 to 1.")
        if (total := self.inserts + self.erases + self.scans) > 1 + 1e-9:
            raise InputError("inserts", total, "is more than all with erases and scans", "Give shares of 1 at most.")


def make_trace(distribution: str, keys: int, operations: int, mix: Mix | None = None, seed: int = 0) -> Trace:
    """A trace: ``keys`` loaded, then operations in random order; inserts are of new keys, the others of present ones.
    An erased key is not asked for again by another erase; lookups may miss it.

    Raises:
        InputError: as :func:`make_keys`; more erases than keys.
    """
    mix = mix or Mix()
    if operations < 0:
        raise InputError("operations", operations, "is less than 0", "Give a whole number of at least 0.")
    inserts, erases, scans = (round(share * operations) for share in (mix.inserts, mix.erases, mix.scans))
    if erases > keys:
        raise InputError("erases", erases, f"are more than the {keys} keys loaded", "Give fewer.")
    random = np.random.default_rng([seed, 1])
    every = random.permutation(make_keys(distribution, keys + inserts, seed))
    codes = np.full(operations, LOOKUP, dtype=np.uint8)
    codes[:inserts] = INSERT
    codes[inserts : inserts + erases] = ERASE
    codes[inserts + erases : inserts + erases + scans] = SCAN
    random.shuffle(codes)
    # Of the keys in the order in which they come, so many are there when an operation is asked for.
    present = keys + np.cumsum(codes == INSERT)
    chosen = (_zipf if mix.zipf else _even)(random, present)
    chosen[codes == INSERT] = np.arange(keys, keys + inserts)
    chosen[codes == ERASE] = random.choice(keys, erases, replace=False)
    return Trace(every[:keys], codes, every[chosen])


def _even(random: np.random.Generator, present: IntArray) -> IntArray:
    return random.integers(0, present)


def _zipf(random: np.random.Generator, present: IntArray) -> IntArray:
    """Places with chances as 1 / (1 + place): by the inverse of the logarithm that they sum to."""
    places: IntArray = (np.exp(random.random(len(present)) * np.log1p(present)) - 1).astype(np.int64)
    return np.minimum(places, present - 1)


NamedTraces = Iterator[tuple[str, Trace]]


def traces_of_files(paths: Sequence[str | PathLike[str]]) -> NamedTraces:
    """Yield the trace of each file with its name; files of the same name have their number added. Raises InputError as
    :func:`loadmaster.models.index.trace.load_trace`."""
    names = [Path(path).stem for path in paths]
    for number, (name, path) in enumerate(zip(names, paths, strict=True)):
        yield name if names.count(name) == 1 else f"{name}-{number}", load_trace(path)


@dataclass(frozen=True)
class Distributions:
    """Traces that are made, as many as ``shards``: distributions take turns, and seeds count on from the first."""

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
