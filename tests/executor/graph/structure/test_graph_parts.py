"""Subgraphs, batches, files and conversions keep nodes, edges and data."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError, MissingExtraError
from loadmaster.executor.graph.structure import conversions
from loadmaster.executor.graph.structure.batches import batch, readout_edges, readout_nodes, unbatch
from loadmaster.executor.graph.structure.conversions import load_graphs, save_graphs
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.graph.structure.sampling import NeighbourSampler
from loadmaster.executor.graph.structure.selection import edge_subgraph, node_subgraph, relation_subgraph

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def library(seed: int = 0, authors: int = 3, papers: int = 4, edges: int = 6) -> Graph:
    """With numbers on everything that tell it apart."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> torch.Tensor:
        return torch.randint(0, max(1, count), (edges if count else 0,), generator=generator)

    pairs = {WRITES: (ids(authors), ids(papers)), CITES: (ids(papers), ids(papers))}
    graph = Graph.from_relations(pairs, {"author": authors, "paper": papers})
    for i, name in enumerate(graph.node_types):
        graph.nodes[name].data["h"] = torch.arange(graph.num_nodes(name)) + 100.0 * (i + 1) + 1000 * seed
    for r in graph.relations:
        graph.edges[r].data["w"] = torch.rand(graph.num_edges(r), generator=generator)
    return graph


def edge_list(graph: Graph, triple: Any) -> Counter[tuple[float, float, float]]:
    """Edges by the numbers on both ends and on themselves."""
    source, destination = (ids.long() for ids in graph.edges(triple))
    first, last = (graph.nodes[triple[i]].data["h"] for i in (0, 2))
    weights = graph.edges[triple].data["w"]
    return Counter(zip(first[source].tolist(), last[destination].tolist(), weights.tolist(), strict=True))


def same(one: Graph, other: Graph) -> None:
    assert one.schema == other.schema and one.relation_ptr == other.relation_ptr
    assert torch.equal(one.source, other.source) and torch.equal(one.destination, other.destination)
    for name in one.node_types:
        assert torch.equal(one.nodes[name].data["h"], other.nodes[name].data["h"])
    for r in one.relations:
        assert torch.equal(one.edges[r].data["w"], other.edges[r].data["w"])


@settings(max_examples=30)
@given(st.integers(0, 99), st.data())
def test_a_subgraph_of_nodes_has_all_edges_between_them(seed: int, data: st.DataObject) -> None:
    graph = library(seed)
    chosen = {
        name: data.draw(st.lists(st.integers(0, graph.num_nodes(name) - 1), unique=True)) for name in graph.node_types
    }
    part = node_subgraph(graph, chosen)
    kept = {name: graph.nodes[name].data["h"][chosen[name]].tolist() for name in graph.node_types}
    for name in graph.node_types:
        assert part.nodes[name].data["h"].tolist() == kept[name]
        assert part.nodes[name].data["_ID"].tolist() == chosen[name]
    for triple in graph.relations:
        want = Counter(
            {e: n for e, n in edge_list(graph, triple).items() if e[0] in kept[triple[0]] and e[1] in kept[triple[2]]}
        )
        assert edge_list(part, triple) == want
        ids = part.edges[triple].data["_ID"].long()
        assert torch.equal(graph.edges[triple].data["w"][ids], part.edges[triple].data["w"])


@settings(max_examples=30)
@given(st.integers(0, 99), st.booleans(), st.data())
def test_a_subgraph_of_edges_has_their_ends(seed: int, keep: bool, data: st.DataObject) -> None:
    graph = library(seed)
    chosen = {r: data.draw(st.lists(st.integers(0, graph.num_edges(r) - 1), unique=True)) for r in graph.relations}
    part = edge_subgraph(graph, chosen, keep_nodes=keep)
    for triple in graph.relations:
        assert part.edges[triple].data["_ID"].tolist() == chosen[triple]
        weights = graph.edges[triple].data["w"][chosen[triple]].tolist()
        assert edge_list(part, triple) == Counter(
            {e: n for e, n in edge_list(graph, triple).items() if e[2] in weights}
        )
    ends = {(t[i], int(graph.edges(t)[i // 2][e])) for t in graph.relations for e in chosen[t] for i in (0, 2)}
    for name in graph.node_types:
        want = list(range(graph.num_nodes(name))) if keep else sorted(n for kind, n in ends if kind == name)
        assert part.nodes[name].data["_ID"].tolist() == want


def test_a_subgraph_of_relations_has_the_types_at_their_ends() -> None:
    graph = library()
    part = relation_subgraph(graph, ["cites"])
    assert part.node_types == ("paper",) and part.relations == (CITES,)
    assert edge_list(part, CITES) == edge_list(graph, CITES)
    same(relation_subgraph(graph, [CITES, WRITES]), graph)


def test_subgraphs_take_truths_and_refuse_what_is_not_there() -> None:
    graph = Graph([0, 1, 2], [1, 2, 0])
    assert node_subgraph(graph, torch.tensor([True, True, False])).num_edges() == 1
    assert edge_subgraph(graph, torch.tensor([False, False, True])).ndata["_ID"].tolist() == [0, 2]
    with pytest.raises(InputError, match="names no node"):
        node_subgraph(graph, [3])
    with pytest.raises(InputError, match="names no edge"):
        edge_subgraph(graph, [3])


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4))
def test_a_batch_can_be_taken_apart_again(sizes: list[tuple[int, int, int]]) -> None:
    graphs = [library(seed, authors, papers, edges=4 if authors else 0) for seed, authors, papers in sizes]
    whole = batch(graphs)
    assert whole.batch_size == len(graphs) and whole.num_edges() == sum(g.num_edges() for g in graphs)
    for triple in whole.relations:
        want: Counter[tuple[float, float, float]] = sum((edge_list(g, triple) for g in graphs), Counter())
        assert edge_list(whole, triple) == want
    for one, other in zip(unbatch(whole), graphs, strict=True):
        same(one, other)


def test_each_graph_of_a_batch_is_reduced() -> None:
    graphs = [Graph([0], [1]), Graph([], []), Graph([0, 0], [0, 0], node_count=1)]
    for graph in graphs:
        graph.ndata["h"] = torch.arange(1.0, 1 + graph.num_nodes())[:, None] * 2
        graph.ndata["a"] = torch.full((graph.num_nodes(), 1), 0.5)
        graph.edata["w"] = torch.ones(graph.num_edges(), 1)
    whole = batch(graphs)
    for reduce, want in (("sum", [6, 0, 2]), ("mean", [3, 0, 2]), ("max", [4, 0, 2])):
        assert readout_nodes(whole, "h", reduce).view(-1).tolist() == want
    assert readout_nodes(whole, "h", "sum", weight="a").view(-1).tolist() == [3, 0, 1]
    assert readout_edges(whole, "w", "sum").view(-1).tolist() == [1, 0, 2]
    assert whole.to("meta").node_sizes == ((2, 0, 1),)


@pytest.mark.parametrize(
    "run",
    [
        lambda block: node_subgraph(block, [0]),
        lambda block: edge_subgraph(block, [0]),
        lambda block: relation_subgraph(block, [0]),
        lambda block: batch([block]),
        lambda block: NeighbourSampler(block, [1]),
    ],
)
def test_a_block_has_no_parts_and_is_none(run: Any) -> None:
    with pytest.raises(InputError, match=r"graph.*: is a block .*Give the graph that was sampled"):
        run(NeighbourSampler(Graph([0, 1], [1, 0]), [1])(torch.tensor([0, 1])).blocks[0])


def test_what_differs_is_no_batch() -> None:
    with pytest.raises(InputError, match="none"):
        batch([])
    with pytest.raises(InputError, match="other types"):
        batch([library(), Graph([0], [1])])


def test_a_file_keeps_graphs_whole(tmp_path: Path) -> None:
    shuffled = Graph([0, 1, 2], [1, 2, 0], relation=[1, 0, 1], id_dtype=torch.int64)
    save_graphs(tmp_path / "graphs.pt", [library(3), shuffled])
    first, second = load_graphs(tmp_path / "graphs.pt")
    same(first, library(3))
    assert second.id_dtype == torch.int64 and second.edge_order is not None and second.edge_order.tolist() == [1, 0, 2]


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("read",))


def test_a_file_that_is_none_is_refused_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graphs.pt"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(InputError, match="is no file of graphs"):
        load_graphs(path)
    torch.save({"format": "loadmaster/graphs/1", "graphs": Evil()}, path)
    with pytest.raises(InputError, match="is no file of graphs"):
        load_graphs(path)
    assert capsys.readouterr().out == ""
    torch.save({"graphs": []}, path)
    with pytest.raises(InputError, match="format"):
        load_graphs(path)
    save_graphs(path, Graph([0], [1]))
    document = torch.load(path, weights_only=True)
    document["graphs"][0]["source"] = torch.tensor([5], dtype=torch.int32)
    torch.save(document, path)
    with pytest.raises(InputError, match="names no node"):
        load_graphs(path)
    document["graphs"][0]["relation_ptr"] = [0, 2]
    torch.save(document, path)
    with pytest.raises(InputError, match="do not fit"):
        load_graphs(path)
    with pytest.raises(InputError, match="is a block"):
        save_graphs(path, NeighbourSampler(Graph([0], [1]), [1])(torch.tensor([1])).blocks[0])


@pytest.mark.slow
def test_graphs_of_pytorch_geometric_come_and_go() -> None:
    data = pytest.importorskip("torch_geometric.data")
    given = data.Data(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1], [1, 3]]), edge_attr=torch.rand(2, 3))
    given.y = torch.arange(4)
    back = conversions.to_pyg(conversions.from_pyg(given))
    for name in ("x", "edge_index", "edge_attr", "y"):
        assert torch.equal(back[name], given[name])
    graph = library()
    mixed = conversions.to_pyg(graph)
    assert isinstance(mixed, data.HeteroData) and mixed["author"].num_nodes == 3
    same(conversions.from_pyg(mixed), graph)
    for wrong in ("graph", data.Data(x=torch.rand(2, 1)), data.Data(edge_index=torch.tensor([[0], [1]]), num_nodes=1)):
        with pytest.raises(InputError):
            conversions.from_pyg(wrong)


def test_graphs_of_networkx_come_and_go() -> None:
    networkx = pytest.importorskip("networkx")
    given = networkx.DiGraph()
    given.add_node("x", h=1.0)
    given.add_node("y", h=2.0)
    given.add_edge("y", "x", w=[3.0, 4.0])
    graph = conversions.from_networkx(given, ("h",), ("w",))
    assert (
        graph.source.tolist() == [1] and graph.ndata["h"].tolist() == [1, 2] and graph.edata["w"].tolist() == [[3, 4]]
    )
    back = conversions.to_networkx(graph, ("h",), ("w",))
    assert list(back.edges(data="w")) == [(1, 0, [3, 4])] and back.nodes[0]["h"] == 1
    assert conversions.from_networkx(networkx.path_graph(3)).num_edges() == 4
    with pytest.raises(InputError, match="missing somewhere"):
        conversions.from_networkx(given, ("x",))


def test_matrices_of_scipy_come_and_go() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    given = sparse.csr_matrix([[0.0, 2.0], [3.0, 0.0]])
    graph = conversions.from_scipy(given, weight="w")
    assert (conversions.to_scipy(graph, weight="w", layout="csr") != given).nnz == 0
    assert conversions.to_scipy(library(), "writes").shape == (3, 4)
    with pytest.raises(InputError, match="not square"):
        conversions.from_scipy(sparse.csr_matrix((2, 3)))
    graph.edata["x"] = torch.ones(2, 2)
    with pytest.raises(InputError, match="no number for each"):
        conversions.to_scipy(graph, weight="x")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(conversions.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match="torch_geometric"):
        conversions.to_pyg(Graph([0], [1]))
