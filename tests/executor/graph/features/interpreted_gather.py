"""The gather kernel in Triton's interpreter, on a CPU, against PyTorch's indexing.

A program of its own, for two reasons: Triton decides at its import whether to interpret, and the interpreter checks no
bounds, so that a store out of range may end the process. What the kernel writes to lies between guards here, which must
be whole afterwards. Prints {name of the case: what went wrong, or nothing} as one line of JSON.
"""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor

from loadmaster.executor.graph.features import gather_kernel
from loadmaster.executor.graph.features.canaries import canary_table, differing_rows
from tests.executor.interpreted_cases import Cases

WIDTHS = (1, 11, 32, 100, 128, 513)
DTYPES = (torch.float32, torch.float16, torch.int64)
ROWS = 9
GUARD_ROWS = 3
INDEX = torch.tensor([8, 0, 3, 3, -1, 5, -9])
case = Cases()


def contents(*shape: int, dtype: torch.dtype) -> Tensor:
    """Any bits, so that a float may be a NaN."""
    size_bytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (size_bytes,), dtype=torch.uint8).view(dtype).view(shape)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


class Guarded:
    """Room for a result, with guard rows either side."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        rows = shape[0] + 2 * GUARD_ROWS
        self.buffer = torch.full((rows, *shape[1:]), 77, dtype=dtype)
        self.result = self.buffer[GUARD_ROWS : GUARD_ROWS + shape[0]]

    def expect(self, want: Tensor) -> None:
        assert torch.equal(bits(self.result), bits(want))
        assert bool((self.buffer[:GUARD_ROWS] == 77).all()) and bool((self.buffer[-GUARD_ROWS:] == 77).all())


def expect_gather(table: Tensor, index: Tensor) -> None:
    room = Guarded((index.numel(), *table.shape[1:]), table.dtype)
    gather_kernel.gather(table, index, room.result)
    room.expect(table[index])


@case
def rows_of_every_width_and_dtype() -> None:
    for width in WIDTHS:
        for dtype in DTYPES:
            expect_gather(contents(ROWS, width, dtype=dtype), INDEX)


@case
def narrow_indices_one_row_and_none() -> None:
    table = contents(ROWS, 100, dtype=torch.float32)
    expect_gather(table, INDEX.int())
    expect_gather(table, INDEX[:1])
    expect_gather(table, INDEX[:0])


@case
def tables_that_begin_behind_a_line_or_have_longer_strides() -> None:
    memory = contents(ROWS * 600, dtype=torch.float32)
    for first, width, stride in ((1, 100, 100), (16, 128, 128), (3, 40, 64), (0, 64, 96), (5, 11, 12)):
        expect_gather(memory[first:].as_strided((ROWS, width), (stride, 1)), INDEX)
    halves = contents(ROWS * 99 + 1, dtype=torch.float16)
    expect_gather(halves[1:].view(ROWS, 99), INDEX)
    expect_gather(contents(ROWS, dtype=torch.int64), INDEX)
    expect_gather(contents(ROWS, 3, 5, 7, dtype=torch.int8), INDEX)


@case
def launches_of_other_sizes() -> None:
    table = contents(ROWS, 513, dtype=torch.float32)
    for sizes in ({"TILE_BYTES": 4096, "COLUMNS_BYTES": 1024}, {"COLUMNS_BYTES": 512, "PROGRAMS_PER_PROCESSOR": 1}):
        with mock.patch.multiple(gather_kernel, **sizes):
            expect_gather(table, INDEX)


@case
def rows_out_of_range_give_zeros() -> None:
    table, index = contents(ROWS, 100, dtype=torch.int64), torch.tensor([2, ROWS, -ROWS - 1, 2**40, 4])
    room = Guarded((5, 100), table.dtype)
    gather_kernel.gather(table, index, room.result)
    want = torch.zeros(5, 100, dtype=table.dtype)
    want[0], want[4] = table[2], table[4]
    room.expect(want)


@case
def hot_rows_and_their_counts() -> None:
    for width, dtype, hot in (
        (100, torch.float32, [3, 8]),
        (128, torch.float32, [0, 5, 1]),
        (11, torch.float16, [3]),
        (513, torch.int64, [8, 7, 6, 5, 4, 3, 2, 1, 0]),
        (40, torch.float32, []),
    ):
        table = contents(ROWS, width, dtype=dtype)
        rows = table[torch.tensor(hot, dtype=torch.int64)]
        on_host = table.clone()
        on_host[torch.tensor(hot, dtype=torch.int64)] = 0  # these must come from where they are kept
        slots = torch.full((ROWS,), -1, dtype=torch.int32)
        slots[torch.tensor(hot, dtype=torch.int64)] = torch.arange(len(hot), dtype=torch.int32)
        counts = torch.tensor([10, 20])
        room = Guarded((INDEX.numel(), width), dtype)
        gather_kernel.gather(on_host, INDEX, room.result, (rows, slots, counts))
        room.expect(table[INDEX])
        found = sum(int(i) % ROWS in hot for i in INDEX.tolist())
        assert counts.tolist() == [10 + found, 20 + INDEX.numel()]


@case
def canaries_live() -> None:
    def read(table: Tensor, index: Tensor) -> Tensor:
        result = torch.empty(index.numel(), *table.shape[1:], dtype=table.dtype)
        gather_kernel.gather(table, index, result)
        return result

    cpu = torch.device("cpu")
    assert differing_rows(canary_table(cpu), cpu, read) == 0


if __name__ == "__main__":
    case.run()
