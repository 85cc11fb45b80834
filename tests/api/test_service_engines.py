"""Engines that cannot be used are refused, with what helps."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from loadmaster.api.cli import main
from loadmaster.api.serve import make_server
from loadmaster.api.settings import Settings
from loadmaster.errors import InputError, MissingExtraError


def test_an_engine_that_is_not_known_is_named() -> None:
    with pytest.raises(InputError, match=r"engine.*slurm"):
        Settings(engine="slurm")


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.usefixtures("without_ray")
def test_a_server_does_not_start_without_the_packages_of_its_engine(make_settings: Callable[..., Settings]) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[ray\]'"):
        make_server(make_settings(engine="ray"))


@pytest.mark.usefixtures("without_ray")
def test_a_worker_says_which_extra_brings_its_engine(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--engine", "ray", "--database-url", database_url]) == 2
    assert "pip install '.[ray]'" in capsys.readouterr().err
