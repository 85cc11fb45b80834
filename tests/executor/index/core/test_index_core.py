"""The C++ core of the index, held against std::map by C++ programs under sanitizers; skipped without g++."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from loadmaster.executor import __file__ as executor_file

HERE = Path(__file__).parent
CORE = Path(str(executor_file)).parent / "index" / "core"
COMPILER = shutil.which("g++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")


def _sanitizes(folder: Path, sanitizer: str) -> bool:
    """Whether programs built with the sanitizer run here: its library may be missing, or the kernel may refuse it."""
    source, program = folder / "nothing.cpp", folder / "nothing"
    source.write_text("int main() { return 0; }\n")
    built = subprocess.run([str(COMPILER), f"-fsanitize={sanitizer}", source, "-o", program], capture_output=True)
    return built.returncode == 0 and subprocess.run([program], capture_output=True).returncode == 0


def _run(folder: Path, name: str, arguments: list[str], sanitizer: str) -> None:
    program = folder / name
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{CORE}", f"-I{HERE}"]
    if _sanitizes(folder, sanitizer):
        flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover"]
    sources = [str(HERE / f"{name}.cpp"), str(CORE / "index.cpp")]
    built = subprocess.run([str(COMPILER), *flags, *sources, "-o", str(program)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program), *arguments], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("seed", [1, pytest.param(500, marks=pytest.mark.slow)])
def test_every_structure_agrees_with_a_map(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, "random_operations", [str(seed), "30"], "address,undefined")


@pytest.mark.slow
def test_long_random_sequences_agree_with_a_map(tmp_path: Path) -> None:
    _run(tmp_path, "random_operations", ["9000", "1000"], "address,undefined")


@pytest.mark.slow
def test_faults_leave_the_index_as_it_was(tmp_path: Path) -> None:
    _run(tmp_path, "faults", [], "address,undefined")


@pytest.mark.slow
def test_memory_shrinks_with_the_keys_and_changes_stay_bounded(tmp_path: Path) -> None:
    _run(tmp_path, "shrinking", ["15000"], "address,undefined")


@pytest.mark.slow
def test_a_large_index_shrinks_with_its_keys(tmp_path: Path) -> None:
    _run(tmp_path, "shrinking", ["100000"], "address,undefined")


@pytest.mark.slow
def test_readers_beside_one_writer_see_whole_pairs(tmp_path: Path) -> None:
    _run(tmp_path, "one_writer", ["200", "100000"], "thread")


def test_the_library_builds_without_a_warning(tmp_path: Path) -> None:
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command = [str(COMPILER), *flags, str(CORE / "index.cpp"), "-o", str(tmp_path / "core.so")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
