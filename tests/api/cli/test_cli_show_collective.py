"""``show`` on collective plans: words, report, picture, trace and exports."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.kinds import write_plan, write_problem
from tests.models.collective.handmade import along_trees, one_after_another, table
from tests.models.collective.tiny import problem, ring

SIZES = (64, 4096)


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main(["show", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan with its problem beside it."""
    given = replace(problem(ring(4), "allreduce", SIZES[0]), sizes_bytes=SIZES)
    small, large = (one_after_another(given, along_trees(given, size, 1)) for size in SIZES)
    made: CollectivePlan = table(given, small, replace(large, from_bytes=1024))
    (tmp_path / "problem.json").write_text(json.dumps(write_problem(given)))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(write_plan(made)))
    return path


def test_in_words(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(plan) == 0
    out = capsys.readouterr().out
    for word in ("allreduce", "64 B", "4.00 KiB", "1.00 KiB", "50.00 %", "by hand", "passed", "direct", "bus GB/s"):
        assert word in out


def test_everything_at_once(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, png, trace = tmp_path / "plan.html", tmp_path / "plan.png", tmp_path / "trace.json"
    xml, plans = tmp_path / "xml", tmp_path / "plans"
    assert run(plan, "--html", html, "--png", png, "--trace", trace, "--msccl", xml, "--mscclpp", plans) == 0
    assert html.read_text().startswith("<!doctype html>")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert json.loads(trace.read_text())["traceEvents"]
    heads = [ET.fromstring(path.read_text()).attrib for path in xml.iterdir()]
    assert {(h["coll"], h["minBytes"], h["maxBytes"]) for h in heads} == {
        ("allreduce", "0", "1023"),
        ("allreduce", "1024", "0"),
    }
    assert {json.loads(path.read_text())["min_message_size"] for path in plans.iterdir()} == {64, 1024}
    assert "plan.png" in capsys.readouterr().err


def test_instances(plan: Path, tmp_path: Path) -> None:
    assert run(plan, "--msccl", tmp_path / "xml", "--instances", "2") == 0
    for path in (tmp_path / "xml").iterdir():
        assert ET.fromstring(path.read_text()).attrib["nchannels"] == "2"


@pytest.mark.parametrize("flag", ["--html", "--png", "--trace", "--msccl", "--mscclpp"])
def test_without_its_problem_it_says_what_is_missing(
    flag: str, plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "problem.json").rename(tmp_path / "problem.txt")
    assert run(plan) == 0
    assert "4.00 KiB" in capsys.readouterr().out
    assert run(plan, flag, tmp_path / "out") == 2
    assert "--problem" in capsys.readouterr().err
    assert run(plan, flag, tmp_path / "out", "--problem", tmp_path / "problem.txt") == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--snapshot", "x.pickle"], "collective plan"),
        (["--msccl", "missing/folder"], "does not exist"),
        (["--msccl", "out", "--instances", "5"], "instances"),
        (["--mscclpp", "out", "--instances", "0"], "instances"),
    ],
)
def test_bad_input_is_refused(
    flags: list[str],
    says: str,
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(plan, *flags) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(plan, "--msccl", tmp_path / "problem.json") == 2
    assert "is a file" in capsys.readouterr().err


def test_a_plan_that_does_not_hold_is_not_drawn(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan.read_text())
    document["algorithms"][0]["time_ns"] -= 1
    plan.write_text(json.dumps(document))
    assert run(plan, "--html", tmp_path / "plan.html") == 2
    assert "does not hold" in capsys.readouterr().err
