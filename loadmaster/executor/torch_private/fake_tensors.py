"""Fake tensors: shapes, types and layouts without memory. PyTorch documents them and exports them from here only."""

from __future__ import annotations

from loadmaster.executor.torch_private import needed

with needed():
    # Mode of the fake tensors among some values: new ones must be of the same mode.
    from torch._guards import detect_fake_mode as detect_fake_mode

    # Errors of operators whose result's shape or value depends on data that a fake tensor lacks.
    from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
    from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException

    # Fake tensors and the mode that makes them.
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode

    # Real computation in the midst of a trace: without it a mode that is on would make even constants fake.
    from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
