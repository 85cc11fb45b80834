"""Places of operators in a model, in the words people see: the module that ran an operator, and its line of code."""

from __future__ import annotations


def words(op: str, module: str | None, source: str | None) -> str:
    """Describe an operator: ``layers.11.mlp, gelu, model.py:214``; by its full name where no place is known."""
    if module is None and source is None:
        return op
    return ", ".join(part for part in (module, _short(op), source) if part is not None)


def label(number: str, op: str, module: str | None, source: str | None) -> str:
    """Describe an operator with its number, ``backward 302``; the number comes first where no place is known."""
    said = words(op, module, source)
    return f"{number} ({said})" if said == op else f"{said} ({number})"


class Placed:
    """Operator with its place in a model."""

    op: str
    module: str | None
    source: str | None

    @property
    def words(self) -> str:
        """Module, operator and line, as far as they are known."""
        return words(self.op, self.module, self.source)


def _short(op: str) -> str:
    """Name of an operator without namespace and overload: ``add`` of ``aten.add.Tensor``."""
    namespace, _, rest = op.partition(".")
    return rest.partition(".")[0] if namespace in ("aten", "loadmaster") else op
