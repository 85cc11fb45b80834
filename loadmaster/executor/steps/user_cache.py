"""Cache on disk of measurements that spare the next run its own. Nothing depends on its files: one that cannot be read
counts as missing, one that cannot be written is left out. They are in the user's cache, ``$XDG_CACHE_HOME/loadmaster``
or ``~/.cache/loadmaster``, or where the environment says.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.files import write_text

logger = logging.getLogger(__name__)

# The environment variable that names the folder.
FOLDER = "LOADMASTER_MEASUREMENT_CACHE"


def user_folder(*rooms: str) -> Path:
    """Path of a folder in the user's cache. Whoever writes there makes the folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "loadmaster", *rooms)


def kept_path(room: str, *key: str) -> Path:
    """Path of the file that keeps measurements of one room under a key."""
    said = os.environ.get(FOLDER)
    name = hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]
    return (Path(said) if said else user_folder()) / room / f"{name}.json"


def read_kept(path: Path) -> dict[str, Any]:
    """Read a kept file; empty where it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content to a file, whole or not at all; a failure is logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content), FOLDER)
    except (OSError, InputError) as error:
        logger.info("not kept for the next run: %s", error)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the entries of a file of lines, in order; lines that cannot be read are passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def add_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append an entry as one line. Several processes may do so: a line is written at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(f"{json.dumps(content)}\n".encode())
    except OSError as error:
        logger.info("not kept for the next run: %s", error)
