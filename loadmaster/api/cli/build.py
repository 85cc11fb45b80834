"""``new``: make problem documents from presets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from loadmaster.api.cli.files import write_json
from loadmaster.api.cli.lazy import LazyParser
from loadmaster.api.cli.terminal import Terminal
from loadmaster.models.documents import Document
from loadmaster.models.files import expect_writable
from loadmaster.models.kind import Kind, resolve
from loadmaster.models.kinds import all_kinds, kind_named, read_problem


class New(Protocol):
    """The module of a kind that builds its problems. If it has a function ``listing() -> str``, of names that its flags
    know, there is a flag ``--list`` that prints it."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> argparse._ActionsContainer:
        """Add the flags of the kind; returns the parser, or the group of flags one of which must be given."""

    def build(self, arguments: argparse.Namespace) -> Document:
        """The problem document; refuses (InputError) by the flag's name."""


class _Listing(argparse.Action):
    """``--list``: prints and ends, as ``--help`` does, whatever else would have to be given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        Terminal().data(self.const())
        parser.exit()


def new_arguments(new: argparse.ArgumentParser) -> None:
    """Add the arguments of ``new``: a subcommand for each kind, with its own flags."""
    new.description = _new.__doc__
    kinds = new.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=LazyParser)
    for kind in all_kinds().values():
        kinds.add_parser(kind.name, help=kind.question, description=_new.__doc__, fill=_fill(kind))


def _fill(kind: Kind) -> Callable[[argparse.ArgumentParser], None]:
    def fill(parser: argparse.ArgumentParser) -> None:
        room: New = resolve(kind.new)
        needed = room.add_arguments(parser)
        if (listing := getattr(room, "listing", None)) is not None:
            needed.add_argument("--list", action=_Listing, nargs=0, const=listing, help="list the names known")
        if kind.limit is not None:
            parser.add_argument(kind.limit.flag, dest="limit", metavar="LIMIT", help=kind.limit.help)
        parser.add_argument("-o", "--output", default="-", metavar="PROBLEM.json", help="stdout if not given")
        parser.set_defaults(run=_new)

    return fill


def _new(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Build a problem document from a preset."""
    expect_writable(arguments.output, "-o")
    kind = kind_named(arguments.kind)
    room: New = resolve(kind.new)
    document = dict(room.build(arguments))
    problem = read_problem(document)
    if kind.limit is not None and arguments.limit is not None:
        document[kind.limit.field] = kind.limit.value(arguments.limit, problem, kind.limit.flag)
    write_json(arguments.output, document, terminal)
    if arguments.output != "-":
        sizes = ", ".join(f"{what} {count}" for what, count in problem.sizes.items())
        terminal.say(f"{arguments.output}: {problem.name}, {sizes}")
    return 0
