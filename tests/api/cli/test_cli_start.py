"""What the command line loads: nothing of a command that is not chosen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadmaster.api.cli import app
from loadmaster.models.kind import resolve

LISTS = """
import sys
from loadmaster.api.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"numpy", "pydantic", "httpx", "loadmaster.planner", "loadmaster.solvers", "loadmaster.api.client"}
rooms = {name for name in sys.modules if name.startswith("loadmaster.models.") and name.count(".") > 2}
assert not (heavy & set(sys.modules) or rooms), (heavy & set(sys.modules), rooms)
"""


def test_the_help_loads_no_command_and_no_kind() -> None:
    done = subprocess.run([sys.executable, "-c", LISTS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(app.COMMANDS) <= set(done.stdout.split())


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_a_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(resolve(app.COMMANDS[name][1]))
    with pytest.raises(SystemExit) as end:
        app.main([name, "--help"])
    assert end.value.code == 0
    assert f"loadmaster {name}" in capsys.readouterr().out
