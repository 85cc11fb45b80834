"""Generalized sparse kernels: g-SpMM reduces edges' messages to nodes, g-SDDMM makes edges' values of nodes'.

Operators of PyTorch in the namespace ``loadmaster``, with Triton kernels on GPUs and plain PyTorch elsewhere.
"""

from __future__ import annotations

from loadmaster.executor.graph.kernels import gradients as _gradients  # noqa: F401 - registers them
from loadmaster.executor.graph.kernels import softmax as _softmax  # noqa: F401 - registers its operator
