"""Where in a model an operator comes from, the module that ran it and the line of code, in the words people see."""

from __future__ import annotations


def words(op: str, module: str | None, source: str | None) -> str:
    """``layers.11.mlp, gelu, model.py:214``; the operator as the problem names it where nothing else is known."""
    if module is None and source is None:
        return op
    return ", ".join(part for part in (module, _short(op), source) if part is not None)


def label(number: str, op: str, module: str | None, source: str | None) -> str:
    """The words and the operator's number, ``backward 302``; the number first where its place is not known."""
    said = words(op, module, source)
    return f"{number} ({said})" if said == op else f"{said} ({number})"


def _short(op: str) -> str:
    """The operator without namespace and overload: ``add`` of ``aten.add.Tensor``."""
    namespace, _, rest = op.partition(".")
    return rest.partition(".")[0] if namespace in ("aten", "loadmaster") else op
