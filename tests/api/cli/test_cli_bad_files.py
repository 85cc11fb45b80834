"""Commands on broken files: never a traceback, and refusals that say what to do."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster.api.cli import app
from loadmaster.errors import InputError
from loadmaster.models.collective.taccl.sketch_files import published_sketch
from loadmaster.models.kinds import read_problem, write_plan, write_problem
from loadmaster.models.memory.plan import Blocker, MemoryInfeasibility
from loadmaster.models.memory.presets import chain
from loadmaster.models.topologies.profiles import published_profile
from tests.api.cli.mutants import mutant
from tests.api.cli.plans_by_hand import MEGABYTE, no_plan, plan_by_hand
from tests.models.collective.handmade import along_trees, one_after_another, table
from tests.models.collective.tiny import problem, switched

Document = dict[str, Any]
# A message is for a person: field, value cut short, remedy. A file's own path comes on top of that.
LONGEST_MESSAGE = 700


def memory_pairs() -> list[tuple[Document, Document]]:
    document = chain(4, MEGABYTE)
    why = MemoryInfeasibility(1000, 995, "forward 1 (block)", (Blocker("forward 0", "block", 500),))
    return [
        (document, write_plan(plan_by_hand(document, 8 * MEGABYTE))),
        (document, write_plan(no_plan(document, 5, why))),
    ]


def collective_pairs() -> list[tuple[Document, Document]]:
    given = replace(problem(switched(2, 2), "allreduce", 64), sizes_bytes=(64, 4096))
    algorithms = [
        replace(one_after_another(given, along_trees(given, size, 1)), from_bytes=start)
        for size, start in ((64, 0), (4096, 4096))
    ]
    return [(write_problem(given), write_plan(table(given, *algorithms)))]


PAIRS = [json.loads(json.dumps(pair)) for pair in (*memory_pairs(), *collective_pairs())]


def broken(seed: int) -> tuple[bytes, bytes]:
    """A problem and a plan, one of them broken; a plan whose problem is still one is for that problem."""
    dice = random.Random(seed)
    problem_document, plan_document = dice.choice(PAIRS)
    if dice.random() < 0.6:
        return json.dumps(problem_document).encode(), mutant(plan_document, dice)
    content = mutant(problem_document, dice)
    with contextlib.suppress(ValueError, RecursionError):
        plan_document = {**plan_document, "problem_sha256": read_problem(json.loads(content)).sha256}
    return content, json.dumps(plan_document).encode()


@pytest.mark.parametrize("first", range(0, 240, 20))
def test_no_file_makes_a_traceback(first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    written = [f"--html={tmp_path / 'report.html'}", f"--trace={tmp_path / 'trace.json'}"]
    for seed in range(first, first + 20):
        contents = broken(seed)
        asked.write_bytes(contents[0])
        plan.write_bytes(contents[1])
        show = ["show", str(plan), *(written if seed % 2 else []), *([] if seed % 3 else ["--json"])]
        for command in (["check", str(asked), str(plan)], show):
            status = app.main(command)
            said = capsys.readouterr()
            assert status in (0, 1, 2), seed
            if status == 2:
                assert said.err.startswith("error: "), seed
                assert len(said.err) < LONGEST_MESSAGE, seed


NETWORK = {
    "name": "pair",
    "node_of": [0, 0],
    "links": [
        {"source": 0, "target": 1, "latency_ns": 0, "message_ns": 700, "gbps": 22.8, "resources": ["a"]},
        {"source": 1, "target": 0, "gbps": 22.8},
    ],
    "switches": [[0, 1]],
}
EDGES = [{"source": n, "target": "s", "gbps": 10.0, "latency_ns": 5 * n} for n in range(3)]
GRAPH = {"directed": False, "nodes": [{"id": 0}, {"id": 1}, {"id": 2}, {"id": "s", "switch": True}], "edges": EDGES}
PROFILE = published_profile("topo-ndv2-1MB")


@pytest.mark.parametrize(
    ("topology", "sketch"),
    [(NETWORK, None), (GRAPH, None), (PROFILE, None), (PROFILE, published_sketch("sk1-ndv2-n2"))],
    ids=["network", "graph", "profile", "sketch"],
)
def test_no_topology_and_no_sketch_makes_a_traceback(
    topology: Document, sketch: Document | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"--topology-file": tmp_path / "topology.json"}
    files["--topology-file"].write_text(json.dumps(topology))
    if sketch is not None:
        files["--sketch-file"] = tmp_path / "sketch.json"
    command = ["new", "collective", "--collective", "allgather", "--bytes", "3MiB", f"-o={tmp_path / 'problem.json'}"]
    command += [f"{flag}={path}" for flag, path in files.items()] + (["--nodes=2"] if topology is PROFILE else [])
    for seed in range(25):
        list(files.values())[-1].write_bytes(mutant(sketch or topology, random.Random(seed)))
        status = app.main(command)
        said = capsys.readouterr().err
        assert status in (0, 2), seed
        assert len(said) < LONGEST_MESSAGE, seed
        assert status == 0 or said.startswith("error: "), seed


@pytest.mark.parametrize("command", ["check", "show", "plan"])
@pytest.mark.parametrize("path", ["a\0b.json", "\udcff.json", "x" * 5000, "", ".", "/dev/null/inside"])
def test_paths_that_are_no_paths(command: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([command, *([path] * 2 if command == "check" else [path])]) == 2
    assert capsys.readouterr().err.startswith("error: path: ")


@pytest.mark.parametrize("path", ["a\0b.json", "\udcff/a.json", "x" * 5000])
def test_no_output_goes_where_nothing_can_be(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, plan = PAIRS[0]
    (tmp_path / "problem.json").write_text(json.dumps(document))
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for flag in ("--html", "--trace", "--png"):
        assert app.main(["show", str(tmp_path / "plan.json"), flag, path]) == 2
        assert capsys.readouterr().err.startswith(f"error: {flag}: ")


def test_files_beside_a_plan_that_cannot_be_used_are_passed_over(tmp_path: Path) -> None:
    document, plan = PAIRS[0]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "a.json").write_text("[" * 100_000)
    (tmp_path / "b.json").mkdir()
    (tmp_path / "c.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "d.json").write_text(json.dumps(document))
    assert app.main(["show", str(tmp_path / "plan.json"), "--html", str(tmp_path / "report.html")]) == 0
    assert "</html>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "url", ["sqlite:///a\0b/service.db", "sqlite:///\udcff.db", "sqlite://x:y/z", "postgresql://h:x/d"]
)
def test_databases_that_cannot_be(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.api.store.database import Database

    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        Database(url)
    assert caught.value.field == "database_url"
