"""``completion``: what a shell offers on Tab."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from loadmaster.api.cli import app
from loadmaster.api.cli.completion import SHELLS

TABBED = {
    "ne": "new",
    "new me": "memory",
    "new memory --hardware h2": "h200",
    "new memory --example unet-b11-f": "unet-b11-full",
    "new collective --topology dgx": "dgx2",
    "new collective --collective allg": "allgather",
    "hardware show h2": "h200",
    "plan problem.json --method mon": "monet",
    "plan problem.json --tim": "--time-limit",
    "plan prob": "problem.json",
    "show plan.json --problem prob": "problem.json",
    "capture module:factory mem": "memory",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_what_bash_offers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    (tmp_path / "problem.json").write_text("{}")
    function = script.rpartition("-F ")[2].split()[0]
    asked = "".join(
        f"COMP_WORDS=(loadmaster {words}); COMP_CWORD={len(words.split())}; COMPREPLY=(); "
        f'{function}; echo "${{COMPREPLY[@]}}"\n'
        for words in TABBED
    )
    (tmp_path / "ask.sh").write_text(script + asked)
    done = subprocess.run(
        ["bash", "--norc", "ask.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    offered = done.stdout.splitlines()
    assert len(offered) == len(TABBED), done.stderr
    for (words, wanted), found in zip(TABBED.items(), offered, strict=True):
        assert wanted in found.split(), words


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_with_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in app.COMMANDS)
    assert "resnet50-b184-full" in script


def test_a_shell_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app.main(["completion", "abacus"])
    assert end.value.code == 2
    assert "bash" in capsys.readouterr().err
