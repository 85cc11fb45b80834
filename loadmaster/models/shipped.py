"""Shipped documents of the package: published profiles and sketches, in the ``data`` folder of their room."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from loadmaster.errors import InputError
from loadmaster.models.documents import Document


@dataclass(frozen=True)
class Shipped:
    """Folder of shipped documents in the ``data`` of a room, a package. In errors, ``field`` is the one in which a user
    names a document, and ``noun`` the word for it."""

    room: str
    folder: str
    field: str
    noun: str

    @cached_property
    def _path(self) -> Traversable:
        return files(self.room) / "data" / self.folder

    def names(self) -> list[str]:
        """Names of the documents, without their endings, ascending."""
        return sorted(
            entry.name.removesuffix(".json") for entry in self._path.iterdir() if entry.name.endswith(".json")
        )

    def read(self, name: str) -> Document:
        """Read a document by its name, as published; raise InputError if there is none."""
        names = self.names()
        if name not in names:
            raise InputError(self.field, name, f"no such {self.noun}", f"Choose one of: {', '.join(names)}.")
        document = json.loads((self._path / f"{name}.json").read_text("utf-8"))
        assert isinstance(document, dict)
        return document
