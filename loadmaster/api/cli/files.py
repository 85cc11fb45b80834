"""Files that the command line reads and writes; a path of ``-`` is stdout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.api.cli.terminal import Terminal
from loadmaster.errors import InputError
from loadmaster.models.files import write_text


def write_json(path: str, document: Mapping[str, Any], terminal: Terminal, field: str = "-o") -> None:
    """Write a document to a file, or to stdout for ``-``.

    Raises:
        InputError: naming ``field``, when the path cannot be written.
    """
    if path == "-":
        terminal.json(document)
        return
    write_text(path, json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n", field)


def expect_writable(path: str | None, field: str) -> None:
    """Refuse a path in a missing folder before hours are spent on what should be written there.

    Raises:
        InputError: naming ``field``.
    """
    if path is None or path == "-":
        return
    folder = Path(path).parent
    # Unlike those of Path, these take what is no path for a path to nothing.
    if not os.path.isdir(folder):
        raise InputError(field, path, f"the folder {folder} does not exist", "Make it first, or write elsewhere.")
    if os.path.isdir(path):
        raise InputError(field, path, "is a folder", "Give the path of a file.")


def expect_folder(path: str | None, field: str) -> None:
    """Refuse a folder that neither exists nor can be made where it should be.

    Raises:
        InputError: naming ``field``.
    """
    if path is None or os.path.isdir(path):
        return
    if os.path.exists(path):
        raise InputError(field, path, "is a file", "Give a folder.")
    expect_writable(path, field)
