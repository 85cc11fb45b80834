"""One process per solve: limits, cancel, progress, crashes, and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import InputError, MissingExtraError, SolverError
from loadmaster.solvers import process, registry
from loadmaster.solvers.child import PipeLink, answer
from loadmaster.solvers.process import RunningSolve, solve, start
from loadmaster.solvers.program import FloatArray, Program, ProgramBuilder
from loadmaster.solvers.solution import Progress, Solution, SolveOptions, SolverStatus, StoppedBy
from tests.solvers.programs import hard, knapsack

pytestmark = pytest.mark.slow  # each test starts a process

ROOT = Path(__file__).resolve().parents[2]
BOTH = pytest.mark.parametrize("solver", ["highs", "cpsat"])


def wait_for_incumbent(running: RunningSolve) -> FloatArray:
    while (values := running.incumbent()) is None:
        time.sleep(0.01)
    return values


def alive(process_id: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(process_id: int) -> None:
    while alive(process_id):
        time.sleep(0.05)


def wait_until_empty(folder: Path) -> None:
    while list(folder.iterdir()):
        time.sleep(0.05)


@BOTH
def test_cancel_keeps_the_incumbent(solver: str) -> None:
    program = hard()
    with start(program, solver=solver) as running:
        wait_for_incumbent(running)
        running.cancel()
        solution = running.wait()
    assert (solution.status, solution.stopped_by) == (SolverStatus.FEASIBLE, StoppedBy.CANCEL)
    assert program.violation(solution.values) == 0.0
    assert solution.objective == program.objective(solution.values)
    assert solution.bound <= solution.objective


@pytest.mark.parametrize("solver", ["highs", "cpsat", "pulp:PULP_CBC_CMD"])
def test_cancel_before_anything_was_found(solver: str) -> None:
    with start(hard(), solver=solver) as running:
        running.cancel()
        solution = running.wait()
    assert solution.stopped_by is StoppedBy.CANCEL
    assert solution.status in (SolverStatus.NO_SOLUTION, SolverStatus.FEASIBLE)


@BOTH
def test_a_solve_that_does_not_answer_is_killed_and_its_incumbent_kept(solver: str) -> None:
    program = hard()
    with start(program, solver=solver) as running:
        known = wait_for_incumbent(running)
        os.kill(running.process_id, signal.SIGSTOP)
        running.cancel()
        solution = running.wait()
        assert not alive(running.process_id)
    assert (solution.status, solution.stopped_by) == (SolverStatus.FEASIBLE, StoppedBy.CANCEL)
    assert solution.objective <= program.objective(known)
    assert program.violation(solution.values) == 0.0
    assert solution.cpu_seconds > 0.0


@pytest.mark.slow
def test_the_hard_time_limit_ends_a_solve_that_ignores_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GRACE_S", 0.5)
    program = hard()
    with start(program, SolveOptions(time_limit_s=1.5)) as running:
        wait_for_incumbent(running)
        os.kill(running.process_id, signal.SIGSTOP)
        solution = running.wait()
    assert (solution.status, solution.stopped_by) == (SolverStatus.FEASIBLE, StoppedBy.TIME)
    assert program.violation(solution.values) == 0.0


@pytest.mark.parametrize("solver", ["highs", "cpsat", "pulp:PULP_CBC_CMD"])
def test_the_solvers_own_time_limit(solver: str) -> None:
    program = hard()
    solution = solve(program, SolveOptions(time_limit_s=1.0), solver=solver)
    assert (solution.status, solution.stopped_by) == (SolverStatus.FEASIBLE, StoppedBy.TIME)
    assert program.violation(solution.values) == 0.0


@BOTH
def test_no_time_at_all(solver: str) -> None:
    solution = solve(hard(), SolveOptions(time_limit_s=0.0), solver=solver)
    assert solution.stopped_by is StoppedBy.TIME


def without_a_point() -> Program:
    """A market split problem: no point is feasible, and no solver proves it in the time a test has."""
    random = np.random.default_rng(0)
    builder = ProgramBuilder()
    x = builder.columns("x", 40, upper=1, integer=True)
    weights = random.integers(0, 100, (5, 40))
    half = weights.sum(axis=1) // 2
    builder.rows("half", 5, [(np.arange(5)[:, None], x[None, :], weights)], lower=half, upper=half)
    return builder.build()


def large() -> Program:
    """About 2.5 million nonzeros, 40 MB as arrays, and no point that is found at once."""
    builder = ProgramBuilder()
    x = builder.columns("x", 50_000, upper=1, integer=True, cost=-1.0)
    row = np.arange(50_000)[:, None]
    columns = np.random.default_rng(0).integers(0, 50_000, (50_000, 50))
    builder.rows("r", 50_000, [(row, x[columns], 1.0)], lower=15.0, upper=20.0)
    return builder.build()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the cap")
@pytest.mark.parametrize("limit_mib", [1, 300])
@BOTH
def test_out_of_memory_is_a_clear_error(solver: str, limit_mib: int) -> None:
    options = SolveOptions(memory_limit_bytes=limit_mib << 20, time_limit_s=30)
    with pytest.raises(SolverError, match="memory_limit_bytes"):
        solve(large(), options, solver=solver)


def test_enough_memory_is_enough() -> None:
    solution = solve(knapsack(), SolveOptions(memory_limit_bytes=4 << 30))
    assert solution.status is SolverStatus.OPTIMAL


@BOTH
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_answers_with_the_best_point_reported(
    number: signal.Signals, solver: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = hard()
    with start(program, solver=solver) as running:
        known = wait_for_incumbent(running)
        os.kill(running.process_id, number)
        solution = running.wait()
        assert running.poll() is solution
    assert (solution.status, solution.stopped_by) == (SolverStatus.FEASIBLE, StoppedBy.CRASH)
    assert solution.objective == program.objective(solution.values) <= program.objective(known)
    assert program.violation(solution.values) == 0.0
    assert solution.bound is None or solution.bound <= solution.objective
    assert solution.cpu_seconds > 0.0
    assert number.name in caplog.text or "killed from outside" in caplog.text


@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "killed from outside"), (signal.SIGSEGV, "SIGSEGV")])
def test_a_crash_without_a_point_is_a_clear_error(number: signal.Signals, words: str) -> None:
    with start(without_a_point()) as running:
        while running.progress() is None:
            time.sleep(0.01)
        os.kill(running.process_id, number)
        with pytest.raises(SolverError, match=words):
            running.wait()
        with pytest.raises(SolverError, match=words):
            running.poll()


def test_a_crash_before_the_program_is_read_is_a_clear_error() -> None:
    with start(large()) as running:
        os.kill(running.process_id, signal.SIGKILL)
        with pytest.raises(SolverError, match="killed from outside"):
            running.wait()


def run_script(text: str, *, wait: bool) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True, env=environment
    )
    if wait:
        script.wait()
    return script


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("solver", ["highs", "cpsat", "pulp:PULP_CBC_CMD"])
@pytest.mark.parametrize("held_open", [False, True])
def test_no_orphan_when_the_parent_is_killed(solver: str, held_open: bool) -> None:
    """Even where a process forked by the parent still holds the connection open."""
    script = run_script(
        f"""
        import os, time
        from loadmaster.solvers.process import start
        from tests.solvers.programs import hard
        running = start(hard(), solver={solver!r})
        forked = 0
        if {held_open}:
            forked = os.fork()
            if not forked:
                time.sleep(60)
                os._exit(0)
        time.sleep(0.7)
        print(running.process_id, forked, flush=True)
        time.sleep(60)
        """,
        wait=False,
    )
    solving, forked = map(int, script.stdout.readline().split())
    group = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and in_group(entry, solving)]
    assert solving in group
    script.kill()
    script.wait()
    script.stdout.close()
    try:
        for member in group:
            wait_until_gone(member)
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_solve_ends_with_its_parent_and_leaves_no_files(tmp_path: Path) -> None:
    """The solver behind PuLP is stopped as well, after it was handed its program as a file."""
    script = run_script(
        f"""
        import tempfile, time
        tempfile.tempdir = {str(tmp_path)!r}
        from loadmaster.solvers.process import start
        from tests.solvers.programs import hard
        print(start(hard(), solver="pulp:PULP_CBC_CMD").process_id, flush=True)
        time.sleep(600)
        """,
        wait=False,
    )
    solving = int(script.stdout.readline())
    while not list(tmp_path.rglob("*.mps")):
        time.sleep(0.05)
    os.killpg(solving, signal.SIGSTOP)
    script.kill()
    script.wait()
    script.stdout.close()
    wait_until_gone(solving)
    wait_until_empty(tmp_path)


def test_a_solver_that_still_writes_leaves_no_files(tmp_path: Path) -> None:
    script = run_script(
        f"""
        import os, threading
        from pathlib import Path
        from loadmaster.orphans import end_with_files
        folder = Path({str(tmp_path)!r}) / "solve"
        folder.mkdir()
        written = threading.Event()
        def write() -> None:
            number = 0
            while True:
                number += 1
                try:
                    (folder / f"{{number}}.mps").write_text("")
                except FileNotFoundError:
                    number = 0
                if number == 200:
                    written.set()
        os.setsid()
        for _ in range(4):
            threading.Thread(target=write, daemon=True).start()
        written.wait()
        end_with_files(str(folder))
        """,
        wait=True,
    )
    script.stdout.close()
    assert script.returncode == -signal.SIGKILL
    wait_until_empty(tmp_path)


def in_group(entry: Path, group: int) -> bool:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_script_without_main_guard_runs_once() -> None:
    script = run_script(
        """
        print("top", flush=True)
        from loadmaster.solvers.process import solve
        from tests.solvers.programs import knapsack
        print(solve(knapsack()).objective)
        """,
        wait=True,
    )
    assert script.stdout.read().split() == ["top", "-8.0"]
    script.stdout.close()


def test_a_script_that_ends_without_waiting_ends() -> None:
    script = run_script(
        """
        from loadmaster.solvers.process import start
        from tests.solvers.programs import hard
        print(start(hard()).process_id)
        """,
        wait=True,
    )
    wait_until_gone(int(script.stdout.read()))
    script.stdout.close()


def test_a_solve_outlives_the_thread_that_started_it() -> None:
    started: list[RunningSolve] = []
    thread = threading.Thread(target=lambda: started.append(start(hard(60, 5))))
    thread.start()
    thread.join()
    with started[0] as running:
        assert running.wait().status is SolverStatus.OPTIMAL


def test_leaving_the_block_ends_the_solve() -> None:
    with start(hard()) as running:
        wait_for_incumbent(running)
    assert not alive(running.process_id)


def test_several_at_once() -> None:
    with start(hard(40, 5)) as first, start(knapsack(), solver="cpsat") as second:
        assert second.wait().objective == -8.0
        assert first.wait().status is SolverStatus.OPTIMAL


@pytest.mark.parametrize(
    ("solver", "loud"), [("highs", {"output_flag": True}), ("cpsat", {"log_search_progress": True})]
)
def test_a_solvers_noise_goes_nowhere(solver: str, loud: dict[str, bool], capfd: pytest.CaptureFixture[str]) -> None:
    assert solve(knapsack(), SolveOptions(parameters=loud), solver=solver).objective == -8.0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.slow
@BOTH
def test_progress_and_the_callers_wish_to_stop(solver: str) -> None:
    reports: list[Progress] = []
    points: list[FloatArray] = []
    solution = solve(
        hard(),
        solver=solver,
        on_progress=reports.append,
        on_point=points.append,
        cancelled=lambda: len(reports) >= 3,
    )
    reached = [hard().objective(point) for point in points]
    assert reached and reached == sorted(set(reached), reverse=True)
    assert solution.objective is not None and solution.objective <= reached[-1] + 1e-6
    assert solution.stopped_by is StoppedBy.CANCEL
    assert [r.seconds for r in reports] == sorted(r.seconds for r in reports)
    objectives = [r.objective for r in reports if r.objective is not None]
    bounds = [r.bound for r in reports if r.bound is not None]
    assert objectives == sorted(objectives, reverse=True)
    assert bounds == sorted(bounds)
    assert all(report.gap is None or report.gap >= 0.0 for report in reports)


def test_a_child_imports_one_solver_and_little_else() -> None:
    script = run_script(
        """
        import sys
        import loadmaster.solvers.child
        from loadmaster.solvers import registry
        registry.driver("highs")
        heavy = {"torch", "pandas", "scipy", "ortools", "pulp", "fastapi", "pydantic", "httpx", "sqlalchemy"}
        print(*sorted(heavy & set(sys.modules)))
        """,
        wait=True,
    )
    assert script.stdout.read().split() == []
    script.stdout.close()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"time_limit_s": -1.0}, "time_limit_s"),
        ({"time_limit_s": float("nan")}, "time_limit_s"),
        ({"gap": -0.1}, "gap"),
        ({"node_limit": -1}, "node_limit"),
        ({"threads": 0}, "threads"),
        ({"seed": -1}, "seed"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes"),
        ({"start_columns": np.arange(2)}, "start_columns"),
        ({"start_columns": np.arange(2), "start_values": np.zeros(3)}, "start_values"),
        ({"start_columns": np.array([0, 3]), "start_values": np.zeros(2)}, "start_columns"),
        ({"start_columns": np.array([0, 1]), "start_values": np.array([0.0, np.nan])}, "start_values"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        solve(knapsack(), dataclasses.replace(SolveOptions(), **changes))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["gurobi", "pulp", "pulp:", "highs:fast", ""])
def test_unknown_solvers_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="no such solver"):
        solve(knapsack(), solver=name)


def test_a_pulp_solver_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"Installed here: .*PULP_CBC_CMD"):
        solve(knapsack(), solver="pulp:MOSEK")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"highspy .*pip install '\.\[solver\]'"):
        solve(knapsack())
    assert registry.available() == []


@pytest.mark.slow
def test_available_lists_what_can_be_asked_for() -> None:
    found = {info.name: info for info in registry.available()}
    assert set(found) >= {"highs", "cpsat", "pulp:PULP_CBC_CMD"}
    for name in found:
        assert solve(knapsack(), solver=name).objective == -8.0
    assert "cancel" in found["highs"].features
    assert found["highs"].version == solve(knapsack()).solver_version


class Recorder(PipeLink):
    """A link that keeps what it is told."""

    def __init__(self) -> None:
        self.incumbents: list[tuple[float, FloatArray]] = []

    def incumbent(self, objective: float, values: FloatArray) -> None:
        self.incumbents.append((objective, values))


@pytest.mark.parametrize(
    ("columns", "values", "cutoff", "reported"),
    [
        ([0, 1, 2], [1.0, 0.0, 1.0], None, True),
        ([2, 0, 1], [0.0, 1.0, 0.0], None, True),
        ([0, 1], [1.0, 0.0], None, False),  # not the whole point
        ([0, 1, 2], [1.0, 1.0, 0.0], None, False),  # over budget
        ([0, 1, 2], [0.5, 0.0, 0.0], None, False),  # not integral
        ([0, 1, 2], [0.0, 0.0, 1.0], -4.0, False),  # beyond the cutoff
    ],
)
def test_a_whole_feasible_start_is_the_first_incumbent(
    columns: list[int], values: list[float], cutoff: float | None, reported: bool
) -> None:
    link = Recorder()
    solution = Solution(SolverStatus.OPTIMAL, StoppedBy.GAP, None, None, None, 0.0, 0.0, 0, "highs", "0")
    options = SolveOptions(start_columns=np.array(columns), start_values=np.array(values), cutoff=cutoff)
    program = knapsack()
    assert answer(lambda *_: solution, program, options, link, "highs") is solution
    assert len(link.incumbents) == reported
    if reported:
        objective, point = link.incumbents[0]
        np.testing.assert_array_equal(point[columns], values)
        assert objective == program.objective(point)
