"""Guards of a call: everything except the model's own code that decides which graph a step becomes.

When a call becomes another graph than the planned one, the user needs to hear how the calls differ; and a call whose
guards are known to have no plan need not be traced again. Another version of PyTorch may trace another graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.models.envelope import Plan

Guards = Mapping[str, str]
"""Description of every guarded thing, by its name in the user's words. Equal guards give equal graphs."""


def guards_of(model: nn.Module, batch: Batch) -> Guards:
    """Collect the guards of a call of the model with this batch in its present state."""
    found = {f"input {name}": _described(value) for name, value in batch.named_leaves()}
    devices = {t.device.type for t in (*model.parameters(), *tensors(batch))}
    for device in sorted(devices - {"meta"}):
        on = torch.is_autocast_enabled(device)
        found[f"autocast on {device}"] = str(torch.get_autocast_dtype(device)) if on else "off"
    for name, module in model.named_modules():
        found[f"mode of {name or 'the model'}"] = "train" if module.training else "eval"
    for name, parameter in model.named_parameters():
        found[f"parameter {name}"] = _described(parameter)
    return found


def differences(planned: Guards, now: Guards, most: int = 3) -> str:
    """Describe the guards that differ, at most so many; empty if none does."""
    names = [n for n in (*planned, *(n for n in now if n not in planned)) if planned.get(n) != now.get(n)]
    told = [f"{n} is {now.get(n, 'missing')}, planned for {planned.get(n, 'none')}" for n in names[:most]]
    return "; ".join([*told, f"{len(names) - most} more"] if len(names) > most else told)


def _described(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)[:80]
    laid_out = "" if value.layout is not torch.strided or value.is_contiguous() else f", strides {value.stride()}"
    trained = ", requires a gradient" if value.requires_grad else ""
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device.type}{laid_out}{trained}"


def captured_with() -> Mapping[str, str]:
    """Version of PyTorch in this process, for the problem document: ``2.13.0`` of ``2.13.0+cu130``."""
    return {"torch": str(torch.__version__).partition("+")[0]}


def other_versions(plans: Sequence[Plan]) -> str | None:
    """Warning if all plans were captured with other versions of PyTorch than this one; else None."""
    here = captured_with()["torch"]
    found = [None if plan.captured_with is None else plan.captured_with.get("torch") for plan in plans]
    named = sorted({version for version in found if version is not None})
    if not named or None in found or here in named:
        return None
    return f"was captured with torch {' and '.join(named)}, this is {here}"
