"""Files that the command line reads and writes; a path of ``-`` is standard input, or standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from loadmaster.api.cli.terminal import Terminal
from loadmaster.errors import InputError
from loadmaster.models.documents import Document, load_document
from loadmaster.models.files import expect_writable, write_text
from loadmaster.models.json_text import parse_json


def write_json(path: str, document: Mapping[str, Any], terminal: Terminal, field: str = "-o") -> None:
    """Write a document to a file, or to stdout for ``-``. Raises InputError naming ``field`` if that fails."""
    if path == "-":
        terminal.json(document)
        return
    write_text(path, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n", field)


def read_document(path: str, field: str) -> Document:
    """A document from a file, or from standard input for ``-``. Raises InputError naming ``field`` where nothing, or no
    JSON object, comes from standard input; as for any file."""
    if path != "-":
        return load_document(path)

    def refused(found: object, problem: str) -> InputError:
        return InputError(field, found, f"standard input {problem}", "Pipe a JSON document into it, or give a path.")

    if sys.stdin is None or sys.stdin.isatty():
        raise refused(path, "is a terminal, with nothing on it")
    content = sys.stdin.buffer.read()
    if not content.strip():
        raise refused(path, "is empty")
    return parse_json(content, refused)


def expect_apart(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None]) -> None:
    """Refuse to write over what is read, or twice to one place. ``outputs``: flag -> path; ``inputs``: name -> path.
    Raises InputError naming the flag."""
    taken = {_place(path): name for name, path in inputs.items() if path is not None and path != "-"}
    for flag, path in outputs.items():
        if path is None:
            continue
        place = _place(path)
        if place in taken:
            raise InputError(flag, path, f"is {taken[place]}, and would be written over", "Write to another place.")
        taken[place] = flag


def _place(path: str) -> str:
    try:
        return path if path == "-" else os.path.realpath(path)
    except (OSError, ValueError):
        return path  # no path at all, as whoever opens it will say


def expect_folder(path: str | None, field: str) -> None:
    """Refuse a folder that neither exists nor can be made where it should be. Raises InputError naming ``field``."""
    if path is None or os.path.isdir(path):
        return
    if os.path.exists(path):
        raise InputError(field, path, "is a file", "Give a folder.")
    expect_writable(path, field)
