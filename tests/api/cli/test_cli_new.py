"""``new``, ``hardware`` and ``solvers``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.api.cli import app
from loadmaster.models.hardware import hardware
from loadmaster.models.kinds import read_problem
from loadmaster.models.memory import presets
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plain import formulate
from loadmaster.models.memory.unconstrained import unconstrained_cost


def run(*arguments: str) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("name", presets.example_names())
def test_every_example_makes_a_problem(name: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    assert run("new", "memory", "--example", name, "--budget", "6GiB", "-o", str(path)) == 0
    problem = read_problem(path)
    assert problem.budget_bytes == 6 << 30
    assert problem.sha256 == read_problem(presets.example(name)).sha256


@pytest.mark.parametrize("name", presets.example_names())
def test_the_plain_step_of_an_example_holds(name: str) -> None:
    problem = read_problem(presets.example(name))
    verdict = check(problem, formulate(problem), 1 << 60)
    assert verdict.ok, verdict.violations
    assert verdict.recomputed == 0
    # Running in place only where nothing is lost may cost a little more than the unconstrained bound.
    assert unconstrained_cost(problem) <= verdict.objective <= 1.02 * unconstrained_cost(problem)


def test_without_output_the_document_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "memory", "--chain", "5", "--activation-bytes", "2MB", "--offload-gbps", "12") == 0
    document = json.loads(capsys.readouterr().out)
    problem = read_problem(document)
    assert [f.output_bytes for f in problem.forward] == [2_000_000] * 5 + [4]
    assert problem.host_link is not None and problem.host_link.to_host_gbps == 12.0


@given(layers=st.integers(1, 3), hidden=st.integers(1, 64), sequence=st.integers(1, 64), batch=st.integers(1, 4))
def test_a_transformer_trains(layers: int, hidden: int, sequence: int, batch: int) -> None:
    problem = read_problem(presets.transformer(layers, hidden, sequence, batch, hardware("h200"), vocabulary=100))
    assert len(problem.forward) == len(problem.backward) == 10 * layers + 4
    verdict = check(problem, formulate(problem), 1 << 60)
    assert verdict.ok, verdict.violations
    assert verdict.objective == pytest.approx(unconstrained_cost(problem))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--example", "alexnet"], "Choose one of"),
        (["--chain", "0"], "--chain"),
        (["--chain", "3", "--activation-bytes", "1gb"], "Write 1GB"),
        (["--chain", "3", "--budget", "60pct"], "--budget"),
        (["--transformer", "--hardware", "abacus"], "not in the catalogue"),
        (["--chain", "3", "--offload-gbps", "-1"], "host_link.to_host_gbps"),
        (["--chain", "3", "-o", "missing/problem.json"], "does not exist"),
        (["--chain", "3", "--example", "unet-b11"], "not allowed with"),
        (["--offload", "--offload-gbps", "3", "--chain", "3"], "not allowed with"),
        ([], "required"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "memory", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err


def test_the_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "memory", "--list") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in presets.example_names())


def test_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("hardware", "list") == 0
    assert "h200" in capsys.readouterr().out
    assert run("hardware", "show", "h200") == 0
    assert json.loads(capsys.readouterr().out)["memory_bytes"] == hardware("h200").memory_bytes
    assert run("hardware", "show", "abacus") == 2


def test_probe_reads_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771'\necho 'Strange Card, 100'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run("hardware", "probe") == 0
    found = json.loads(capsys.readouterr().out)["gpus"]
    assert found[0] == {"name": "NVIDIA H200", "memory_bytes": 143771 << 20, "hardware": "h200"}
    assert found[1]["hardware"] is None


def test_probe_without_a_working_driver_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'no devices were found' >&2\nexit 6\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run("hardware", "probe") == 1
    assert "no devices were found" in capsys.readouterr().err


def test_solvers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("solvers", "--json") == 0
    assert "highs" in {s["name"] for s in json.loads(capsys.readouterr().out)}
