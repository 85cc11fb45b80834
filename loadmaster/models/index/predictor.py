"""Predictor of a configuration's costs on a trace that it never ran on: a line through logarithms for each structure.

The logarithm of a time, or of the bytes of a key, is a weighted sum of a few features of trace and configuration
(:func:`explain`). Weights are fitted by least squares to what was measured, and quantiles are those of residuals on
groups of traces that were held out. ``predictor.json`` next to this module holds weights and says where they come from.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.canonical import plain
from loadmaster.models.documents import Document
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray, HashTable
from loadmaster.models.index.features import Features
from loadmaster.models.index.problem import Cost, Figure
from loadmaster.solvers.program import FloatArray

SCHEMA = "loadmaster/index-predictor/1"
# What is predicted, per operation or per key.
FIGURES = ("read_ns", "write_ns", "scan_ns", "key_bytes", "build_ns", "change_ns")
LOWER, UPPER = 0.1, 0.9
# Of features that the rows hardly vary, weights stay near 0: so much of the rows' number, on features of deviation 1.
_RIDGE = 0.02
# A key and its payload: no index takes less for each.
_PAIR_BYTES = 16
# Keys with payloads that about fill a core's cache, and a processor's, in a typical structure.
_CACHED_KEYS = (1 << 15, 1 << 20)
# So many keys move to a larger table in the time of a write.
_MOVED_AS_WRITTEN = 4.0
# An index that grew more, doublings, is as one that was built by inserts alone.
_MOST_GROWTH = 3.0
# The largest leaf of a gapped array, as ALEX bounds it: 16 MiB of keys and payloads.
_LARGEST_LEAF_KEYS = 1 << 20


@dataclass(frozen=True)
class MeasuredRow:
    """One measurement of a configuration on a trace, to which lines are fitted.

    Attributes:
        group: residuals are taken on groups that the line was not fitted to: where each is a distribution of keys, the
            quantiles are those for keys of another kind.
        read_ns, write_ns, scan_ns, build_ns: None where nothing was read, written, scanned, or built from other keys.
        key_bytes: the peak by the keys loaded and inserted.
        change_ns: the longest change of structure, by the keys that it can have moved (:func:`moved_keys`); None where
            nothing changed.
    """

    group: str
    features: Features
    configuration: Configuration
    read_ns: float | None
    write_ns: float | None
    key_bytes: float
    build_ns: float | None = None
    scan_ns: float | None = None
    change_ns: float | None = None


@dataclass(frozen=True)
class Line:
    """The line that predicts one figure of one structure. Weights, by the name of the feature, are of the natural
    logarithm; ``lower`` and ``upper`` are added to that for the quantiles 0.1 and 0.9."""

    weights: Mapping[str, float]
    lower: float
    upper: float

    def figure(self, explained: Mapping[str, float]) -> Figure:
        """The figure where features are these."""
        middle = sum(weight * explained[name] for name, weight in self.weights.items())
        return Figure(*(math.exp(min(middle + by, 34.0)) for by in (0.0, self.lower, self.upper)))


@dataclass(frozen=True)
class Coefficients:
    """Lines by structure and figure, what they were fitted to, in words, and the most keys of a trace among that."""

    source: str
    most_keys: float
    lines: Mapping[str, Mapping[str, Line]]


def explain(features: Features, configuration: Configuration) -> dict[str, float]:
    """Explanatory variables of times and sizes, by name."""
    loaded, keys = max(features.keys, 1), max(features.keys + features.inserts, 1.0)
    operations = max(features.operations, 1.0)
    of_a_line = math.log2(features.local_keys)
    growth = min(math.log2(keys / loaded), _MOST_GROWTH)
    explained = {
        "one": 1.0,
        "log keys": math.log2(keys),
        # What outgrows a cache is slower from there on.
        **{f"log keys over {cache}": math.log2(max(1.0, keys / cache)) for cache in _CACHED_KEYS},
        "log keys of a line": of_a_line,
        "log lines over all": math.log2(max(loaded / features.global_keys, 1.0)),
        "log keys by log keys of a line": math.log2(keys) * of_a_line,
        "log growth": growth,
        "log growth by log keys of a line": growth * of_a_line,
        "hot share": features.hot_share,
        "hot share by log keys": features.hot_share * math.log2(keys),
        "write share": features.write_share,
        "erase share": features.erases / operations,
        "scan share": features.scans / operations,
    }
    match configuration.structure:
        case "gapped-array":
            return explained | _explain_array(configuration)
        case "fragmented-log":
            return explained | _explain_log(configuration, explained)
        case "hash-table":
            return explained | _explain_table(loaded, keys, features.inserts + features.erases)
        case "sorted-array":
            return explained


def _explain_array(array: GappedArray) -> dict[str, float]:
    return {
        "searches are bounded": float(array.most_searches is not None),
        "log searches": 0.0 if array.most_searches is None else math.log2(array.most_searches),
        "shifts are bounded": float(array.most_shifts is not None),
        "log shifts": 0.0 if array.most_shifts is None else math.log2(array.most_shifts),
        "insert share": array.insert_share,
    }


def _explain_log(log: FragmentedLog, of_trace: Mapping[str, float]) -> dict[str, float]:
    fragment, most = math.log2(log.fragment_keys), math.log2(log.most_fragments)
    leaf = min(fragment + most, of_trace["log keys"])
    return {
        "log fragment": fragment,
        "log fragment squared": fragment**2,
        "log most": most,
        "log first": math.log2(log.first_fragments),
        "log leaf": leaf,
        "log leaf squared": leaf**2,
        "log fragment by log keys of a line": fragment * of_trace["log keys of a line"],
        "log leaf by log keys of a line": leaf * of_trace["log keys of a line"],
        "log fragment by log keys": fragment * of_trace["log keys"],
        "log fragment by log growth": fragment * of_trace["log growth"],
    }


def _explain_table(loaded: float, keys: float, writes: float) -> dict[str, float]:
    """A table is made for the keys that are loaded, filled to 0.7, and grows by half when it is that full again."""
    places, moved = loaded / 0.7, 0.0
    while 0.7 * places < keys * (1 - 1e-9):
        moved += 0.7 * places
        places *= 1.5
    return {
        "log places of a key": math.log2(places / keys),
        "log keys moved by a write": math.log2(1 + moved / max(writes, 1.0) / _MOVED_AS_WRITTEN),
    }


def predict(features: Features, configuration: Configuration, coefficients: Coefficients) -> Cost:
    """Predict the cost of a configuration on a trace; raise InputError if the coefficients know no such structure."""
    lines = coefficients.lines.get(configuration.structure)
    if lines is None or not {"read_ns", "key_bytes", "build_ns"} <= lines.keys():
        remedy = "Fit the predictor to rows of it, or leave the candidate out."
        raise InputError("structure", configuration.structure, "was never measured", remedy)
    explained = explain(_part(features, coefficients.most_keys), configuration)
    keys = features.keys + features.inserts
    figures = {name: line.figure(explained) for name, line in lines.items()}
    build = figures["build_ns"]
    # Structures that were seen to change have a line of changes.
    change = figures.get("change_ns", build)
    return Cost(
        read_ns=figures["read_ns"],
        write_ns=figures.get("write_ns") if configuration.writable else None,
        peak_bytes=_at_least(_times(figures["key_bytes"], max(keys, 1)), _PAIR_BYTES * features.keys),
        rebuild_us=build.expected * features.keys / 1e3,
        pause_us=_times(change, moved_keys(configuration, keys) / 1e3),
        scan_ns=figures.get("scan_ns") if features.scans and configuration.ordered else None,
    )


def _part(features: Features, most_keys: float) -> Features:
    """A part of a larger trace, with as many keys as any that was measured: beyond them, lines lead anywhere."""
    share = most_keys / max(features.keys + features.inserts, 1.0)
    if share >= 1:
        return features
    keys = max(1, round(share * features.keys))
    counts = {name: share * getattr(features, name) for name in ("lookups", "inserts", "erases", "scans")}
    return replace(features, keys=keys, global_keys=min(features.global_keys, float(keys)), **counts)


def _at_least(figure: Figure, least: float) -> Figure:
    assert figure.lower is not None and figure.upper is not None, "what is predicted has quantiles"
    return Figure(max(figure.expected, least), max(figure.lower, least), max(figure.upper, least))


def _times(figure: Figure, factor: float) -> Figure:
    assert figure.lower is not None and figure.upper is not None, "what is predicted has quantiles"
    return Figure(figure.expected * factor, figure.lower * factor, figure.upper * factor)


def moved_keys(configuration: Configuration, keys: float) -> float:
    """Keys that the largest change of structure moves while an operation waits."""
    if not configuration.writable:
        return 0.0
    if isinstance(configuration, FragmentedLog):
        return min(keys, configuration.fragment_keys * configuration.most_fragments)
    return keys if isinstance(configuration, HashTable) else min(keys, _LARGEST_LEAF_KEYS)


def fit(rows: Sequence[MeasuredRow], source: str) -> Coefficients:
    """Lines through measurements, structure by structure; raise InputError for no rows, or a figure not above 0."""
    if not rows:
        raise InputError("rows", 0, "are none", "Measure some configurations on some traces first.")
    lines: dict[str, dict[str, Line]] = defaultdict(dict)
    for structure in sorted({row.configuration.structure for row in rows}):
        for figure in FIGURES:
            of = [row for row in rows if row.configuration.structure == structure and getattr(row, figure) is not None]
            if of:
                lines[structure][figure] = _line(of, figure)
    most_keys = max(row.features.keys + row.features.inserts for row in rows)
    return Coefficients(source, most_keys, dict(lines))


def _line(rows: Sequence[MeasuredRow], figure: str) -> Line:
    for n, row in enumerate(rows):
        if not (math.isfinite(getattr(row, figure)) and getattr(row, figure) > 0):
            raise InputError(f"rows[{n}].{figure}", getattr(row, figure), "is not above 0", "Measure it again.")
    explained = [explain(row.features, row.configuration) for row in rows]
    names = list(explained[0])
    x = np.array([[e[name] for name in names] for e in explained])
    y = np.log([float(getattr(row, figure)) for row in rows])
    groups = np.array([row.group for row in rows])
    residuals = np.concatenate([_held_out(x, y, groups == group) for group in dict.fromkeys(groups.tolist())])
    # What waits for a change is promised: nothing that was measured is above.
    lower, upper = np.quantile(residuals, [LOWER, 1.0 if figure == "change_ns" else UPPER])
    weights = dict(zip(names, _weights(x, y).tolist(), strict=True))
    return Line(weights, min(0.0, float(lower)), max(0.0, float(upper)))


def _held_out(x: FloatArray, y: FloatArray, left_out: np.ndarray) -> FloatArray:
    """Residuals on rows that the line is not fitted to; of a single group, those of its own line."""
    fitted_to = np.ones_like(left_out) if left_out.all() else ~left_out
    residuals: FloatArray = y[left_out] - x[left_out] @ _weights(x[fitted_to], y[fitted_to])
    return residuals


def _weights(x: FloatArray, y: FloatArray) -> FloatArray:
    """Ridge regression; the first column is the constant and goes free."""
    mean, spread = x[:, 1:].mean(axis=0), x[:, 1:].std(axis=0)
    varied = spread > 1e-12
    scaled = np.where(varied, (x[:, 1:] - mean) / np.where(varied, spread, 1.0), 0.0)
    normal = scaled.T @ scaled + _RIDGE * len(x) * np.eye(scaled.shape[1])
    slopes = np.linalg.solve(normal, scaled.T @ (y - y.mean())) / np.where(varied, spread, 1.0)
    return np.concatenate([[y.mean() - mean @ slopes], slopes])


def write_coefficients(coefficients: Coefficients) -> dict[str, object]:
    """Write coefficients as a document."""
    return {"schema": SCHEMA, **plain(coefficients)}


def read_coefficients(document: Document) -> Coefficients:
    """Coefficients from a document; raise InputError, naming the field, for another schema, or what is missing."""
    if document.get("schema") != SCHEMA:
        remedy = f"Give a document with schema {SCHEMA}."
        raise InputError("schema", document.get("schema"), "holds no coefficients of the index", remedy)
    try:
        lines = {
            structure: {
                figure: Line(dict(line["weights"]), float(line["lower"]), float(line["upper"]))
                for figure, line in figures.items()
            }
            for structure, figures in document["lines"].items()
        }
        return Coefficients(str(document["source"]), float(document["most_keys"]), lines)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError("lines", str(error), "are no lines of coefficients", "Fit the predictor again.") from None


@cache
def shipped() -> Coefficients:
    """Coefficients that come with the package."""
    return read_coefficients(json.loads(files("loadmaster.models.index").joinpath("predictor.json").read_text("utf-8")))
