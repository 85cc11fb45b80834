"""A small soak: processes are killed while they work, and no job is lost, doubled or miscounted."""

from __future__ import annotations

from pathlib import Path

import pytest
from private_postgresql import each_database_url

from tests.api.soak import Run, Soak

database_url = each_database_url


@pytest.mark.slow
def test_jobs_survive_the_death_of_workers_and_servers(database_url: str, tmp_path: Path) -> None:
    outcome = Run(Soak(database_url, jobs=50), tmp_path).outcome()
    assert outcome.wrong == []
    assert (outcome.killed_workers, outcome.killed_servers) >= (8, 2)
