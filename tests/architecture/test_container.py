"""What the Dockerfile promises, read from its instructions."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.architecture.dockerfile import instructions, stages
from tests.architecture.sources import ROOT

# Beside the Python that runs the tests, whether or not its environment is active.
PATH = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])


def final(word: str) -> list[str]:
    return [i.rest for i in stages()[-1] if i.word == word]


def test_two_stages_and_only_the_environment_is_taken_over() -> None:
    assert len(stages()) == 2
    copies = final("COPY")
    assert len(copies) == 1 and copies[0].startswith("--from=build ")


def test_only_the_server_extra_is_installed() -> None:
    runs = " ".join(i.rest for i in instructions() if i.word == "RUN")
    assert '"loadmaster[server]"' in runs
    assert not any("torch" in i.rest for i in instructions())


def test_it_runs_as_a_numbered_user_who_is_not_root() -> None:
    (user,) = final("USER")
    assert all(part.isdigit() and int(part) > 0 for part in user.split(":"))
    words = [i.word for i in stages()[-1]]
    assert "RUN" not in words[words.index("USER") :]


@pytest.mark.parametrize("word", ["ENTRYPOINT", "CMD"])
def test_commands_are_in_exec_form(word: str) -> None:
    (command,) = final(word)
    assert all(isinstance(part, str) for part in json.loads(command))


def test_health_is_asked_of_readyz() -> None:
    (check,) = final("HEALTHCHECK")
    command = json.loads(check[check.index("CMD") + 3 :])
    assert command[0] == "python"
    assert "/readyz" in command[-1]
    compile(command[-1], "healthcheck", "exec")


def test_it_stops_by_sigterm_and_keeps_its_data() -> None:
    assert final("STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(final("VOLUME")[0]) == ["/data"]
    environment = dict(word.split("=", 1) for line in final("ENV") for word in shlex.split(line))
    assert environment["LOADMASTER_DATABASE_URL"].startswith("sqlite:////data/")
    assert final("EXPOSE") == [environment["LOADMASTER_PORT"]]


def test_it_asks_for_keys_since_others_reach_it() -> None:
    environment = dict(word.split("=", 1) for line in final("ENV") for word in shlex.split(line))
    assert environment["LOADMASTER_HOST"] == "0.0.0.0"
    assert environment["LOADMASTER_KEYS"] == "required"


def test_it_says_what_it_is() -> None:
    labels = dict(word.split("=", 1) for line in final("LABEL") for word in shlex.split(line))
    assert {f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses", "version")} <= set(
        labels
    )


def test_the_version_label_is_the_version() -> None:
    import loadmaster

    assert f'image.version="{loadmaster.__version__}"' in (ROOT / "Dockerfile").read_text()


def test_the_builder_is_sent_sources_only() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    copied = {source for i in stages()[0] for source in i.copied()[0]}
    assert {line[1:] for line in lines if line.startswith("!")} == {source.removeprefix("./") for source in copied}


@pytest.mark.skipif(shutil.which("hadolint", path=PATH) is None, reason="hadolint is not installed here")
def test_hadolint_finds_nothing() -> None:
    hadolint = str(shutil.which("hadolint", path=PATH))
    done = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def pinned(name: str) -> dict[str, SpecifierSet]:
    """Each requirement of a file of pins, with its version."""
    found = {}
    for entry in (ROOT / "deploy" / name).read_text().replace("\\\n", " ").splitlines():
        if entry.strip() and not entry.lstrip().startswith("#"):
            requirement = Requirement(entry.partition("--hash=")[0])
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
            assert [s.operator for s in requirement.specifier] == ["=="], entry
            found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


def wanted() -> list[tuple[str, str]]:
    """(file of pins, requirement) of what pyproject.toml asks for in the image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    server = [*project["project"]["dependencies"], *extras["server"], *extras["solver"]]
    return [
        *(("requirements.txt", line) for line in server if not line.startswith("loadmaster")),
        *(("build-requirements.txt", line) for line in project["build-system"]["requires"]),
    ]


@pytest.mark.parametrize(("name", "line"), wanted())
def test_the_pins_keep_what_the_project_asks_for(name: str, line: str) -> None:
    requirement = Requirement(line)
    (pin,) = pinned(name)[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin.version), "run: make lock"


@pytest.mark.parametrize("name", ["requirements.txt", "build-requirements.txt"])
def test_pins_name_no_place(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text()
    assert "://" not in text and not any(line.startswith("-") for line in text.splitlines())
