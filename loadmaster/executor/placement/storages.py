"""Records of storages for as long as they live, not by address: an address is used again once a storage dies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch

from loadmaster.executor.torch_private.autograd import storage_key

_Record = TypeVar("_Record")


class StorageTable(Generic[_Record]):
    """A record for each storage that is known, for as long as it lives.

    A storage has one Python object as long as anything holds it, be it autograd alone; so a weak reference to that
    object ends when the memory is freed, and not before.

    Args:
        died: called with the record of a storage whose memory was freed.
    """

    def __init__(self, died: Callable[[_Record], None] | None = None) -> None:
        self._records: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Record]] = {}
        self._died = died

    def get(self, storage: torch.UntypedStorage) -> _Record | None:
        """Return the record of a storage; None if the storage is not known."""
        found = self._records.get(storage_key(storage))
        return None if found is None else found[1]

    def add(self, storage: torch.UntypedStorage, record: _Record) -> _Record:
        """Keep a record of a storage until it dies."""
        key = storage_key(storage)

        def freed(_: object) -> None:
            found = self._records.pop(key, None)
            if found is not None and self._died is not None:
                self._died(found[1])

        self._records[key] = (weakref.ref(storage, freed), record)
        return record

    def living(self) -> Iterator[tuple[torch.UntypedStorage, _Record]]:
        """Iterate over the known storages and their records, in the order in which they were added."""
        for reference, record in list(self._records.values()):
            storage = reference()
            if storage is not None:
                yield storage, record

    def clear(self) -> None:
        """Forget all storages, without calling ``died``."""
        self._records.clear()
