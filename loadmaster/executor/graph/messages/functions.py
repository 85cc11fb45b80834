"""Built-in message and reduce functions: what is named here runs fused, without a tensor of messages.

>>> import loadmaster.executor.graph.messages.functions as fn
>>> graph.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "h"))

u is the source of an edge, v its destination, e the edge. ``dot`` sums over the last dimension and keeps it as 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadmaster.executor.graph.kernels.spmm_messages import Target

MessageOperator = Literal["copy", "add", "sub", "mul", "div", "dot"]
ReduceOperator = Literal["sum", "mean", "max", "min", "prod"]


@dataclass(frozen=True)
class BuiltinMessage:
    """Message of one field (``copy``, ``left``) or of two that ``operator`` joins, each (where, name of the field)."""

    operator: MessageOperator
    left: tuple[Target, str]
    right: tuple[Target, str] | None
    out: str


@dataclass(frozen=True)
class BuiltinReduce:
    """The reduction of the messages ``message`` of each node to its field ``out``; zero for a node without messages.
    ``max`` and ``min`` send their gradient to the edge with the lowest id among those that have the value; ``prod``
    takes the messages in chunks and is not fused."""

    operator: ReduceOperator
    message: str
    out: str


def copy_u(field: str, out: str) -> BuiltinMessage:
    """Message that copies the source's field."""
    return BuiltinMessage("copy", ("u", field), None, out)


def copy_e(field: str, out: str) -> BuiltinMessage:
    """Message that copies the edge's field."""
    return BuiltinMessage("copy", ("e", field), None, out)


def _binary(left: Target, operator: MessageOperator, right: Target) -> Callable[[str, str, str], BuiltinMessage]:
    def message(left_field: str, right_field: str, out: str) -> BuiltinMessage:
        return BuiltinMessage(operator, (left, left_field), (right, right_field), out)

    message.__name__ = message.__qualname__ = f"{left}_{operator}_{right}"
    message.__doc__ = f"``{operator}`` of a field at {left} and one at {right}."
    return message


u_add_v, u_sub_v, u_mul_v = _binary("u", "add", "v"), _binary("u", "sub", "v"), _binary("u", "mul", "v")
u_div_v, u_dot_v = _binary("u", "div", "v"), _binary("u", "dot", "v")
u_add_e, u_sub_e, u_mul_e = _binary("u", "add", "e"), _binary("u", "sub", "e"), _binary("u", "mul", "e")
u_div_e, u_dot_e = _binary("u", "div", "e"), _binary("u", "dot", "e")
v_add_u, v_sub_u, v_mul_u = _binary("v", "add", "u"), _binary("v", "sub", "u"), _binary("v", "mul", "u")
v_div_u, v_dot_u = _binary("v", "div", "u"), _binary("v", "dot", "u")
v_add_e, v_sub_e, v_mul_e = _binary("v", "add", "e"), _binary("v", "sub", "e"), _binary("v", "mul", "e")
v_div_e, v_dot_e = _binary("v", "div", "e"), _binary("v", "dot", "e")
e_add_u, e_sub_u, e_mul_u = _binary("e", "add", "u"), _binary("e", "sub", "u"), _binary("e", "mul", "u")
e_div_u, e_dot_u = _binary("e", "div", "u"), _binary("e", "dot", "u")
e_add_v, e_sub_v, e_mul_v = _binary("e", "add", "v"), _binary("e", "sub", "v"), _binary("e", "mul", "v")
e_div_v, e_dot_v = _binary("e", "div", "v"), _binary("e", "dot", "v")


def sum(message: str, out: str) -> BuiltinReduce:
    """Sum of each node's messages."""
    return BuiltinReduce("sum", message, out)


def mean(message: str, out: str) -> BuiltinReduce:
    """Mean of each node's messages."""
    return BuiltinReduce("mean", message, out)


def max(message: str, out: str) -> BuiltinReduce:
    """Largest of each node's messages, number by number."""
    return BuiltinReduce("max", message, out)


def min(message: str, out: str) -> BuiltinReduce:
    """Smallest of each node's messages, number by number."""
    return BuiltinReduce("min", message, out)


def prod(message: str, out: str) -> BuiltinReduce:
    """Product of each node's messages."""
    return BuiltinReduce("prod", message, out)
