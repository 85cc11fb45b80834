"""The blocks of docs/key-index.md, as they stand, and the example of an embedding table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import loadmaster
from examples import embedding_table
from examples.embedding_table import EmbeddingTable, hashed
from loadmaster.executor.index import Checked, HashTable, Index
from loadmaster.models.index.features import features
from loadmaster.models.index.generators import make_trace
from loadmaster.models.index.presets import problem_of
from tests.architecture.sources import ROOT


def test_the_blocks_of_the_page_run(implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third, fourth = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "key-index.md").read_text("utf-8"), re.S
    )
    names: dict[str, object] = {}
    exec(compile(first, "key-index.md", "exec"), names)
    assert [array.tolist() for array in (names["new"], names["keys"], names["payloads"])] == [  # type: ignore[attr-defined]
        [True, False],
        [10, 20, 30],
        [1, 2, 9],
    ]
    assert list(Index.load("ids.index").items()) == [(10, 1), (20, 2), (30, 9), (40, 4)]
    names |= {"keys": np.arange(100), "payloads": np.arange(100)}
    exec(compile(second, "key-index.md", "exec"), names)
    assert isinstance(names["index"], Index) and names["index"].configuration == HashTable()
    problem = problem_of("store", [("users", features(make_trace("uniform", 100, 100)))])
    names |= {"loadmaster": loadmaster, "problem": problem, "plan": loadmaster.plan(problem, budget_bytes="1MiB")}
    names |= {"users": Index([1], [1])}
    exec(compile(third, "key-index.md", "exec"), names)
    assert names["checked"] == Checked(0.0)
    ids = torch.tensor([5, 3, 5, 1 << 40])
    names |= {"torch": torch, "index": Index([], []), "ids": ids, "embedding": torch.nn.Embedding(10, 4)}
    exec(compile(fourth, "key-index.md", "exec"), names)
    vectors = names["vectors"]
    assert isinstance(vectors, torch.Tensor)
    assert torch.equal(vectors[0], vectors[2]) and len({tuple(v) for v in vectors.tolist()}) == 3


def test_ids_get_rows_of_their_own_until_none_are_left(implementation: str, tmp_path: Path) -> None:
    table = EmbeddingTable(3, 4)
    ids = torch.tensor([[hashed("a"), hashed("b")], [hashed("a"), hashed("c")]])
    rows = table(ids)
    assert rows.shape == (2, 2, 4)
    assert torch.equal(rows[0, 0], rows[1, 0])
    assert len({tuple(row) for row in rows.reshape(-1, 4).tolist()}) == 3
    rest = table.embedding.weight[3]
    assert torch.equal(table(torch.tensor([hashed("d")]))[0], rest)
    assert torch.equal(table.eval()(torch.tensor([hashed("e")]))[0], rest)
    table.save(tmp_path)
    served = EmbeddingTable(3, 4).eval()
    served.restore(tmp_path)
    assert torch.equal(served(ids), rows)


def test_the_example_runs(implementation: str, capsys: pytest.CaptureFixture[str]) -> None:
    embedding_table.main()
    losses = [float(loss) for loss in re.findall(r"loss (\S+),", capsys.readouterr().out)]
    assert losses[-1] < 0.5 * losses[0]
