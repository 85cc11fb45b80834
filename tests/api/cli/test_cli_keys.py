"""``keys``, ``serve --keys``, and the commands that send a key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from running_service import RunningService

from loadmaster.api import logs
from loadmaster.api.cli import app
from loadmaster.api.serve import Server
from loadmaster.api.store.database import Database
from loadmaster.api.store.keys import Keys
from loadmaster.models.memory.presets import chain

MEGABYTE = 1_000_000


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def database_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh job store; it is also the default one."""
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    monkeypatch.setenv("LOADMASTER_DATABASE_URL", url)
    return url


def test_a_key_is_shown_once(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keys", "add", "ann", "--scope", "submit", "--max-queued", "5", "--max-running", "2") == 0
    out, err = capsys.readouterr()
    secret = out.strip()
    # Standard output is the secret alone: KEY=$(loadmaster keys add ...).
    assert out == f"{secret}\n" and len(secret) > 40
    assert secret not in err and "once" in err
    assert run("keys", "list") == 0
    listed = capsys.readouterr().out
    assert secret not in listed
    assert {"ann", "submit", "5", "2"} <= set(listed.split())
    assert run("keys", "list", "--json") == 0
    (key,) = json.loads(capsys.readouterr().out)
    assert (key["name"], key["scope"], key["max_queued"], key["max_running"]) == ("ann", "submit", 5, 2)
    assert key["revoked_at"] is None
    assert "secret" not in " ".join(key)
    found = Keys(Database(database_url)).find(secret)
    assert found is not None and found.name == "ann"


def test_add_as_json(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keys", "add", "eye", "--scope", "read", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    found = Keys(Database(database_url)).find(made["key"])
    assert found is not None and found.name == made["name"] == "eye"


def test_revoke(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("keys", "add", "ann", "--scope", "admin")
    secret = capsys.readouterr().out.strip()
    assert run("keys", "revoke", "ann") == 0
    assert Keys(Database(database_url)).find(secret) is None
    capsys.readouterr()
    run("keys", "list", "--json")
    assert json.loads(capsys.readouterr().out)[0]["revoked_at"] > 0
    assert run("keys", "revoke", "ann") == 2
    assert "keys list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "ann"], "--scope"),
        (["add", "ann", "--scope", "root"], "root"),
        (["add", "a b", "--scope", "read"], "a b"),
        (["add", "ann", "--scope", "read", "--max-queued", "0"], "max_queued"),
        (["add", "taken", "--scope", "read"], "Revoke"),
        (["revoke", "nobody"], "nobody"),
        (["list", "--database-url", "nonsense"], "database_url"),
        ([], "add|list|revoke"),
    ],
)
def test_bad_input_is_two(
    database_url: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("keys", "add", "taken", "--scope", "read")
    assert run("keys", *arguments) == 2
    assert says in capsys.readouterr().err


def test_a_server_that_others_reach_does_not_start_without_keys(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "--host", "0.0.0.0") == 2
    assert "--keys required" in capsys.readouterr().err


@pytest.fixture
def asking(start_service: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch) -> RunningService:
    """A service that asks for keys; it is also the default one."""
    service = start_service(keys="required", planner="tests.api.cli.hand_planner:HandPlanner")
    monkeypatch.setenv("LOADMASTER_SERVER", service.url)
    return service


def test_commands_send_the_key_and_never_say_it(
    asking: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(chain(6, MEGABYTE)))
    store = ["--database-url", asking.settings.database_url]
    run("keys", "add", "ann", "--scope", "submit", *store)
    secret = capsys.readouterr().out.strip()
    monkeypatch.delenv("LOADMASTER_API_KEY", raising=False)
    assert run("submit", path, "--budget", "8MB") == 2
    assert "API key" in capsys.readouterr().err
    assert run("submit", path, "--budget", "8MB", "--api-key", secret) == 0
    out, err = capsys.readouterr()
    plan_id = out.strip()
    assert secret not in out + err
    monkeypatch.setenv("LOADMASTER_API_KEY", secret)
    said = ""
    for command in (
        ["list"],
        ["list", "--owner", "ann", "--json"],
        ["cancel", plan_id],
        ["watch", plan_id],
        ["watch", "plan_0"],
        ["submit", "--help"],
    ):
        run(*command)
        out, err = capsys.readouterr()
        said += out + err
    assert plan_id in said and "ann" in said and "cancelled" in said
    assert secret not in said
    assert run("list", "--owner", "bob", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("made", [0, 1])
def test_a_server_that_can_let_nobody_in_says_so(
    database_url: str, made: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(made):
        run("keys", "add", f"k{number}", "--scope", "read")
    run("keys", "add", "gone", "--scope", "read")
    run("keys", "revoke", "gone")
    monkeypatch.setattr(Server, "run", lambda self: None)
    monkeypatch.setattr(logs, "configure", lambda settings: None)
    assert run("serve", "--keys", "required") == 0
    assert ("loadmaster keys add" in caplog.text) == (made == 0)
