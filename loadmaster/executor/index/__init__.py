"""The kind ``index`` on the executor floor: from 64-bit keys to 64-bit payloads, updatable. It needs no torch."""

from __future__ import annotations

from loadmaster.executor.index.core_protocol import Facts
from loadmaster.executor.index.index import Index
from loadmaster.executor.index.monitor import Checked, Monitor
from loadmaster.executor.index.tune import Tuned, tune
from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray, HashTable, SortedArray

__all__ = [
    "Checked",
    "Configuration",
    "Facts",
    "FragmentedLog",
    "GappedArray",
    "HashTable",
    "Index",
    "Monitor",
    "SortedArray",
    "Tuned",
    "tune",
]
