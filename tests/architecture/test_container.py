"""What the Dockerfile promises, read from its instructions."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

import pytest

from tests.architecture.sources import ROOT


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str


def instructions() -> list[Instruction]:
    """The Dockerfile, continued lines joined, comments dropped."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for instruction in instructions():
        if instruction.word == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def final(word: str) -> list[str]:
    return [i.rest for i in stages()[-1] if i.word == word]


def test_two_stages_and_only_the_environment_is_taken_over() -> None:
    assert len(stages()) == 2
    copies = final("COPY")
    assert len(copies) == 1 and copies[0].startswith("--from=build ")


def test_only_the_server_extra_is_installed() -> None:
    installs = [i.rest for i in instructions() if i.word == "RUN" and "pip install" in i.rest]
    assert len(installs) == 1
    assert ".[server]" in installs[0]
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


def test_health_is_asked_of_livez() -> None:
    (check,) = final("HEALTHCHECK")
    command = json.loads(check[check.index("CMD") + 3 :])
    assert command[0] == "python"
    assert "/livez" in command[-1]
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
    copied = {s for i in stages()[0] if i.word == "COPY" for s in i.rest.split()[:-1]}
    assert {line[1:] for line in lines if line.startswith("!")} == {source.removeprefix("./") for source in copied}
