"""The entry point of the command line: which command, and what its ending means as an exit status.

0 fine, 1 check failed or internal error, 2 usage or bad input, 3 infeasible, 4 limit reached without a plan,
130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import loadmaster
from loadmaster.api.cli import build, catalogue, demo, fit, plans, service, show, sweep
from loadmaster.api.cli.planning import INTERRUPTED
from loadmaster.api.cli.terminal import Terminal
from loadmaster.errors import LoadmasterError, MissingExtraError

# Imported package -> (its distribution, the extra that brings it).
_EXTRAS = {
    "fastapi": ("fastapi", "server"),
    "highspy": ("highspy", "solver"),
    "resvg_py": ("resvg-py", "solver"),
    "networkx": ("networkx", "solver"),
    "ortools": ("ortools", "solver"),
    "prometheus_client": ("prometheus-client", "server"),
    "pulp": ("pulp", "solver"),
    "sqlalchemy": ("sqlalchemy", "server"),
    "starlette": ("fastapi", "server"),
    "torch": ("torch", "torch"),
    "uvicorn": ("uvicorn", "server"),
}


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="loadmaster",
        description="Plans deep-learning training by optimization: a plan in seconds, with a proof.",
        epilog="Exit status: 0 fine, 1 check failed or internal error, 2 usage or bad input, 3 infeasible, "
        "4 limit reached without a plan, 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"loadmaster {loadmaster.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for group in (build, plans, fit, sweep, show, service, catalogue, demo):
        group.register(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    terminal = Terminal()
    try:
        # Capture has a command line of its own on the executor's floor: everything after the word is handed on.
        if given[:1] == ["capture"]:
            return build.capture(given[1:])
        parsed = parser().parse_args(given)
        status: int = parsed.run(parsed, terminal)
        sys.stdout.flush()
        return status
    except LoadmasterError as error:
        terminal.error(str(error))
        return error.exit_status
    except ModuleNotFoundError as error:
        missing = _EXTRAS.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        terminal.error(str(MissingExtraError(*missing)))
        return MissingExtraError.exit_status
    except KeyboardInterrupt:
        terminal.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone (``| head``): nothing is wrong, and nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
