"""Masks of ``nn.Transformer``: PyTorch looks whether they are causal, and branches on what it finds.

    tgt_is_causal = _detect_is_causal_mask(tgt_mask, tgt_is_causal, seq_len)    # bool((mask == causal).all())

A branch on a tensor is in no graph. What is found is a hint: attention that has none computes with the mask that it is
given. So nobody looks in a planned step. A model that says ``is_causal=True`` is believed, as always, and gets the
kernel for it.
"""

from __future__ import annotations

import torch
from torch.nn.modules import transformer

from loadmaster.executor.steps.one_graph.patched import Change

NAME = "_detect_is_causal_mask"


def _as_told(_mask: torch.Tensor | None, is_causal: bool | None = None, _size: int | None = None) -> bool:
    return is_causal is True


MASKS_AS_GIVEN: Change = (transformer, NAME, _as_told)
"""``nn.Transformer`` takes masks as they are."""
