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


FLAGS = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{CORE}", f"-I{HERE}"]


def _sanitizes(folder: Path, sanitizer: str) -> bool:
    """Whether programs built with the sanitizer run here: its library may be missing, or the kernel may refuse it."""
    source, program = folder / "nothing.cpp", folder / "nothing"
    source.write_text("int main() { return 0; }\n")
    built = subprocess.run([str(COMPILER), f"-fsanitize={sanitizer}", source, "-o", program], capture_output=True)
    return built.returncode == 0 and subprocess.run([program], capture_output=True).returncode == 0


class Programs:
    """The test programs, each built once; the core is compiled once for each sanitizer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flags: dict[str, list[str]] = {}
        self._built: dict[tuple[str, str], str] = {}

    def run(self, name: str, arguments: list[str], sanitizer: str) -> None:
        command = [self._made(name, sanitizer), *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        assert ran.returncode == 0, ran.stderr

    def _made(self, name: str, sanitizer: str) -> str:
        if (name, sanitizer) not in self._built:
            core = self._core(sanitizer)
            self._built[name, sanitizer] = self._compiled([str(HERE / f"{name}.cpp"), core], name, sanitizer)
        return self._built[name, sanitizer]

    def _core(self, sanitizer: str) -> str:
        if ("index", sanitizer) not in self._built:
            sanitizes = _sanitizes(self._folder, sanitizer)
            self._flags[sanitizer] = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover"] if sanitizes else []
            self._built["index", sanitizer] = self._compiled(["-c", str(CORE / "index.cpp")], "index", sanitizer)
        return self._built["index", sanitizer]

    def _compiled(self, sources: list[str], name: str, sanitizer: str) -> str:
        made = str(self._folder / f"{name}-{sanitizer.replace(',', '-')}.o")
        command = [str(COMPILER), *FLAGS, *self._flags[sanitizer], *sources, "-o", made]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        return made


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(500, marks=pytest.mark.slow)])
def test_every_structure_agrees_with_a_map(programs: Programs, seed: int) -> None:
    programs.run("random_operations", [str(seed), "30"], "address,undefined")


@pytest.mark.slow
def test_long_random_sequences_agree_with_a_map(programs: Programs) -> None:
    programs.run("random_operations", ["9000", "600"], "address,undefined")


@pytest.mark.slow
def test_faults_leave_the_index_as_it_was(programs: Programs) -> None:
    programs.run("faults", [], "address,undefined")


@pytest.mark.slow
def test_memory_shrinks_with_the_keys_and_changes_stay_bounded(programs: Programs) -> None:
    programs.run("shrinking", ["15000"], "address,undefined")


@pytest.mark.slow
def test_a_large_index_shrinks_with_its_keys(programs: Programs) -> None:
    """Of more keys than may move at once. In one array they take over a megabyte: it has a chunk of its own."""
    programs.run("shrinking", ["60000"], "address,undefined")


@pytest.mark.slow
def test_readers_beside_one_writer_see_whole_pairs(programs: Programs) -> None:
    programs.run("one_writer", ["200", "100000"], "thread")


@pytest.mark.slow
def test_the_library_builds_without_a_warning(tmp_path: Path) -> None:
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command = [str(COMPILER), *flags, str(CORE / "index.cpp"), "-o", str(tmp_path / "core.so")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
