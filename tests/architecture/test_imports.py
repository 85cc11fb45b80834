"""Importing the package or the client is cheap: no kind, no solver, no web server, no pictures come with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = """
import sys
heavy = {"highspy", "ortools", "pulp", "networkx", "matplotlib", "resvg_py", "fastapi", "starlette", "uvicorn",
         "sqlalchemy", "prometheus_client", "torch"}
rooms = {"memory", "collective", "placement", "training"}
loaded = {name for name in sys.modules if name.split(".")[0] in heavy}
loaded |= {name for name in sys.modules if name.startswith("loadmaster.") and rooms & set(name.split("."))}
assert not loaded, sorted(loaded)
"""


@pytest.mark.parametrize(
    "program",
    [
        "import loadmaster",
        "from loadmaster import Client, AsyncClient",
        "from loadmaster import read_problem, read_plan, check_plan, write_plan, write_problem",
        "from loadmaster import PlanOptions, plan, frontier",
        "from loadmaster.models.kinds import all_kinds; all_kinds()",
        "from loadmaster.api.client import Client; Client('http://127.0.0.1:9').plan('plan_1')",
    ],
)
def test_what_is_imported_before_it_is_needed(program: str) -> None:
    subprocess.run([sys.executable, "-c", f"{program}\n{HEAVY}"], check=True, timeout=120)


def test_a_kind_loads_itself_and_no_other() -> None:
    program = """
import sys
from loadmaster import read_problem
from loadmaster.models.memory.presets import chain
read_problem(chain(3, 100))
others = [name for name in sys.modules if name.startswith("loadmaster.") and "collective" in name.split(".")]
assert not others, others
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
