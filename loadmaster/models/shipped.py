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
    """Folder of shipped documents.

    Attributes:
        room: package whose ``data`` holds it.
        folder: its name there.
        field, noun: for errors: the field in which a user names a document, and the word for it.
    """

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
        """Read a document by its name, as published.

        Raises:
            InputError: there is no document of this name.
        """
        names = self.names()
        if name not in names:
            raise InputError(self.field, name, f"no such {self.noun}", f"Choose one of: {', '.join(names)}.")
        document = json.loads((self._path / f"{name}.json").read_text("utf-8"))
        assert isinstance(document, dict)
        return document
