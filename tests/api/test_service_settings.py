"""Settings from the environment and from flags; log lines for machines."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from loadmaster.api.logs import JsonFormatter
from loadmaster.api.planning import load_planner
from loadmaster.api.settings import Settings
from loadmaster.errors import InputError


def test_flags_beat_the_environment_beats_the_defaults() -> None:
    environment = {"LOADMASTER_PORT": "9000", "LOADMASTER_WORKERS": "3", "OTHER": "x"}
    settings = Settings.from_environment(environment, workers=5, host=None)
    assert (settings.port, settings.workers, settings.host) == (9000, 5, "127.0.0.1")


def test_settings_survive_the_way_through_an_environment() -> None:
    settings = Settings(port=1, lease_s=2.5, database_url="sqlite:///x.db", planner="a:b", log_format="json")
    assert Settings.from_environment(settings.to_environment()) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "70000"),
        ("WORKERS", "-1"),
        ("WORKERS", "1.5"),
        ("LEASE_S", "0"),
        ("LEASE_S", "nan"),
        ("POLL_S", "inf"),
        ("MAX_BODY_BYTES", "0"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "chatty"),
    ],
)
def test_bad_settings_are_named(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"(?i){name}"):
        Settings.from_environment({f"LOADMASTER_{name}": value})


@pytest.mark.parametrize("path", ["", "nosuchmodule:x", "json:nothing", "json"])
def test_a_planner_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(InputError, match="planner"):
        load_planner(path)


def test_log_lines_are_json() -> None:
    try:
        raise ValueError("inside")
    except ValueError:
        record = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, "job %s", ("x",), sys.exc_info())
    record.job = "plan_1"
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["logger"], line["message"], line["job"]) == ("warning", "a.b", "job x", "plan_1")
    assert "ValueError: inside" in line["exception"]
    assert line["time"].endswith("Z")
