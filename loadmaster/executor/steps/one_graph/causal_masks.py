"""Masks of ``nn.Transformer``, taken as given: PyTorch checks whether they are causal, and branches on the result.

    tgt_is_causal = _detect_is_causal_mask(tgt_mask, tgt_is_causal, seq_len)    # bool((mask == causal).all())

A branch on a tensor cannot be in a graph. The result is only a hint: without it, attention computes with the mask that
it is given. So a planned step does not check. A model that says ``is_causal=True`` is believed, as always, and gets
the kernel for it.
"""

from __future__ import annotations

import torch
from torch.nn.modules import transformer

from loadmaster.executor.steps.one_graph.patched import Change

NAME = "_detect_is_causal_mask"


def _as_told(_mask: torch.Tensor | None, is_causal: bool | None = None, _size: int | None = None) -> bool:
    return is_causal is True


MASKS_AS_GIVEN: Change = (transformer, NAME, _as_told)
"""Change that lets ``nn.Transformer`` take masks as they are."""
