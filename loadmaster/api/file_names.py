"""Names of documents as names of files: whatever their author wrote, they lead nowhere else."""

from __future__ import annotations

import re

_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 100


def file_name(name: str, rest: str = "") -> str:
    """The name of a file, without a folder, made from the name of a document.

    >>> file_name("../../x y", ".html")
    'x-y.html'
    """
    return (_OTHER_CHARACTERS.sub("-", name).strip(".-")[:_LONGEST] or "document") + rest
