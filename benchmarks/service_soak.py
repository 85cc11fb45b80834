"""Soak of the service: servers and workers on one database, processes killed at random, no job lost or doubled.

Jobs are small and run on threads of the workers: what is worked hardest is the store and the queue. Ends with status 1
when anything is wrong.

    python -m benchmarks.service_soak
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import record
from tests.api.private_postgresql import PrivatePostgresql, programs
from tests.api.soak import Run, Soak


def measured(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the soak; return what was asked for, and what happened."""
    asked = {name: getattr(options, name) for name in ("jobs", "servers", "workers", "kill_every", "launch", "seed")}
    with tempfile.TemporaryDirectory() as folder:
        outcome = Run(Soak(url, **asked), Path(folder)).outcome()
    rate = round(options.jobs / outcome.seconds, 1)
    return {"asked": asked, "jobs_per_s": rate, **dataclasses.asdict(outcome)}


def main() -> int:
    """Run, record and print; start PostgreSQL where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql", help="a fresh one")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kill-every", type=int, default=100, metavar="N", help="a worker dies when N more jobs ended")
    parser.add_argument("--launch", choices=("thread", "process"), default="thread", help="what a job runs on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.database == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            found = measured(f"sqlite:///{folder}/service.db", options)
        version = None
    else:
        where = programs()
        if where is None:
            parser.error("PostgreSQL's initdb and pg_ctl are not installed here")
        server = PrivatePostgresql(where)
        try:
            found = measured(server.new_database(), options)
        finally:
            server.stop()
        version = subprocess.check_output([where / "postgres", "--version"], text=True).strip() + ", fsync off"
    versions = record.versions("sqlalchemy", "psycopg", "alembic")
    path = record.write(f"service_soak_{options.database}", {"versions": versions, "server": version, **found})
    print(json.dumps(found, indent=2))
    print(path)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
