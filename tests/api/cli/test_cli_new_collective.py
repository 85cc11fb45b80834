"""``new collective``: every source of topologies and sketches, and every way to get it wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loadmaster import planner
from loadmaster.api.cli import app
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.taccl.sketch_files import published_sketch, sketch_names
from loadmaster.models.kinds import read_plan, read_problem
from loadmaster.models.topologies.presets import catalogue, preset
from loadmaster.models.topologies.profiles import profile_names, published_profile

PAIR = {
    "name": "pair",
    "node_of": [0, 0],
    "links": [{"source": 0, "target": 1, "gbps": 2.0}, {"source": 1, "target": 0, "gbps": 2.0}],
}


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main(["new", "collective", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def made(path: Path) -> CollectiveProblem:
    problem = read_problem(path)
    assert isinstance(problem, CollectiveProblem)
    return problem


@pytest.mark.parametrize("entry", catalogue(), ids=lambda e: e.name)
def test_every_named_topology(entry: object, tmp_path: Path) -> None:
    name, nodes = entry.name, entry.nodes[1]  # type: ignore[attr-defined]
    output = tmp_path / "problem.json"
    arguments = ("--topology", name, "--nodes", str(nodes), "--collective", "allgather", "-o", output)
    assert run(*arguments) == 0
    problem = made(output)
    assert problem.topology == preset(name, nodes)
    # A mebibyte, less what does not divide among the ranks.
    assert (1 << 20) - problem.topology.rank_count < problem.sizes_bytes[0] <= 1 << 20


def test_sizes_and_chunks(tmp_path: Path) -> None:
    output = tmp_path / "problem.json"
    flags = ("--bytes", "64MB,1KiB,32KiB", "--chunks", "1,2,4")
    assert run("--topology", "ndv2", "--collective", "allreduce", *flags, "-o", output) == 0
    problem = made(output)
    assert problem.sizes_bytes == (1 << 10, 32 << 10, 64_000_000)
    assert problem.chunk_counts == (1, 2, 4)
    assert problem.topology.rank_count == 8


def test_a_published_profile_and_sketch_by_name_and_by_file(tmp_path: Path) -> None:
    profile, sketch = tmp_path / "topology.json", tmp_path / "sk1-ndv2-n2.json"
    profile.write_text(json.dumps(published_profile("topo-ndv2-1MB")))
    sketch.write_text(json.dumps(published_sketch("sk1-ndv2-n2")))
    ways = (("topo-ndv2-1MB", "sk1-ndv2-n2"), (profile, sketch))
    problems = []
    for number, (topology_file, sketch_file) in enumerate(ways):
        output = tmp_path / f"problem{number}.json"
        files = ("--topology-file", topology_file, "--sketch-file", sketch_file)
        assert run(*files, "--nodes", "2", "--collective", "allgather", "-o", output) == 0
        problems.append(made(output))
    assert problems[0] == problems[1]
    assert problems[0].sketch is not None and problems[0].sketch.name == "sk1-ndv2-n2"
    assert problems[0].topology.rank_count == 16


def test_a_topology_of_ones_own_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pair.json"
    path.write_text(json.dumps(PAIR))
    assert run("--topology-file", path, "--collective", "broadcast", "--root", "1", "--bytes", "1000") == 0
    problem = read_problem(json.loads(capsys.readouterr().out))
    assert isinstance(problem, CollectiveProblem)
    assert (problem.root, problem.topology.rank_count, problem.sizes_bytes) == (1, 2, (1000,))


def test_uneven_pairs(tmp_path: Path) -> None:
    topology, pairs, output = (tmp_path / name for name in ("pair.json", "pairs.json", "problem.json"))
    topology.write_text(json.dumps(PAIR))
    pairs.write_text("[[0, 7], [5, 0]]")
    arguments = ("--topology-file", topology, "--collective", "alltoallv", "--pair-bytes", pairs)
    assert run(*arguments, "-o", output) == 0
    assert made(output).pair_bytes == ((0, 7), (5, 0))
    assert made(output).sizes_bytes == (12,)


def test_rooted_collectives_start_at_rank_0(tmp_path: Path) -> None:
    output = tmp_path / "problem.json"
    assert run("--topology", "ring", "--nodes", "4", "--collective", "reduce", "-o", output) == 0
    assert made(output).root == 0


def test_what_there_is_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*profile_names(), *sketch_names(), *(p.name for p in catalogue())))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topology", "abacus", "--collective", "allgather"], "Choose one of"),
        (["--topology", "ndv2"], "--collective"),
        (["--topology", "ndv2", "--collective", "juggle"], "invalid choice"),
        (["--topology", "ndv2", "--nodes", "99", "--collective", "allgather"], "1 to 16"),
        (["--topology", "ndv2", "--collective", "allgather", "--bytes", "1gb"], "Write 1GB"),
        (["--topology", "ndv2", "--collective", "allgather", "--bytes", "1001"], "multiple of 8"),
        (["--topology", "ndv2", "--collective", "allgather", "--chunks", "2,x"], "--chunks"),
        (["--topology", "ndv2", "--collective", "allgather", "--root", "1"], "root"),
        (["--topology", "ndv2", "--collective", "broadcast", "--root", "8"], "Ranks are 0 to 7"),
        (["--topology", "ndv2", "--collective", "alltoallv"], "pair_bytes"),
        (["--topology", "ndv2", "--collective", "allgather", "--sketch-file", "sk1-dgx2-n2"], "nnodes"),
        (["--topology", "ndv2", "--collective", "allgather", "--sketch-file", "missing.json"], "no such file"),
        (["--topology-file", "missing.json", "--collective", "allgather"], "no such file"),
        (["--topology", "ndv2", "--collective", "allgather", "-o", "missing/p.json"], "does not exist"),
        (["--topology", "ndv2", "--topology-file", "x", "--collective", "allgather"], "not allowed with"),
        ([], "required"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


@pytest.mark.parametrize(
    ("flag", "text", "says"),
    [
        ("--pair-bytes", "[[0, 1], [2]]", "Give a size for each"),
        ("--pair-bytes", "[[0, 1.5], [2, 0]]", "whole numbers"),
        ("--pair-bytes", '{"0": 1}', "whole numbers"),
        ("--pair-bytes", "nonsense", "is not JSON"),
        ("--sketch-file", "[]", "JSON object"),
    ],
)
def test_bad_files_are_refused(
    flag: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topology, file = tmp_path / "pair.json", tmp_path / "file.json"
    topology.write_text(json.dumps(PAIR))
    file.write_text(text)
    assert run("--topology-file", topology, "--collective", "alltoallv", flag, file) == 2
    assert says in capsys.readouterr().err


def apart(tmp_path: Path) -> list[str]:
    """Two pairs of ranks with nothing between them."""
    file = tmp_path / "apart.json"
    ends = ((0, 1), (1, 0), (2, 3), (3, 2))
    file.write_text(
        json.dumps({"node_of": [0, 0, 1, 1], "links": [{"source": a, "target": b, "gbps": 2.0} for a, b in ends]})
    )
    return ["--topology-file", str(file), "--collective", "allgather"]


def cut_off(tmp_path: Path) -> list[str]:
    """A sketch in which no rank sends to the other node."""
    file = tmp_path / "sketch.json"
    file.write_text(
        json.dumps(
            {
                "nnodes": 2,
                "intranode_sketch": {"strategy": "none"},
                "internode_sketch": {"strategy": "relay", "internode_conn": {}},
            }
        )
    )
    return ["--topology", "hgx-h200", "--nodes", "2", "--collective", "allgather", "--sketch-file", str(file)]


@pytest.mark.parametrize(("network", "why"), [(apart, "leaves ranks 0, 1."), (cut_off, "sketch.internode")])
def test_what_cannot_arrive_is_an_answer_that_names_chunk_and_cut(
    network: Callable[[Path], list[str]], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the links or the sketch are to blame: the same plan for the document and for the typed problem."""
    problem, output = tmp_path / "problem.json", tmp_path / "plan.json"
    assert run(*network(tmp_path), "-o", problem) == 0
    assert app.main(["plan", str(problem), "-o", str(output)]) == 3
    said = "".join(capsys.readouterr())
    assert said.count("Chunk 0, from rank 0, cannot reach rank") == 1
    assert why in said
    found = read_plan(output)
    assert isinstance(found, CollectivePlan)
    assert (found.status, found.algorithms) == ("infeasible", ())
    typed = planner.plan(made(problem))
    assert isinstance(typed, CollectivePlan)
    assert typed.infeasibility == found.infeasibility


def test_flags_that_mean_nothing_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, pairs = tmp_path / "pair.json", tmp_path / "pairs.json"
    topology.write_text(json.dumps(PAIR))
    pairs.write_text("[[0, 1], [2, 0]]")
    own = ("--topology-file", topology)
    assert run(*own, "--nodes", "2", "--collective", "allgather") == 2
    assert "--nodes" in capsys.readouterr().err
    assert run(*own, "--collective", "alltoallv", "--pair-bytes", pairs, "--bytes", "3") == 2
    assert "--bytes" in capsys.readouterr().err
    assert run(*own, "--collective", "allgather", "--pair-bytes", pairs) == 2
    assert "pair_bytes" in capsys.readouterr().err
