"""A PostgreSQL of the tests' own: a fresh cluster in a temporary folder, reached through a socket that lies there."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import psycopg
import pytest

from loadmaster.api.store.database import Database

# Where Debian keeps them: not on the path, and several versions side by side.
_DEBIAN = Path("/usr/lib/postgresql")
# The server refuses to run as root, and so does initdb.
_USER = "postgres"


def programs() -> Path | None:
    """The folder of initdb and pg_ctl: of those on the path, else of the newest version."""
    by_version = sorted(_DEBIAN.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    for folder in (*map(Path, os.get_exec_path()), *by_version):
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


# Also when the tests are killed: their end of the pipe closes then.
_STOP_WITH_THE_TESTS = 'cat >/dev/null; "$1" stop --pgdata="$2/data" --mode=immediate; rm -r "$2"'


class PrivatePostgresql:
    """Runs until :meth:`stop`. Its disk writes are not forced: it must be quick, not safe."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="loadmaster-pg-"))
        self._who: list[str] = []
        if os.geteuid() == 0:
            self._who = ["runuser", "-u", _USER, "--"]
            shutil.chown(self._folder, _USER)
        self._run("initdb", "--username=loadmaster", "--auth=trust", "--no-sync", "--encoding=UTF8")
        quick = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=200"
        socket = f"-c listen_addresses='' -c unix_socket_directories='{self._folder}'"
        log = f"--log={self._folder / 'log'}"
        self._run("pg_ctl", "start", "--wait", log, "--options", f"{socket} {quick}")
        keep = ["sh", "-c", _STOP_WITH_THE_TESTS, "sh", str(programs / "pg_ctl"), str(self._folder)]
        self._keeper = subprocess.Popen(
            [*self._who, *keep],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def new_database(self, *, empty: bool = False) -> str:
        """The URL of one, with this release's tables unless it is to be empty: a user, and a schema that is all this
        user sees. A true database takes long."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self._url("loadmaster")) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN".encode())
            connection.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}".encode())
        if not empty:
            with psycopg.connect(self._url(name)) as connection:
                connection.execute(self._tables.replace("TEMPLATE", name).encode())
        return self._url(name)

    @cached_property
    def _tables(self) -> str:
        """Statements that lead to what migrations lead to, which take longer than most tests, in a schema TEMPLATE."""
        url = self.new_database(empty=True)
        Database(url).close()
        name = url.removeprefix("postgresql://").partition("@")[0]
        # Where initdb truly is: not all programs need have a link on the path.
        program = (self._programs / "initdb").resolve().with_name("pg_dump")
        dump = [*self._who, str(program), f"--schema={name}", "--inserts", "--no-owner", f"--dbname={url}"]
        done = subprocess.run(dump, capture_output=True, text=True, check=True, cwd=self._folder)
        # Lines of pg_dump's for psql alone, and the schema that is there.
        lines = [line for line in done.stdout.splitlines() if not line.startswith(("\\", "CREATE SCHEMA", "--"))]
        return "\n".join(lines).replace(name, "TEMPLATE")

    def cut(self) -> None:
        """Break all connections, as a restart does."""
        with psycopg.connect(self._url("loadmaster")) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    def stop(self) -> None:
        """Give everything back."""
        self._keeper.communicate()

    def _url(self, user: str) -> str:
        return f"postgresql://{user}@/postgres?host={self._folder}"

    def _run(self, program: str, *arguments: str) -> None:
        """With the data's folder first in line, as the user that may."""
        command = [*self._who, str(self._programs / program), f"--pgdata={self._folder / 'data'}", *arguments]
        # No pipes: the server would keep them open.
        with (self._folder / f"{program}.out").open("wb") as output:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._folder)
        if done.returncode:
            raise RuntimeError(f"{program}: {(self._folder / f'{program}.out').read_text()}")


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each sort. A file whose tests are for both says ``database_url = each_database_url``."""
    if request.param == "sqlite":
        return copied(request.getfixturevalue("migrated_file"), tmp_path)
    return _server(request).new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def each_empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same without this release's tables, for tests of how they come to be."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'service.db'}"
    return _server(request).new_database(empty=True)


def _server(request: pytest.FixtureRequest) -> PrivatePostgresql:
    server = request.getfixturevalue("postgresql")
    assert isinstance(server, PrivatePostgresql)
    return server


def copied(migrated_file: Path, folder: Path) -> str:
    """The URL of a copy of a SQLite database in a folder."""
    return f"sqlite:///{shutil.copy(migrated_file, folder / 'service.db')}"
