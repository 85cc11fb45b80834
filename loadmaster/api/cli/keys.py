"""``keys``: who may use a service. Works on its job store, wherever the service runs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import moment, table
from loadmaster.models.units import parse_bytes

if TYPE_CHECKING:
    from loadmaster.api.store.keys import Key, Keys

_SCOPES = ("read", "submit", "admin")


def keys_arguments(keys: argparse.ArgumentParser) -> None:
    """Add the arguments of ``keys``: its verbs ``add``, ``list`` and ``revoke``."""
    verbs = keys.add_subparsers(
        dest="verb", metavar="add|list|revoke", required=True, parser_class=argparse.ArgumentParser
    )
    add = verbs.add_parser("add", help="make a key and print its secret, once", description=_add.__doc__)
    add.add_argument("name", metavar="NAME", help="of whoever gets it: the owner of what is submitted with it")
    add.add_argument(
        "--scope",
        choices=_SCOPES,
        required=True,
        help="read: look at everything; submit: also submit, and cancel and delete its own; admin: those of all",
    )
    add.add_argument("--max-queued", type=int, metavar="N", help="its jobs that may wait at a time (any number)")
    add.add_argument("--max-running", type=int, metavar="N", help="its jobs that may run at a time (any number)")
    add.add_argument("--max-bytes", metavar="SIZE", help="that the store keeps of its jobs, as in 4GiB (16GiB)")
    every = verbs.add_parser("list", help="the keys, without their secrets", description=_list.__doc__)
    revoke = verbs.add_parser("revoke", help="let a key open nothing any more", description=_revoke.__doc__)
    revoke.add_argument("name", metavar="NAME")
    for verb, run in ((add, _add), (every, _list), (revoke, _revoke)):
        verb.add_argument("--database-url", metavar="URL", help="of the job store (SQLite in the home folder)")
        verb.set_defaults(run=run)
    for verb in (add, every):
        verb.add_argument("--json", action="store_true", help="print JSON")


@contextmanager
def _keys(arguments: argparse.Namespace) -> Iterator[Keys]:
    from loadmaster.api.settings import Settings
    from loadmaster.api.store.database import Database
    from loadmaster.api.store.keys import Keys

    database = Database(Settings.from_environment(database_url=arguments.database_url).database_url)
    try:
        yield Keys(database)
    finally:
        database.close()


def _add(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make a key and print its secret, which nothing can show again. The name of a revoked key may be given again."""
    from loadmaster.api.store.keys import Scope

    max_bytes = None if arguments.max_bytes is None else parse_bytes(arguments.max_bytes, "--max-bytes")
    quotas = {"max_queued": arguments.max_queued, "max_running": arguments.max_running, "max_bytes": max_bytes}
    with _keys(arguments) as keys:
        secret = keys.add(arguments.name, Scope(arguments.scope), **quotas)
    terminal.say("The key is shown this once; only its hash is kept.")
    if arguments.json:
        terminal.json({"name": arguments.name, "scope": arguments.scope, **quotas, "key": secret})
    else:
        terminal.data(secret)
    return 0


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List the keys, those that were revoked too. Nobody can see their secrets."""
    with _keys(arguments) as keys:
        found = keys.all()
    if arguments.json:
        terminal.json([dataclasses.asdict(key) for key in found])
    else:
        columns = ["name", "scope", "waiting at most", "running at most", "stored at most", "made", "revoked"]
        terminal.data(table([_row(key) for key in found], columns))
    return 0


def _row(key: Key) -> list[str]:
    quotas = ("" if most is None else str(most) for most in (key.max_queued, key.max_running, key.max_bytes))
    times = ("" if at is None else moment(at) for at in (key.created_at, key.revoked_at))
    return [key.name, key.scope.value, *quotas, *times]


def _revoke(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Let a key open nothing any more, at once and on every server. Its jobs stay, and go on."""
    with _keys(arguments) as keys:
        keys.revoke(arguments.name)
    terminal.say(f"{arguments.name} is revoked")
    return 0
