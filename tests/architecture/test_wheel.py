"""The wheel works where only the base dependencies are, and does not take the names ``models`` and ``api``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from loadmaster.executor.compiling import compiler
from tests.architecture.sources import ROOT

pytestmark = pytest.mark.slow

BASE = ("httpx", "numpy", "pydantic", "shtab")
EXTRAS = (
    "alembic",
    "fastapi",
    "highspy",
    "jinja2",
    "markupsafe",
    "networkx",
    "opentelemetry",
    "ortools",
    "prometheus_client",
    "psycopg",
)
EXTRAS += ("pulp", "resvg_py", "sqlalchemy", "starlette", "torch", "triton", "uvicorn")

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

USE_INDEX = """
import logging, sys
logging.basicConfig(level="WARNING", stream=sys.stdout, format="%(message)s")
from loadmaster.executor.index import FragmentedLog, Index
for _ in range(2):
    index = Index([3, 1, 2], [30, 10, 20], FragmentedLog())
assert index.insert([4, 1], [40, 0]).tolist() == [True, False]
assert list(index.items()) == [(1, 10), (2, 20), (3, 30), (4, 40)]
print(index.facts().implementation)
"""

IMPORT_ALL = f"""
import importlib, pkgutil, loadmaster
from loadmaster.errors import MissingExtraError
for module in pkgutil.walk_packages(loadmaster.__path__, "loadmaster."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except MissingExtraError:
        pass
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] in {EXTRAS}, (module.name, error)
"""


def closure(names: tuple[str, ...]) -> list[metadata.Distribution]:
    """Installed distributions that these need, themselves included, without any extra."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        wanted = (Requirement(line) for line in found[name].requires or ())
        waiting += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return list(found.values())


def built(folder: Path, **environment: str) -> Path:
    """The wheel, made in an environment."""
    build = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, env={**os.environ, **environment})
    (wheel,) = folder.glob("loadmaster-*.whl")
    return wheel


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment that holds the wheel and the base dependencies, nothing else."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("the build backend hatchling is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    wheel = built(folder)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for distribution in closure(BASE):
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    subprocess.run([*PIP, "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)], check=True)
    return python


def run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-P", *arguments], cwd=folder, env={}, capture_output=True, text=True, timeout=120
    )


def test_every_module_imports_or_names_its_extra(clean: Path, tmp_path: Path) -> None:
    done = run(clean, "-c", IMPORT_ALL, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_steps_of_the_schema_are_installed(clean: Path) -> None:
    """They are run by their place, so nothing imports them."""
    (site,) = (clean.parents[1] / "lib").glob("python*/site-packages")
    steps = list((ROOT / "loadmaster/api/store/migrations").rglob("*.py"))
    assert len(steps) > 2
    assert [step for step in steps if not (site / step.relative_to(ROOT)).exists()] == []


@pytest.mark.parametrize("name", ["models", "api", "planner", "solvers", "executor", "tests"])
def test_no_floor_is_installed_under_a_common_name(clean: Path, tmp_path: Path, name: str) -> None:
    done = run(clean, "-c", f"import {name}", folder=tmp_path)
    assert "ModuleNotFoundError" in done.stderr


def test_the_command_works_without_extras(clean: Path, tmp_path: Path) -> None:
    command = str(clean.parent / "loadmaster")
    made = run(clean, command, "new", "memory", "--example", "unet-b11", "-o", "problem.json", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    planned = run(clean, command, "plan", "problem.json", "--budget", "8GiB", folder=tmp_path)
    assert planned.returncode == 2
    assert "pip install '.[solver]'" in planned.stderr


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler here")
def test_the_index_comes_compiled(clean: Path, tmp_path: Path) -> None:
    done = run(clean, "-c", USE_INDEX, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done.stderr


def test_without_a_compiler_the_wheel_is_pure_and_the_index_runs(clean: Path, tmp_path: Path) -> None:
    wheel = built(tmp_path, PATH="", CXX="")
    assert wheel.name.endswith("-py3-none-any.whl")
    site = tmp_path / "site"
    subprocess.run([*PIP, "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)], check=True)
    program = f"import sys; sys.path.insert(0, {str(site)!r})\n{USE_INDEX}"
    done = subprocess.run(
        [str(clean), "-P", "-c", program],
        env={"PATH": "", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said, implementation = done.stdout.splitlines()
    assert implementation == "numpy"
    assert "the index runs in numpy" in said and "there is no C++ compiler" in said


def test_the_wheel_carries_the_shipped_data_and_the_types(clean: Path, tmp_path: Path) -> None:
    program = (
        "from importlib.resources import files; from loadmaster.models.memory import presets;"
        "assert len(presets.example_names()) == 6; assert (files('loadmaster') / 'py.typed').is_file();"
        "from loadmaster.models.collective.taccl import sketch_files;"
        "from loadmaster.models.topologies import profiles;"
        "assert len(profiles.profile_names()) == 5; assert len(sketch_files.sketch_names()) == 11;"
        "assert (files('loadmaster.api.report') / 'fonts' / 'DejaVuSans.ttf').is_file();"
        "pages = files('loadmaster') / 'api' / 'server' / 'pages';"
        "assert (pages / 'templates' / 'base.html').is_file();"
        "assert all((pages / 'static' / 'vendor' / name / 'LICENSE').is_file() for name in ('htmx', 'swagger-ui'))"
    )
    done = run(clean, "-c", program, folder=tmp_path)
    assert done.returncode == 0, done.stderr
