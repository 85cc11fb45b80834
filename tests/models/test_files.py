"""Files are written whole, where they are meant to go: links, pipes and devices stay what they are."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from loadmaster.errors import InputError
from loadmaster.models import files
from loadmaster.models.files import expect_writable, write_text


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    expect_writable(str(pipe), "-o")
    write_text(pipe, "text", "-o")
    reader.join(timeout=30)
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_stays_one_and_leads_to_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "latest.json", tmp_path / "elsewhere" / "plan.json"
    link.symlink_to(target)
    for text in ("first", "second"):
        expect_writable(str(link), "-o")
        write_text(link, text, "-o")
        assert link.is_symlink() and target.read_text() == text


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("before")
    path.chmod(0o600)
    write_text(path, "after", "-o")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "after"


def test_names_as_long_as_they_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 125 + ".json")
    write_text(path, "text", "-o")
    assert path.read_text() == "text"


def test_an_interrupt_leaves_what_was_there_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("before")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "after", "-o")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plan.json", "before")]


def test_what_cannot_be_written_is_refused_before_the_work() -> None:
    for path in ("/proc/plan.json", "\0", "x" * 300):
        with pytest.raises(InputError) as error:
            expect_writable(path, "-o")
        assert error.value.field == "-o" and "cannot be written" in error.value.problem
