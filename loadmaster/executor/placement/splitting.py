"""Operators on whole lists of tensors, split into operators on one tensor of each list.

Optimizers update all parameters by one operator (``_foreach_addcdiv_``, ``_fused_adamw_``), whose working set is the
state of the whole model. Element by element its arithmetic is the same, so that it can run for one parameter after the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from loadmaster.executor.torch_private.operators import OpOverload, schema_of

_ONE_BY_ONE = ("_foreach_", "_fused_", "_amp_foreach_")
# These compute one value of their lists, not one for each tensor.
_WHOLE = ("_fused_dropout", "_fused_moving_avg_obs_fq_helper", "_fused_sdp_choice", "_fused_rms_norm")


@cache
def _is_over_lists(func: Any) -> bool:
    if not isinstance(func, OpOverload):
        return False
    name = schema_of(func).name.rpartition("::")[2]
    if not name.startswith(_ONE_BY_ONE) or name.startswith(_WHOLE):
        return False
    arguments = schema_of(func).arguments
    return bool(arguments) and str(arguments[0].type) == "List[Tensor]"


def parts_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of the calls that the operator is split into; empty where it is not split."""
    if not args or not _is_over_lists(func):
        return []
    count = len(args[0])
    if count < 2:
        return []

    def part(value: Any, n: int) -> Any:
        # Lists as long as the first one have an entry for each parameter; others (betas) are of all.
        return [value[n]] if isinstance(value, (list, tuple)) and len(value) == count else value

    return [
        (tuple(part(value, n) for value in args), {name: part(value, n) for name, value in kwargs.items()})
        for n in range(count)
    ]


def joined(results: Sequence[Any]) -> Any:
    """Join the results of an operator's parts: lists one after the other, None where the parts return None."""
    if all(result is None for result in results):
        return None
    if all(isinstance(result, tuple) for result in results):  # several lists
        return tuple(_in_a_row(lists) for lists in zip(*results, strict=True))
    return _in_a_row(results)


def _in_a_row(lists: Sequence[Any]) -> list[Any]:
    return [one for many in lists for one in _listed(many)]


def _listed(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, (list, tuple)) else (value,)
