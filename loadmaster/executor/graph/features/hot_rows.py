"""A unified tensor whose most-read rows are kept on the GPU as well.

One kernel reads both: for each row it looks up, on the GPU, whether the row is there, and fetches it over the link if
not. Nothing is sorted out first and the host waits for nothing. How many reads found their row is counted on the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.gather import (
    INDEX_DTYPES,
    expect_in_range,
    expect_nodes,
    gather_hot_rows,
    rows_are_contiguous,
)
from loadmaster.executor.graph.features.unified_tensor import UnifiedTensor


class HotRows:
    """Rows of a table, the hot ones kept on the GPU: ``hot_rows[index]`` is what ``table[index]`` is.

    Contents are those of the table when this was made.

    Args:
        table: [nodes, ...], each row contiguous.
        hot: int [rows], which rows are kept, each one time: :func:`hottest` finds them.

    Raises:
        InputError: not a unified tensor, a table whose rows are not contiguous, rows that it does not have, or one
            named twice.
    """

    def __init__(self, table: UnifiedTensor, hot: Tensor) -> None:
        if not isinstance(table, UnifiedTensor):
            raise InputError("table", type(table).__name__, "is no unified tensor", "Make one: unified(tensor).")
        if not table.dim() or not rows_are_contiguous(table.cpu_view):
            raise InputError("table", list(table.shape), "has no rows in one piece", "Give a contiguous table.")
        if hot.dtype not in INDEX_DTYPES or hot.dim() != 1:
            raise InputError(
                "hot", f"{hot.dtype} {list(hot.shape)}", "does not name rows", "Give one dimension of int64 or int32."
            )
        hot = hot.cpu().long()
        expect_nodes("hot", hot, table.shape[0])
        if hot.numel() and int(torch.bincount(hot).max()) > 1:
            raise InputError("hot", f"{hot.numel()} rows", "names a row twice", "Give each row once.")
        self.table = table
        device = table.result_device
        self._rows = table.rows(hot)
        slots = torch.full((table.shape[0],), -1, dtype=torch.int32)
        slots[hot] = torch.arange(hot.numel(), dtype=torch.int32)
        self._slots = slots.to(device)
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole table."""
        return self.table.shape

    @property
    def device_bytes(self) -> int:
        """Bytes of the GPU's memory that rows and their map take."""
        return sum(t.numel() * t.element_size() for t in (self._rows, self._slots))

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows on the GPU: [*index, ...].

        Args:
            index: int32 or int64, any shape, on the GPU or the host.

        Raises:
            InputError: as :func:`loadmaster.executor.graph.features.gather.gather_rows`.
        """
        if not isinstance(index, Tensor):
            raise InputError("index", type(index).__name__, "is no tensor", "Give a tensor of int64 or int32.")
        flat = index.to(self._rows.device).reshape(-1)
        if self.table.debug:
            expect_in_range(flat, self.shape[0])
        found: Tensor = gather_hot_rows(
            self.table.cpu_view, self._rows, self._slots, self._counts, flat, self.table.in_place
        )
        return found.view(*index.shape, *self.shape[1:])

    def hit_rate(self) -> float:
        """The share of rows read since :meth:`forget_reads` that were on the GPU; 0 before any. Waits for the GPU."""
        hits, reads = (int(n) for n in self._counts.tolist())
        return hits / reads if reads else 0.0

    def forget_reads(self) -> None:
        """Count reads for :meth:`hit_rate` from here on."""
        self._counts.zero_()
