"""Files that are documents, files that are none, and what typed data does without pydantic."""

from __future__ import annotations

import codecs
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster.errors import InputError
from loadmaster.models.documents import PROBLEM_SCHEMA, load_document
from loadmaster.models.kinds import read_plan, read_problem, write_problem
from loadmaster.models.memory.presets import chain

DEEP = 100_000


def refusal(content: bytes, folder: Path) -> InputError:
    path = folder / "document.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_document(path)
    assert caught.value.remedy.endswith(".")
    assert len(str(caught.value)) < 600
    return caught.value


@pytest.mark.parametrize(
    ("content", "field", "problem"),
    [
        (b"", "path", "not JSON"),
        (b"{", "path", "not JSON"),
        (b"[1]", "path", "no JSON object"),
        (b'{"a": "\xff"}', "path", "not UTF-8 at byte 7"),
        (b"[" * DEEP + b"]" * DEEP, "path", "nested too deeply"),
        (b'{"a": ' * DEEP, "path", "nested too deeply"),
        (b'{"a": ' * 300 + b"1" + b"}" * 300, "path", "nested too deeply"),
        (b'{"a": {"b": [1, NaN]}}', "a.b[1]", "no field holds"),
        (b'{"a": [{"b": -Infinity}]}', "a[0].b", "no field holds"),
        (b'{"a": {"b": ' + b"7" * 5000 + b"}}", "a.b", "no field holds"),
        (b'{"a": {"b": "\\ud800"}}', "a.b", "surrogate"),
        (b'{"a": {"\\udc00": 1}}', "a", "surrogate"),
    ],
)
def test_what_is_no_document_is_refused_with_its_place(
    content: bytes, field: str, problem: str, tmp_path: Path
) -> None:
    found = refusal(content, tmp_path)
    assert found.field == field
    assert problem in found.problem


def test_marks_and_encodings_of_editors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    text = json.dumps({"name": "é"}, ensure_ascii=False)
    for content in (text.encode(), codecs.BOM_UTF8 + text.encode(), text.encode("utf-16")):
        path.write_bytes(content)
        assert load_document(path) == {"name": "é"}


def test_paths_that_are_no_paths(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "none.json", "no such file"),
        (tmp_path, "is a directory"),
        ("a\0b.json", "null byte"),
        ("x" * 5000, "too long"),
        (tmp_path / "document.json" / "inside", "such file"),
    ):
        with pytest.raises(InputError) as caught:
            load_document(path)
        assert caught.value.field == "path"
        assert problem in caught.value.problem


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"inner": found}
    return found


@pytest.mark.slow
def test_python_objects_that_are_no_json() -> None:
    document = chain(2, 100)
    itself: dict[str, Any] = {}
    itself["itself"] = itself
    for value, field in (
        ({1, 2}, "document"),
        (nested(DEEP), "document"),
        (nested(300), "document"),
        (itself, "document"),
        ("\ud800", "title"),
        (10**6000, "document"),
        (10**400, "title"),
    ):
        with pytest.raises(InputError) as caught:
            read_problem({**document, "title": value})
        assert caught.value.field == field
        assert len(str(caught.value)) < 600


def test_a_document_may_hold_tuples() -> None:
    document = chain(2, 100)
    assert read_problem({**document, "forward": tuple(document["forward"])}) == read_problem(document)


def test_the_head_of_a_file_says_what_it_is() -> None:
    names = list(write_problem(read_problem(chain(2, 100))))
    assert names[:3] == ["schema", "kind", "name"]
    assert names[-2:] == ["forward", "backward"]


def test_the_kind_is_asked_for() -> None:
    for read in (read_problem, read_plan):
        with pytest.raises(InputError) as caught:
            read({"schema": "loadmaster/problem/1"})
        assert caught.value.field == "kind"


WITHOUT_PYDANTIC = """
import json, sys
sys.modules["pydantic"] = sys.modules["pydantic_core"] = None
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import documents, plan, problem
from loadmaster.models.collective import documents as collective_documents
one = problem.Implementation(1.0, 0)
loss = problem.ForwardOperator(0, "loss", (), 4, (), 0, 0, (one,), (one,))
back = problem.BackwardOperator(1, "loss backward", 4, 4, 0, (problem.BackwardImplementation(1.0, 0, ()),))
made = problem.MemoryProblem("made", (loss,), (back,), host_link=HostLink(1.0, 1.0))
print(json.dumps(documents.write_problem(made)), made.sha256)
"""


def test_typed_problems_are_made_and_written_without_pydantic() -> None:
    """A host that measures and runs steps may have torch and numpy only."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYDANTIC], capture_output=True, text=True, check=True)
    document, sha256 = done.stdout.rsplit(" ", 1)
    assert read_problem(json.loads(document)).sha256 == sha256.strip()


@pytest.mark.parametrize("entry", [[], 1, {"a": 1}, {"a": 1, "b": 2, "c": 3}])
def test_refusals_are_not_collected_for_every_entry(entry: object) -> None:
    """Each takes a kilobyte, and a small document may have millions of wrong entries."""

    def refused(entries: int) -> str:
        with pytest.raises(InputError) as caught:
            read_problem({"kind": "memory", "schema": PROBLEM_SCHEMA, "forward": [entry] * entries})
        return caught.value.problem

    assert "more fields are wrong" in refused(2)
    assert refused(2) == refused(2000)
