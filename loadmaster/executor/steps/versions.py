"""Version of PyTorch that a graph was traced with: another one may trace another graph of the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from loadmaster.models.envelope import Plan


def captured_with() -> Mapping[str, str]:
    """Version of PyTorch in this process, for the problem document."""
    return {"torch": _public(torch.__version__)}


def other_versions(plans: Sequence[Plan]) -> str | None:
    """Warning if all plans were captured with other versions of PyTorch than this one; else None."""
    here = _public(torch.__version__)
    found = [None if plan.captured_with is None else plan.captured_with.get("torch") for plan in plans]
    named = sorted({version for version in found if version is not None})
    if not named or None in found or here in named:
        return None
    return f"was captured with torch {' and '.join(named)}, this is {here}"


def _public(version: str) -> str:
    """Release of a version, without the build: ``2.13.0`` of ``2.13.0+cu130``."""
    return str(version).partition("+")[0]
