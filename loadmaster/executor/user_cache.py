"""What is kept on disk between runs: measurements that spare the next run its own. Nothing there is ever needed.

Files lie in the user's cache, ``$XDG_CACHE_HOME/loadmaster`` or ``~/.cache/loadmaster``. One that cannot be read is as
good as none; one that cannot be written is left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.files import write_text

logger = logging.getLogger(__name__)


def kept_path(room: str, *key: str) -> Path:
    """The file of what is kept in a room under a key."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]
    return Path(base) / "loadmaster" / room / f"{name}.json"


def read_kept(path: Path) -> dict[str, Any]:
    """What is there; empty where nothing is that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(path: Path, content: Mapping[str, Any]) -> None:
    """Write it, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content), "XDG_CACHE_HOME")
    except (OSError, InputError) as error:
        logger.info("not kept for the next run: %s", error)
