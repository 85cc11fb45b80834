"""The entry point of the command line: which command, and what its ending means as an exit status.

0 fine, 1 check failed or internal error, 2 usage or bad input, 3 infeasible, 4 limit reached without a plan,
130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import loadmaster
from loadmaster.api.cli.lazy import LazyParser
from loadmaster.api.cli.terminal import OutputError, Terminal
from loadmaster.errors import CancelledError, LoadmasterError, MissingExtraError
from loadmaster.models.kind import resolve

_HERE = "loadmaster.api.cli"
# Command -> (what it does, what adds its arguments): nothing of a command is loaded before it is chosen.
COMMANDS = {
    "new": ("build a problem from a preset", f"{_HERE}.build:new_arguments"),
    "capture": ("build a problem from a PyTorch model", f"{_HERE}.capture:capture_arguments"),
    "plan": ("find the best plan", f"{_HERE}.plans:plan_arguments"),
    "check": ("verify a plan independently", f"{_HERE}.plans:check_arguments"),
    "fit": ("plan a model, run it, and correct until it fits", f"{_HERE}.fit:fit_arguments"),
    "tune": ("plan an index, run it, and plan again until the plan stays", f"{_HERE}.tune:tune_arguments"),
    "frontier": ("plan under a sweep of limits", f"{_HERE}.sweep:frontier_arguments"),
    "simulate": ("replay a trace under demand policies, and under a plan", f"{_HERE}.simulate:simulate_arguments"),
    "show": ("look at a problem or a plan", f"{_HERE}.show:show_arguments"),
    "serve": ("run the service", f"{_HERE}.service:serve_arguments"),
    "worker": ("run one worker of a service", f"{_HERE}.service:worker_arguments"),
    "keys": ("who may use a service", f"{_HERE}.keys:keys_arguments"),
    "submit": ("hand a problem to a service", f"{_HERE}.service:submit_arguments"),
    "watch": ("follow a plan on a service", f"{_HERE}.service:watch_arguments"),
    "cancel": ("cancel a plan on a service", f"{_HERE}.service:cancel_arguments"),
    "list": ("the plans of a service, newest first", f"{_HERE}.service:list_arguments"),
    "compare": ("two plans next to each other", f"{_HERE}.compare:compare_arguments"),
    "export": ("a plan of a service as a report, a picture, a trace", f"{_HERE}.export:export_arguments"),
    "hardware": ("the devices that costs can be estimated for", f"{_HERE}.catalogue:hardware_arguments"),
    "solvers": ("the solvers of this machine", f"{_HERE}.catalogue:solvers_arguments"),
    "doctor": ("what of all this works here", f"{_HERE}.doctor:doctor_arguments"),
    "completion": ("let your shell complete all this on Tab", f"{_HERE}.completion:completion_arguments"),
    "demo": ("the main job on real models, end to end", f"{_HERE}.demo:demo_arguments"),
}

# Imported package -> (its distribution, the extra that brings it).
_EXTRAS = {
    "fastapi": ("fastapi", "server"),
    "highspy": ("highspy", "solver"),
    "resvg_py": ("resvg-py", "solver"),
    "networkx": ("networkx", "solver"),
    "opentelemetry": ("opentelemetry-exporter-otlp-proto-http", "telemetry"),
    "ortools": ("ortools", "solver"),
    "prometheus_client": ("prometheus-client", "server"),
    "pulp": ("pulp", "solver"),
    "sqlalchemy": ("sqlalchemy", "server"),
    "starlette": ("fastapi", "server"),
    "torch": ("torch", "torch"),
    "uvicorn": ("uvicorn", "server"),
}


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line, with a subcommand for each command."""
    top = argparse.ArgumentParser(
        prog="loadmaster",
        description="Plans deep-learning training by optimization: a plan in seconds, with a proof.",
        epilog="Exit status: 0 fine, 1 check failed or internal error, 2 usage or bad input, 3 infeasible, "
        "4 limit reached without a plan, 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"loadmaster {loadmaster.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=LazyParser)
    for name, (purpose, arguments) in COMMANDS.items():
        commands.add_parser(name, help=purpose, fill=_fill(arguments))
    top.set_defaults(command_line=top)
    return top


def _fill(reference: str) -> Callable[[argparse.ArgumentParser], None]:
    return lambda parser: resolve(reference)(parser)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    terminal = Terminal()
    try:
        # Every kind that is captured has a command line of its own on the executor's floor.
        if given[:1] == ["capture"]:
            captured: int = resolve(f"{_HERE}.capture:capture")(given[1:])
            return captured
        parsed = parser().parse_args(given)
        status: int = parsed.run(parsed, terminal)
        sys.stdout.flush()
        return status
    except LoadmasterError as error:
        if isinstance(error, OutputError):
            _forget_output()
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
        return CancelledError.exit_status
    except BrokenPipeError:
        # The reader of stdout has gone (``| head``): nothing is wrong, and nothing more can be said there.
        _forget_output()
        return 0


def _forget_output() -> None:
    """Point stdout at nothing: what is left for it is tried again when Python ends, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
