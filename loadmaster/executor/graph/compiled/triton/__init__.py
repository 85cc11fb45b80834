"""Generated Triton kernels: the kernels of a schedule, written for exactly the values that they store ([Wu24] 3.3.3).

    source, rows, expressions    the text of a kernel and its file; values as expressions, down to what is held
    traverse, gemm, maps         the templates; ``fold`` is PyTorch's own batched product
    generated                    products of tiles, and what a template makes
    tables                       what kernels read of one graph
    launching, building          light launches, all of it put together: what is generated for one graph serves every
                                 other that is cut in the same way

Triton is imported when the first kernel is built.
"""

from __future__ import annotations

from loadmaster.executor.graph.compiled.triton.building import TritonKernel

__all__ = ["TritonKernel"]
