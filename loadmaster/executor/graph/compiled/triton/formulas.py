"""Operators that make each number of a row by itself, as expressions of Triton."""

from __future__ import annotations

import math

from loadmaster.models.graph.value import Value

_ERF = f"tl.math.erf({{0}} * {math.sqrt(0.5)!r})"

# Triton's interpreter knows no tanh. Made of exp it cancels near 0, where its series takes over.
_SQUARE = "{0} * {0}"
_SERIES = f"{{0}} * (1.0 - {_SQUARE} * (1 / 3 - {_SQUARE} * (2 / 15 - {_SQUARE} * (17 / 315 - {_SQUARE} * 62 / 2835))))"
_FORMULAS: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "relu": "tl.maximum({0}, 0.0)",
    "leaky_relu": "tl.where({0} > 0, {0}, {0} * {number})",
    "elu": "tl.where({0} > 0, {0}, tl.exp(tl.minimum({0}, 0.0)) - 1.0)",
    "gelu": f"0.5 * {{0}} * (1.0 + {_ERF})",
    "gelu_slope": f"0.5 * (1.0 + {_ERF}) + {{0}} * tl.exp({{0}} * {{0}} * -0.5) * {1 / math.sqrt(2 * math.pi)!r}",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))",
    "tanh": f"tl.where(tl.abs({{0}}) < 0.1, {_SERIES}, 2.0 / (1.0 + tl.exp({{0}} * -2.0)) - 1.0)",
    "reciprocal": "1.0 / {0}",
    "step": "tl.where({0} > 0, 1.0, 0.0).to({real})",
    "scale": "{0} * {number}",
    "shift": "{0} + {number}",
}


def formula(value: Value, real: str) -> str:
    """Return an operator as a formula of ``{0}`` and, if it has two inputs, ``{1}``, in numbers of type ``real``."""
    return _FORMULAS[value.op].replace("{number}", repr(float(value.number or 0.0))).replace("{real}", real)
