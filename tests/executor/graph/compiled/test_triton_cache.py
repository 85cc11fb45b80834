"""Generated sources on disk: one file for each content, whole or written again."""

from __future__ import annotations

import pytest

from loadmaster.executor.graph.compiled.triton import source

TEXT = "ANSWER = 42\n"


def test_the_same_content_is_one_file(tmp_path):
    first, second = source.written(TEXT, tmp_path), source.written(TEXT, tmp_path)
    assert first == second
    assert [*tmp_path.iterdir()] == [first]
    assert first.read_text() == TEXT


def test_another_content_is_another_file(tmp_path):
    assert source.written(TEXT, tmp_path) != source.written(TEXT + "\n", tmp_path)


@pytest.mark.parametrize("content", [b"", b"ANSWER = 4", b"\xff\xfe", TEXT.encode() * 2])
def test_a_corrupt_file_is_written_again(tmp_path, content):
    path = source.written(TEXT, tmp_path)
    path.write_bytes(content)
    assert source.written(TEXT, tmp_path).read_text() == TEXT
    assert [*tmp_path.iterdir()] == [path]


def test_the_environment_says_where_sources_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_KERNEL_CACHE", str(tmp_path / "kernels"))
    assert source.folder() == tmp_path / "kernels"
    assert source.folder().is_dir()


def test_a_folder_that_cannot_be_made_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOADMASTER_KERNEL_CACHE", str(tmp_path / "file" / "kernels"))
    assert source.folder().is_dir()


def test_a_module_is_imported_once_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_KERNEL_CACHE", str(tmp_path))
    text = f"# {tmp_path}\n{TEXT}"
    module = source.imported(text)
    assert module.ANSWER == 42
    assert module is source.imported(text)
    assert [str(path) for path in tmp_path.iterdir()] == [module.__file__]
