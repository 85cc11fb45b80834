"""``doctor``: what it says of this machine, of solvers that fail or lie, and of what is not there."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess

import pytest

from loadmaster.api.cli import app, doctor
from loadmaster.errors import SolverError, how_to_install
from loadmaster.solvers import process, registry
from loadmaster.solvers.solution import Solution


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started: solvers solve as HiGHS did once, the others answer."""
    solved = process.solve(_program())
    monkeypatch.setattr(process, "solve", lambda *_, **__: solved)
    answers = {
        doctor._ASK_TORCH: '["2.13.0", ["NVIDIA H200"]]',
        doctor._ASK_INDEX: "compiled\n",
        doctor._ASK_RAY: 'a word of Ray\n["2.60.0", true, 12]\n',
    }
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: name if name == "ray" else find(name))
    monkeypatch.setattr(doctor, "_ask", lambda code, *_: subprocess.CompletedProcess([], 0, answers[code], ""))


def _program() -> process.Program:
    caught: list[process.Program] = []

    def catch(program: process.Program, *_: object, **__: object) -> Solution:
        caught.append(program)
        raise SolverError("only looked at")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "solve", catch)
        doctor._solver("any", "1")
    return caught[0]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, object]]]:
    status = app.main(["doctor", "--json", *arguments])
    return status, {one["what"]: one for one in json.loads(capsys.readouterr().out)}


@pytest.mark.slow
def test_what_is_installed_here_works(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = said(capsys)
    assert status == 0
    assert {f"solver {solver.name}" for solver in registry.available()} <= found.keys()
    assert [one for one in found.values() if one["ok"] is False] == []
    assert found["PyTorch"]["ok"] is True


def test_the_program_has_one_best_answer() -> None:
    program = _program()
    weights, worth = (2, 3, 4), (3, 4, 5)
    chosen = [[bool(n >> i & 1) for i in range(3)] for n in range(8)]
    values = [sum(v for v, c in zip(worth, of, strict=True) if c) for of in chosen if _weight(weights, of) <= 5]
    assert max(values) == 7 and values.count(7) == 1
    assert program.cost.tolist() == [-float(v) for v in worth]


def _weight(weights: tuple[int, ...], chosen: list[bool]) -> int:
    return sum(w for w, c in zip(weights, chosen, strict=True) if c)


def test_people_get_a_table(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("solver highs") and " ok " in line for line in lines)
    assert any("2.13.0, NVIDIA H200" in line for line in lines)


@pytest.mark.parametrize(
    ("version", "says"),
    [("2.10.1", "older than supported"), ("2.11.0+cu130", ""), ("2.14.1", ""), ("2.15.0.dev1", "newer than tested")],
)
def test_a_pytorch_that_is_not_tested_is_named(version: str, says: str) -> None:
    assert says in doctor._beyond_tested(version) and bool(says) == bool(doctor._beyond_tested(version))


def test_a_solver_that_fails_is_named(
    quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve(program: process.Program, *_: object, solver: str) -> Solution:
        raise SolverError(f"{solver} lost its licence")

    monkeypatch.setattr(process, "solve", solve)
    status, found = said(capsys)
    assert status == 1
    assert (found["solver highs"]["ok"], found["solver highs"]["found"]) == (False, "highs lost its licence")


def test_a_solver_that_is_wrong_is_found_out(
    quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = process.solve(_program())
    monkeypatch.setattr(process, "solve", lambda *_, **__: dataclasses.replace(right, objective=-5.0))
    status, found = said(capsys)
    assert status == 1
    assert "-7 is the best" in str(found["solver highs"]["found"])


def test_what_may_be_missing_is_no_failure(
    quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name in ("torch", "fastapi", "ray") else find(name)
    )
    monkeypatch.setattr(doctor, "_ask", lambda code, *_: subprocess.CompletedProcess([], 0, "numpy\n", ""))
    status, found = said(capsys)
    assert status == 0
    assert [found[what]["ok"] for what in ("PyTorch", "service", "index", "Ray")] == [None] * 4
    for what, extra in (("PyTorch", "torch"), ("service", "server"), ("Ray", "ray")):
        assert str(found[what]["found"]).endswith(how_to_install(extra))


@pytest.mark.parametrize(
    ("answer", "status", "ok", "says"),
    [
        ('["2.60.0", true, 12]', 0, True, "2.60.0, --engine ray has a cluster of 12 processors"),
        (
            '["2.60.0", null, "has no cluster to join"]',
            0,
            None,
            "2.60.0, --engine ray has no cluster to join: ray start",
        ),
        ('["2.60.0", false, "has no cluster to join"]', 1, False, "see RAY_ADDRESS"),
    ],
)
def test_ray_is_told_of_with_its_cluster(
    quick: None,
    answer: str,
    status: int,
    ok: bool | None,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = doctor._ask

    def ask(code: str, *_: float) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, answer, "") if code == doctor._ASK_RAY else known(code)

    monkeypatch.setattr(doctor, "_ask", ask)
    ended, found = said(capsys)
    assert (ended, found["Ray"]["ok"]) == (status, ok)
    assert says in str(found["Ray"]["found"])


def test_no_solver_at_all_is_a_failure(
    quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "available", list)
    status, found = said(capsys)
    assert status == 1
    assert str(found["solvers"]["found"]).endswith(how_to_install("solver"))


def test_a_package_that_breaks_says_its_last_line(
    quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = subprocess.CompletedProcess([], 1, "", "Traceback\n  ...\nOSError: libcuda is too old\n")
    monkeypatch.setattr(doctor, "_ask", lambda code, *_: broken)
    status, found = said(capsys)
    assert status == 1
    assert found["PyTorch"]["found"] == "OSError: libcuda is too old"


@pytest.mark.slow
def test_a_service_that_is_not_there_is_a_failure(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = said(capsys, "--server", "http://127.0.0.1:9")
    assert status == 1
    assert found["service at http://127.0.0.1:9"]["ok"] is False
