"""``completion``: a script that lets a shell complete commands, kinds, names and files: Tab starts no Python."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.lazy import LazyParser, suggested
from loadmaster.api.cli.terminal import Terminal

SHELLS = ("bash", "zsh", "fish")
_WHERE = {
    "bash": 'eval "$(loadmaster completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(loadmaster completion zsh)" in ~/.zshrc, after compinit',
    "fish": "loadmaster completion fish > ~/.config/fish/completions/loadmaster.fish",
}


def completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``completion`` to its parser."""
    parser.description = _completion.__doc__
    parser.epilog = "; ".join(f"{shell}: {where}" for shell, where in _WHERE.items())
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=_completion)


def _completion(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print what makes a shell complete this command line on Tab, with the kinds that are installed."""
    import shtab

    _prepare(arguments.command_line)
    terminal.data(shtab.complete(arguments.command_line, arguments.shell))
    return 0


def _prepare(parser: argparse.ArgumentParser) -> None:
    """Load every command below a parser, and say of every argument what it takes."""
    if isinstance(parser, LazyParser):
        parser.load()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _prepare(below)
        elif names := suggested(action):
            action.choices = names
        elif isinstance(action.metavar, str) and (what := _file_or_folder(action.metavar)) is not None:
            setattr(action, "complete", what)  # noqa: B010 -- an attribute of shtab's


def _file_or_folder(metavar: str) -> str | None:
    if metavar == "FOLDER":
        return "directory"
    return "file" if metavar == "F" or ("." in metavar and "..." not in metavar) else None
