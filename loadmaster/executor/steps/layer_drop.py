"""Layers that a model leaves out at random, with a probability of 0: the draw is made, and decides nothing.

Encoders and decoders of transformers (BART, OPT, Whisper, Marian) draw a number for each layer and branch on it, in
most releases also where ``layerdrop`` is 0, its default:

    dropout_probability = torch.rand([])
    if dropout_probability < self.layerdrop:
        continue

A branch on a tensor is in no graph. While the model is traced and called, something else stands for the 0: what
compares itself with a tensor gives a plain ``bool``, as PyTorch's ``__torch_function__`` lets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

NAME = "layerdrop"
LIBRARY = "transformers."


class _Zero:
    """A probability of 0: what is drawn is not below it."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        _types: Iterable[type],
        _args: tuple[Any, ...] = (),
        _kwargs: Mapping[str, Any] | None = None,
    ) -> bool:
        if function is torch.Tensor.lt:  # draw < layerdrop: leave the layer out
            return False
        if function is torch.Tensor.gt:  # draw > layerdrop: run it
            return True
        raise TypeError(f"{NAME} is compared with a draw in another way than < and >")

    def __gt__(self, other: float) -> bool:
        return other < 0.0


_ZERO = _Zero()


class LayerDrop:
    """The modules of a model that may leave out layers. As a context manager: those with probability 0 keep them all.

    Modules are looked for once, and their probabilities each time.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [m for m in model.modules() if NAME in vars(m) and _is_the_librarys(m)]
        self._set: list[tuple[dict[str, Any], float]] = []

    def __enter__(self) -> None:
        self._set = [(vars(m), vars(m)[NAME]) for m in self._modules if vars(m)[NAME] == 0]
        for attributes, _ in self._set:
            attributes[NAME] = _ZERO

    def __exit__(self, *_: object) -> None:
        for attributes, probability in self._set:
            attributes[NAME] = probability


def _is_the_librarys(module: nn.Module) -> bool:
    """Also a class of the user's, or of a wrapper such as FSDP2, that is made from one of the library."""
    return any(base.__module__.startswith(LIBRARY) for base in type(module).__mro__)
