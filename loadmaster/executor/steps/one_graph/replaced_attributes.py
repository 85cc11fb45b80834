"""Attributes that have other values while a step is traced and run: PyTorch's, and those of libraries of models.

Some attributes and hooks of transformers and PEFT break a step's graph and decide nothing in it.

``layerdrop``: encoders and decoders (BART, OPT, Whisper, Marian) draw a number for each layer and branch on it, in most
releases also where it is 0, its default. A branch on a tensor cannot be in a graph:

    dropout_probability = torch.rand([])
    if dropout_probability < self.layerdrop:
        continue

``_requires_grad``: models of audio (Wav2Vec2, HuBERT, WavLM) make a view of their input require a gradient. Nobody
reads it; checkpoints inside are run again for it. A tensor in the middle of a graph cannot become a leaf:

    if self._requires_grad and self.training:
        hidden_states.requires_grad = True

``module_dropout``: adapters of PEFT (LoHa, LoKr) do as layers with ``layerdrop`` do, with a number for each adapter.

``make_inputs_require_grad``: a hook that both add, and people copy, makes embeddings require a gradient. Nobody reads
it either; checkpoints of frozen layers are run again for it:

    model.get_input_embeddings().register_forward_hook(make_inputs_require_grad)

While a model is traced and called, something else stands for the 0, False for the True, and for the hook one that does
nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from loadmaster.executor.torch_private.modules import forward_hooks_of

Change = tuple[Any, str, Any]
"""Owner, name of its attribute, and the value that this attribute is to have."""


@contextlib.contextmanager
def patched(*changes: Change) -> Iterator[None]:
    """Give attributes other values inside the block. Every step enters here, and ``unittest.mock`` would take tens of
    microseconds."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for change in changes:
            setattr(*change)
        yield
    finally:
        for change in before:
            setattr(*change)


LIBRARIES = ("transformers.", "peft.")
HOOK = "make_inputs_require_grad"  # or _grads


class _Zero:
    """Stand-in for a probability of 0: no draw is below it. Comparing it with a tensor gives a plain ``bool``, by
    PyTorch's ``__torch_function__``."""

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


class _Place(NamedTuple):
    """Entry of a module's dictionary, the value that is replaced there, and its stand-in."""

    held_in: dict[Any, Any]
    key: Any
    value: Any
    stand_in: Any


class LibraryAttributes:
    """Context manager that replaces a model's attributes and hooks of this kind by stand-ins inside the block. They are
    looked for once, their values at each entry."""

    def __init__(self, model: nn.Module) -> None:
        self._found = [place for module in model.modules() for place in _places(module)]
        self._set: list[tuple[_Place, Any]] = []

    def __enter__(self) -> None:
        self._set = [(p, p.held_in[p.key]) for p in self._found if p.held_in.get(p.key) == p.value]
        for place, _ in self._set:
            place.held_in[place.key] = place.stand_in

    def __exit__(self, *_: object) -> None:
        for place, value in self._set:
            place.held_in[place.key] = value


def _places(module: nn.Module) -> Iterator[_Place]:
    for key, hook in forward_hooks_of(module).items():
        if getattr(hook, "__name__", "").startswith(HOOK):
            yield _Place(forward_hooks_of(module), key, hook, lambda *_: None)
    if not any(base.__module__.startswith(LIBRARIES) for base in type(module).__mro__):  # so below FSDP2 as well
        return
    own = vars(module)
    if "layerdrop" in own:
        yield _Place(own, "layerdrop", 0, _Zero())
    if "_requires_grad" in own:
        yield _Place(own, "_requires_grad", True, False)
    for adapter in own.get("module_dropout", {}):
        yield _Place(own["module_dropout"], adapter, 0, _Zero())
