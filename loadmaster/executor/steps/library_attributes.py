"""Attributes of transformers' modules that break a step's graph and decide nothing in it.

``layerdrop``: encoders and decoders (BART, OPT, Whisper, Marian) draw a number for each layer and branch on it, in most
releases also where it is 0, its default. A branch on a tensor is in no graph:

    dropout_probability = torch.rand([])
    if dropout_probability < self.layerdrop:
        continue

``_requires_grad``: models of audio (Wav2Vec2, HuBERT, WavLM) make a view of their input require a gradient. Nobody
reads it; checkpoints inside are run again for it. A tensor in the middle of a graph cannot become a leaf:

    if self._requires_grad and self.training:
        hidden_states.requires_grad = True

While a model is traced and called, something else stands for the 0, and False for the True.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

LIBRARY = "transformers."


class _Zero:
    """A probability of 0: what is drawn is not below it. What compares itself with a tensor gives a plain ``bool``, as
    PyTorch's ``__torch_function__`` lets it."""

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
        raise TypeError("layerdrop is compared with a draw in another way than < and >")

    def __gt__(self, other: float) -> bool:
        return other < 0.0


# By name: the value that something stands for, and what does.
_REPLACEMENTS: dict[str, tuple[Any, Any]] = {"layerdrop": (0, _Zero()), "_requires_grad": (True, False)}


class LibraryAttributes:
    """The modules of a model that have such attributes. As a context manager: inside, others stand for them.

    Modules are looked for once, and their attributes each time.
    """

    def __init__(self, model: nn.Module) -> None:
        library = [m for m in model.modules() if _is_the_librarys(m)]
        self._found = [(vars(m), name) for m in library for name in _REPLACEMENTS if name in vars(m)]
        self._set: list[tuple[dict[str, Any], str, Any]] = []

    def __enter__(self) -> None:
        self._set = [(own, name, own[name]) for own, name in self._found if own[name] == _REPLACEMENTS[name][0]]
        for own, name, _ in self._set:
            own[name] = _REPLACEMENTS[name][1]

    def __exit__(self, *_: object) -> None:
        for own, name, value in self._set:
            own[name] = value


def _is_the_librarys(module: nn.Module) -> bool:
    """Also a class of the user's, or of a wrapper such as FSDP2, that is made from one of the library."""
    return any(base.__module__.startswith(LIBRARY) for base in type(module).__mro__)
