"""What two calls differ in is told in words."""

from __future__ import annotations

import torch
from torch import nn

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.guards import differences, guards_of


def test_tensors_laid_out_otherwise_are_told_by_their_strides() -> None:
    model, images = nn.Conv2d(3, 2, 1), torch.randn(4, 3, 6, 6)
    before = guards_of(model, Batch((images,), {}))
    now = guards_of(model, Batch((images.to(memory_format=torch.channels_last),), {}))
    told = "input [0] is (4, 3, 6, 6) float32 on cpu, strides (108, 1, 18, 3), planned for (4, 3, 6, 6) float32 on cpu"
    assert differences(before, now) == told
    assert differences(before, before) == ""
