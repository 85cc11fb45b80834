"""Entries of the zoo: a model, one batch of it and its loss, as its library's own documentation calls them.

A library is imported when one of its models is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")
# A model; a batch, positional (its last item the target) or by keyword; a loss, or None if the output holds it.
Example = tuple[nn.Module, Sequence[Any] | Mapping[str, Any], Callable[..., Tensor] | None]


@dataclass(frozen=True)
class Entry:
    """A model of a library.

    Attributes:
        name: as the table shows it.
        library: the package it is from.
        sort: what it is for.
        make: builds it from a small configuration, with random weights.
    """

    name: str
    library: str
    sort: str
    make: Callable[[], Example]

    def build(self) -> Example:
        """Build the model in training, its batch and its loss; the same every time."""
        torch.manual_seed(0)
        model, batch, loss = self.make()
        return model.train(), batch, loss


def entries(library: str, found: Mapping[str, tuple[str, Callable[[], Example]]]) -> tuple[Entry, ...]:
    """Make the entries of a library from ``{name: (sort, make)}``."""
    return tuple(Entry(name, library, sort, make) for name, (sort, make) in found.items())


def of_library(library: str) -> tuple[Entry, ...]:
    """List the entries of one library.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module(f"benchmarks.zoo.{library}_models").MODELS  # type: ignore[no-any-return]


def entry(name: str) -> Entry:
    """Find an entry by ``LIBRARY/MODEL``."""
    library, _, model = name.partition("/")
    found = {e.name: e for e in of_library(library)} if library in LIBRARIES else {}
    if model not in found:
        raise ValueError(f"{name} is no model of the zoo. Give LIBRARY/MODEL: {', '.join(found) or LIBRARIES}.")
    return found[model]


def undropped(config: Any) -> Any:
    """Take dropout out of a configuration, so that gradients can be compared with plain PyTorch's."""
    for name, value in vars(config).items():
        if isinstance(value, float) and ("drop" in name or name.endswith("_pdrop")):
            setattr(config, name, 0.0)
    return config
