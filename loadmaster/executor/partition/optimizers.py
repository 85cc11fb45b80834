"""Optimizers on shares: one that is not known to update each element by itself is tried on small shares first.

Shares are ``DTensor``s, so an optimizer that needs norms or products of whole tensors most often gets them. Where it
does not, or PyTorch has no rule for one of its operators, its first step is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from loadmaster.errors import InputError
from loadmaster.executor.steps.optimizers import closure_of

logger = logging.getLogger(__name__)

# These update each element by itself, and PyTorch has rules for all that they run.
ELEMENTWISE = {optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta}
ELEMENTWISE |= {optim.Adagrad, optim.ASGD, optim.RMSprop}
# Tolerance relative to the norm of an update: optimizers that round to bfloat16 on their way differ by some percent
# from sum to sum; one that takes a share for the whole differs by more than half, since the trial's shares differ.
_CLOSE = 0.1
_STEPS = 2

_shares: WeakIdKeyDictionary = WeakIdKeyDictionary()
_right: WeakIdKeyDictionary = WeakIdKeyDictionary()


def expect_right_updates(shares: Iterable[nn.Parameter]) -> None:
    """Register these shares so that every optimizer of them is tried at its first step, on all ranks; ``step()`` raises
    an :class:`InputError` where it does not do on shares what it does on whole tensors."""
    _watch()
    for share in shares:
        if isinstance(share, DTensor):
            _shares[share] = True


@cache
def _watch() -> None:
    register_optimizer_step_pre_hook(_expect)


def _expect(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if type(optimizer) in ELEMENTWISE or optimizer in _right:
        return
    groups = [{**group, "params": [p for p in group["params"] if p in _shares]} for group in optimizer.param_groups]
    if any(group["params"] for group in groups):
        has_closure = closure_of(args, kwargs) is not None
        _Trial(optimizer, [group for group in groups if group["params"]], has_closure=has_closure).run()
    _right[optimizer] = True


class _Trial:
    """Trial of some steps of another optimizer of that kind, on small shares and on the same whole tensors. Small
    shares are of equal size; unequal ones refuse by themselves what is more than elementwise. The parameters of
    ``groups`` give the placements."""

    def __init__(self, optimizer: Optimizer, groups: list[dict[str, Any]], *, has_closure: bool) -> None:
        self._kind: Any = type(optimizer)
        self._optimizer, self._groups, self._has_closure = optimizer, groups, has_closure
        # One share for each rank, placement and dtype.
        unlike = [{(p.dim(), p.placements, p.dtype): p for p in group["params"]}.values() for group in groups]
        self._small = [[(_small(share), share) for share in shares] for shares in unlike]

    def run(self) -> None:
        """Compare updated shares with updated whole tensors; InputError if they differ, or shares cannot be updated."""
        kind, remedy = self._kind.__name__, "Use torch.optim.AdamW, or another one that updates shares rightly."
        try:
            whole = self._updated([[nn.Parameter(one.clone()) for one, _ in group] for group in self._small])
        except Exception as error:  # noqa: BLE001, whatever its constructor wants
            words = "%s was not tried on small shares, for a second one of it does not run: %s"
            logger.warning(words, kind, str(error).splitlines()[0])
            return
        try:
            split = self._updated([[_split(one, share) for one, share in group] for group in self._small])
        except Exception as error:
            reason = f"does not run on shares: {str(error).splitlines()[0]}"
            raise InputError("optimizer", kind, reason, remedy) from error
        begun = [one for group in self._small for one, _ in group]
        for before, wanted, found in zip(begun, whole, split, strict=True):
            assert isinstance(found, DTensor)
            difference, update = (torch.linalg.vector_norm(x - wanted) for x in (found.full_tensor(), before))
            if not difference <= _CLOSE * update:
                reason = f"updates shares of a tensor of shape {list(before.shape)} otherwise than the whole tensor"
                raise InputError("optimizer", kind, reason, remedy)

    def _updated(self, parameters: list[list[nn.Parameter]]) -> list[Tensor]:
        """Run the optimizer on parameters, a list for each group; return their new values, flat."""
        groups = [{**group, "params": own} for group, own in zip(self._groups, parameters, strict=True)]
        optimizer = self._kind(groups, **self._optimizer.defaults)
        flat = [parameter for group in parameters for parameter in group]
        for step in range(_STEPS):
            for parameter in flat:
                values = _values(parameter.shape, parameter, step + 1)
                parameter.grad = _split(values, parameter).detach() if isinstance(parameter, DTensor) else values
            optimizer.step(*([lambda: torch.zeros(())] if self._has_closure else []))
        return [parameter.detach() for parameter in flat]


def _small(share: DTensor) -> Tensor:
    """Make a small tensor that can be split as a share is."""
    extents = [2] * share.dim()
    for size, part in zip(share.device_mesh.shape, share.placements, strict=True):
        if not part.is_replicate():
            extents[part.dim] *= size  # type: ignore[attr-defined]
    return _values(torch.Size(extents), share, 0)


def _values(shape: torch.Size, share: Tensor, step: int) -> Tensor:
    """Values that grow with the place, so that all shares differ. Nothing is drawn from the user's generators."""
    at = torch.arange(1, shape.numel() + 1, dtype=torch.float64)
    values = (at * (at + step)).sin() * 4 ** (6 * at / shape.numel())
    return values.view(shape).to(share.device, share.dtype)


def _split(whole: Tensor, share: DTensor) -> nn.Parameter:
    split = distribute_tensor(whole, share.device_mesh, share.placements, src_data_rank=None)
    return nn.Parameter(split)
