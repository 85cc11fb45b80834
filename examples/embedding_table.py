"""An embedding table keyed by hashed ids: rows are made for ids as they come, and no id shares a row with another.

    python -m examples.embedding_table

A table of fixed size takes ids modulo its rows, so that ids collide. Here an index says which row an id has.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from loadmaster.executor.index import HashTable, Index


class EmbeddingTable(nn.Module):
    """Rows for 64-bit ids. Ids that come when all rows are taken share the last one.

    Args:
        rows: how many ids it can hold, and one for the rest.
        width: of a row.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows + 1, width, sparse=True)
        none = torch.empty(0, dtype=torch.int64)
        self.index = Index(none, none, HashTable())

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of the ids. In training, ids that are new get theirs."""
        flat = ids.reshape(-1)
        if self.training:
            self._add(flat)
        rows, found = self.index.lookup(flat)
        return self.embedding(torch.where(found, rows, self.rest).reshape(ids.shape))

    @property
    def rest(self) -> int:
        """The row of ids that have none."""
        return self.embedding.num_embeddings - 1

    def _add(self, flat: Tensor) -> None:
        _, found = self.index.lookup(flat)
        new = flat[~found].unique()
        taken = len(self.index)
        new = new[: self.rest - taken]
        self.index.insert(new, torch.arange(taken, taken + len(new)))

    def save(self, folder: Path) -> None:
        """The rows and the index, side by side."""
        torch.save(self.state_dict(), folder / "rows.pt")
        self.index.save(folder / "index")

    def restore(self, folder: Path) -> None:
        """What ``save`` wrote, into a table of the same size."""
        self.load_state_dict(torch.load(folder / "rows.pt"))
        self.index = Index.load(folder / "index")


def hashed(name: str) -> int:
    """An id of 64 bits, signed as those of PyTorch are."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def main() -> None:
    """Learn which of ten thousand users like which of a hundred items, save the tables, serve from what was saved."""
    torch.manual_seed(0)
    users = torch.tensor([hashed(f"user {n}") for n in range(10_000)])
    items = torch.tensor([hashed(f"item {n}") for n in range(100)])
    taste = (torch.randn(10_000, 2) @ torch.randn(2, 100) > 0).float()
    tables = EmbeddingTable(10_000, 8), EmbeddingTable(100, 8)
    optimizer = torch.optim.SparseAdam([p for table in tables for p in table.parameters()], lr=0.05)

    def loss() -> Tensor:
        user, item = torch.randint(10_000, (4096,)), torch.randint(100, (4096,))
        score = (tables[0](users[user]) * tables[1](items[item])).sum(-1)
        return nn.functional.binary_cross_entropy_with_logits(score, taste[user, item])

    for step in range(201):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3d}: loss {value.item():.3f}, {len(tables[0].index)} users")
    with tempfile.TemporaryDirectory() as folder:
        tables[0].save(Path(folder))
        served = EmbeddingTable(10_000, 8).eval()
        served.restore(Path(folder))
    assert torch.equal(served(users[:100]), tables[0].eval()(users[:100]))
    print(f"served from what was saved: {served.index}")


if __name__ == "__main__":
    main()
