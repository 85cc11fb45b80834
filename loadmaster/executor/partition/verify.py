"""Verification of strategies: an operator is run on shares of small tensors before a strategy of it is trusted.

A formula says what an operator computes; a kernel may compute something else (attention split over its head dimension,
a mean that divides by the share's extent, a norm over what was cut). So every strategy is run on two and on three
virtual workers: inputs are cut as it says, the operator runs on each worker's part, and the parts of the result must
make up the result of the whole ([Wang20] section 3.3.1, "partition-n-reduce").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.partition.local import call_on_share, results_of, tensors_of
from loadmaster.models.partition.problem import Need, Strategy

WORKERS = (2, 3)
_RELATIVE, _ABSOLUTE = 1e-9, 1e-10
_DIGITS_LOST = 16


def holds(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    strategy: Strategy,
    workers: Sequence[int] = WORKERS,
    told: Callable[[int], Mapping[str, Any]] = lambda _: {},
    compared: int | None = None,
) -> bool:
    """Return whether a strategy holds for a call: parts of the result make up the result of the whole.

    Args:
        args, kwargs: of a call on small tensors, in float64 where they are not whole numbers. What is split has an
            extent that every number of workers divides.
        strategy: for its tensors, in the order of the arguments.
        told: number of workers -> arguments, by name, that say how large a share is.
        compared: number of results to compare, the first ones; None: all.

    Returns:
        True if it holds. False, too, where the call fails on a share, and where shares need a halo, which no executor
            exchanges.
    """
    whole = results_of(target(*args, **kwargs))
    inputs = tensors_of(args, kwargs)
    if (len(inputs), len(whole)) != (len(strategy.inputs), len(strategy.outputs)):
        return False
    if any(need.before or need.after for need in strategy.inputs):
        return False
    return all(_holds_on(target, args, kwargs, strategy, whole[:compared], inputs, n, told(n)) for n in workers)


def _holds_on(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    strategy: Strategy,
    whole: Sequence[Tensor],
    inputs: Sequence[Tensor],
    workers: int,
    told: Mapping[str, Any],
) -> bool:
    cut = [_cut(tensor, need, workers) for tensor, need in zip(inputs, strategy.inputs, strict=True)]
    if None in cut:
        return False
    parts: list[list[Tensor]] = []
    for worker in range(workers):
        shares = [of[worker] for of in cut if of is not None]
        try:
            parts.append(call_on_share(target, args, kwargs, shares, told))
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return False
    return all(
        _makes_up(result, part, [of[n] for of in parts])
        for n, (result, part) in enumerate(zip(whole, strategy.outputs, strict=False))
    )


def _cut(tensor: Tensor, need: Need, workers: int) -> list[Tensor] | None:
    """Cut a tensor into what each worker gets; None where shares would not be equal, or for a sum of whole numbers."""
    if need.part == "R":
        return [tensor] * workers
    if need.part == "P":
        if not tensor.is_floating_point():
            return None
        generator = torch.Generator().manual_seed(workers)
        terms = [torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for _ in range(workers - 1)]
        return [*terms, tensor - sum(terms)]
    dim = int(need.part[1:])
    if dim >= tensor.dim() or tensor.shape[dim] % workers:
        return None
    return [share.contiguous() for share in tensor.chunk(workers, dim)]


def _makes_up(result: Tensor, part: str, parts: Sequence[Tensor]) -> bool:
    """Return whether the workers' parts of a result make up the whole result."""
    if part == "R":
        return all(_equal(result, one) for one in parts)
    if part == "P":
        return all(one.shape == result.shape for one in parts) and _equal(result, sum(parts[1:], parts[0]))
    dim = int(part[1:])
    same = all(one.dim() == result.dim() > dim and one.shape == parts[0].shape for one in parts)
    return same and _equal(result, torch.cat(list(parts), dim))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    # In a format with fewer digits, all but a few of them must agree.
    relative = max(_RELATIVE, _DIGITS_LOST * torch.finfo(one.dtype).eps)
    absolute = (
        relative * float(other.nan_to_num().abs().max()) if one.dtype != torch.float64 and other.numel() else _ABSOLUTE
    )
    return bool(torch.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True))
