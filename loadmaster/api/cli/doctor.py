"""``doctor``: what of Loadmaster works here: solvers by solving, the compiled index by compiling, Ray by joining its
cluster, PyTorch by asking it.

Each line says what was found and, where something is missing, what brings it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import loadmaster
from loadmaster.api.cli.server import add_server, connect
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import table
from loadmaster.errors import TESTED_TORCH, LoadmasterError, how_to_install

# What PyTorch says of itself, and what stands behind the class Index: this floor imports neither.
_ASK_TORCH = (
    "import json, torch; cuda = torch.cuda.is_available(); n = torch.cuda.device_count() if cuda else 0; "
    "print(json.dumps([torch.__version__, [torch.cuda.get_device_name(i) for i in range(n)]]))"
)
_ASK_INDEX = "from loadmaster.executor.index import Index; print(Index([1], [1]).facts().implementation)"
# As a worker joins it. None is started: where there is none, and no word of where it should be, it may be missing.
_ASK_RAY = (
    "import json, os, ray; from loadmaster.api.worker import on_ray; from loadmaster.errors import InputError\n"
    "try:\n    on_ray.connect(); found = [True, on_ray.places() - 1]\n"
    "except InputError as error:\n    found = [False if os.environ.get('RAY_ADDRESS') else None, error.problem]\n"
    "print('\\n' + json.dumps([ray.__version__, *found]))"
)
_WITHIN_S = 300.0
# Ray itself waits for minutes at an address where nobody is.
_JOINED_WITHIN_S = 60.0
_SERVER_PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client")


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was tried, whether it works (None: missing, and may be), and what was found."""

    what: str
    ok: bool | None
    found: str


def doctor_arguments(doctor: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor`` to its parser."""
    doctor.description = _doctor.__doc__
    add_server(doctor, "ask this service, too")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Try what this machine has: exit status 1 if something that is there does not work."""
    findings = []
    for finding in _findings(arguments):
        terminal.progress(f"{finding.what}: {finding.found}")
        findings.append(finding)
    if arguments.json:
        terminal.json([dataclasses.asdict(finding) for finding in findings])
    else:
        words = {True: "ok", False: "FAILS", None: "missing"}
        terminal.data(table([[f.what, words[f.ok], f.found] for f in findings], ["what", "", "found"]))
    return 1 if any(finding.ok is False for finding in findings) else 0


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    yield Finding("loadmaster", True, f"{loadmaster.__version__}, Python {platform.python_version()}, {_system()}")
    yield from _solvers()
    yield _service_packages()
    yield _ray()
    yield _torch()
    yield _index()
    if arguments.server is not None:
        yield _server(arguments)


def _system() -> str:
    return f"{platform.system()} {platform.machine()}"


def _solvers() -> Iterator[Finding]:
    from loadmaster.solvers.registry import available

    found = available()
    if not found:
        yield Finding("solvers", False, f"none. Install some {how_to_install('solver')}")
    for solver in found:
        yield _solver(solver.name, solver.version)


def _solver(name: str, version: str) -> Finding:
    from loadmaster.solvers.process import solve
    from loadmaster.solvers.program import ProgramBuilder
    from loadmaster.solvers.solution import SolveOptions

    builder = ProgramBuilder()
    # Worth 3, 4 and 5, of weights 2, 3 and 4: what holds 5 takes the first two.
    taken = builder.columns("taken", 3, upper=1, integer=True, cost=[-3.0, -4.0, -5.0])
    builder.rows("room", (), [(0, taken, [2.0, 3.0, 4.0])], upper=5.0)
    try:
        solution = solve(builder.build(), SolveOptions(time_limit_s=60.0), solver=name)
    except LoadmasterError as error:
        return Finding(f"solver {name}", False, str(error))
    if solution.objective is None or round(solution.objective, 6) != -7.0:
        return Finding(f"solver {name}", False, f"says {solution.objective} where -7 is the best")
    return Finding(f"solver {name}", True, f"{version}, solves in {solution.seconds:.2f} s")


def _service_packages() -> Finding:
    missing = [name for name in _SERVER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return Finding("service", None, f"no {', '.join(missing)}. Install it {how_to_install('server')}")
    return Finding("service", True, f"fastapi {importlib.metadata.version('fastapi')}")


def _ray() -> Finding:
    """Find out whether a worker with ``--engine ray`` would have a place to run jobs."""
    if importlib.util.find_spec("ray") is None:
        says = "not installed. It spreads the jobs of a service over a cluster. Install it"
        return Finding("Ray", None, f"{says} {how_to_install('ray')}")
    asked = _ask(_ASK_RAY, _JOINED_WITHIN_S)
    if asked.returncode != 0:
        at = os.environ.get("RAY_ADDRESS")
        return Finding("Ray", False, _last_line(asked.stderr) + (f", at RAY_ADDRESS={at}" if at else ""))
    version, joined, found = json.loads(_last_line(asked.stdout))
    if joined:
        return Finding("Ray", True, f"{version}, --engine ray has a cluster of {found} processors")
    where = "ray start --head starts one, RAY_ADDRESS names another" if joined is None else "see RAY_ADDRESS"
    return Finding("Ray", joined, f"{version}, --engine ray {found}: {where}")


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("PyTorch", None, f"not installed. It runs plans. Install it {how_to_install('torch')}")
    asked = _ask(_ASK_TORCH)
    if asked.returncode != 0:
        return Finding("PyTorch", False, _last_line(asked.stderr))
    version, devices = json.loads(asked.stdout)
    return Finding("PyTorch", True, f"{version}, {', '.join(devices) or 'no CUDA device'}{_beyond_tested(version)}")


def _beyond_tested(version: str) -> str:
    """Say so if a release of PyTorch is older or newer than those tested."""
    oldest, newest = TESTED_TORCH
    if _release(version) > _release(newest):
        return f"; newer than tested ({oldest} to {newest}): if a plan does not run, install torch {newest}"
    return f"; older than supported ({oldest} to {newest})" if _release(version) < _release(oldest) else ""


def _release(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


def _index() -> Finding:
    asked = _ask(_ASK_INDEX)
    if asked.returncode != 0:
        return Finding("index", False, _last_line(asked.stderr))
    compiled = asked.stdout.strip() == "compiled"
    return Finding("index", True if compiled else None, "compiled" if compiled else "in numpy: a C++ compiler helps")


def _ask(code: str, within_s: float = _WITHIN_S) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {within_s:g} s")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it ended without a word"])[-1]


def _server(arguments: argparse.Namespace) -> Finding:
    url = arguments.server
    try:
        with connect(arguments) as client:
            names = [solver["name"] for solver in client.get("/v1/solvers")["solvers"]]
    except LoadmasterError as error:
        return Finding(f"service at {url}", False, str(error))
    return Finding(f"service at {url}", True, f"answers, with {', '.join(names)}")
