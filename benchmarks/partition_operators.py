"""Operators of ATen that can be split: those that PyTorch's own samples call, forward and backward, each tried.

Usage: python -m benchmarks.partition_operators      (needs the package expecttest, as PyTorch's samples do)

An operator is *split* where a strategy was admitted for one of its calls, *view* where it is a view, *rewritten* where
it is written as other operators first. Operators that write into their inputs are left out: traced graphs have none.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import record
from loadmaster.executor.costs.calls import Call
from loadmaster.executor.partition.rewrites import REWRITES
from loadmaster.executor.partition.trials import Trials
from loadmaster.executor.steps.step_graph import is_view

SAMPLES, CALLS = 6, 12
WHOLE = "whole"
Called = tuple[Any, Sequence[Any], Mapping[str, Any], Any]


class Calls(TorchDispatchMode):
    """Dispatch mode that notes the ATen calls within it."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Called] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.namespace == "aten" and not function._schema.is_mutable:
            self.noted.append((function, args, kwargs or {}, result))
        return result


def tensors(value: Any) -> list[Tensor]:
    """List the tensors in a value that need a gradient."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.requires_grad]


def called() -> dict[str, list[Called]]:
    """Collect operators by name, with calls of each."""
    found: dict[str, list[Called]] = {}
    for info in op_db:
        if torch.float64 not in info.dtypes:
            continue
        for call in _of_samples(info):
            found.setdefault(str(call[0]).removesuffix(".default"), []).append(call)
    return found


def _of_samples(info: Any) -> list[Called]:
    calls = Calls()
    try:
        samples = list(info.sample_inputs("cpu", torch.float64, requires_grad=info.supports_autograd))
        for sample in samples[:SAMPLES]:
            with calls:
                made = tensors(info(sample.input, *sample.args, **sample.kwargs))
                if made:
                    given = tensors((sample.input, sample.args, sample.kwargs))
                    torch.autograd.grad(made, given, list(map(torch.ones_like, made)), allow_unused=True)
    except (RuntimeError, TypeError, ValueError, AssertionError):
        pass  # what was called before counts
    return calls.noted


def what_of(call: Called, trials: Trials) -> tuple[str, str]:
    """Try to split the operator of a call; tell whether it is split, and how or why not."""
    node = Call.of(*call).node(fx.Graph())
    if is_view(node):
        return "view", ""
    if node.target in REWRITES:
        return "rewritten", ""
    found = trials.of(node)
    if found.strategies or (found.formula is not None and not found.reason):
        return "split", str(found.formula)
    return WHOLE, found.reason


def best(calls: Sequence[Called], tell: Callable[[Called], tuple[str, str]]) -> tuple[str, str]:
    """Tell how an operator is split, in the first of its calls in which it is."""
    found = (WHOLE, "")
    for call in calls[:CALLS]:
        try:
            found = tell(call)
        except RuntimeError as error:
            found = (WHOLE, str(error).splitlines()[0])
        if found[0] != WHOLE:
            break
    return found


def main() -> None:
    """Try all operators, count and record."""
    warnings.filterwarnings("ignore")
    trials = Trials()
    rows = [
        dict(zip(("operator", "is", "how"), (name, *best(calls, lambda call: what_of(call, trials))), strict=True))
        for name, calls in sorted(called().items())
    ]
    counts = Counter(row["is"] for row in rows)
    print(counts, record.write("partition_operators", {"counts": dict(counts), "rows": rows}))


if __name__ == "__main__":
    main()
