"""Descriptions run as they are written: one element after the other, in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from loadmaster.models.partition.tdl.language import (
    Added,
    Called,
    Description,
    Element,
    Expression,
    Index,
    Multiplied,
    Number,
    Reduced,
)
from loadmaster.solvers.program import FloatArray

Env = Mapping[str, int]
_REDUCERS = {"sum": math.fsum, "max": max, "min": min, "product": math.prod}


def run(description: Description, inputs: Sequence[FloatArray], extents: Mapping[str, int]) -> list[FloatArray]:
    """The results. What is read outside of a tensor, or between its elements, is 0."""
    found = []
    for result in description.results:
        shape = [extents[name] for name in result.indices]
        out = np.zeros(shape)
        for at in np.ndindex(*shape):
            out[at] = _value(result.element, inputs, dict(zip(result.indices, at, strict=True)), extents)
        found.append(out)
    return found


def _value(expression: Expression, inputs: Sequence[FloatArray], env: Env, extents: Mapping[str, int]) -> float:
    match expression:
        case Number(value):
            return value
        case Element(tensor, at):
            return _element(inputs[tensor], [_place(index, env) for index in at if index is not None])
        case Added(a, b):
            return _value(a, inputs, env, extents) + _value(b, inputs, env, extents)
        case Multiplied(a, b):
            return _value(a, inputs, env, extents) * _value(b, inputs, env, extents)
        case Called(name, arguments):
            # Any function that is not linear will do.
            values = [_value(one, inputs, env, extents) for one in arguments]
            return math.tanh(sum((n + 1) * value for n, value in enumerate(values)) + len(name))
        case Reduced(by, over, body):
            ranges = itertools.product(*(range(extents[name]) for name in over))
            terms = [_value(body, inputs, {**env, **dict(zip(over, at, strict=True))}, extents) for at in ranges]
            return float(_REDUCERS[by](terms))
    raise NotImplementedError(expression)


def _place(index: Index, env: Env) -> float:
    return sum(a * env[name] for name, a in index.terms.items()) + index.constant


def _element(tensor: FloatArray, at: Sequence[float]) -> float:
    if any(place != int(place) or not 0 <= place < n for place, n in zip(at, tensor.shape, strict=True)):
        return 0.0
    return float(tensor[tuple(int(place) for place in at)])
