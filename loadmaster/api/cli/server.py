"""The service that a command talks to, and the key for it."""

from __future__ import annotations

import argparse
import os

from loadmaster.api.client import Client
from loadmaster.api.protocol import DEFAULT_URL, KEY_VARIABLE

__all__ = ["add_server", "add_service", "connect", "is_plan_id"]

SERVER_VARIABLE = "LOADMASTER_SERVER"


def add_service(command: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that always talks to a service."""
    default = os.environ.get(SERVER_VARIABLE) or DEFAULT_URL
    command.add_argument("--server", default=default, metavar="URL", help=f"default: ${SERVER_VARIABLE}")
    _add_key(command)


def add_server(command: argparse.ArgumentParser, purpose: str = "plan on a running service") -> None:
    """Add the arguments of a command that may talk to a service."""
    command.add_argument("--server", metavar="URL", help=purpose)
    _add_key(command)


def connect(arguments: argparse.Namespace) -> Client:
    """A client of the service that was asked for."""
    return Client(arguments.server, api_key=arguments.api_key)


def is_plan_id(given: str) -> bool:
    """Return whether a text, which may be a file's path as well, is the id of a plan of a service."""
    return given.startswith("plan_") and given.isidentifier()


def _add_key(command: argparse.ArgumentParser) -> None:
    # Others on the machine see command lines, but not the environment.
    command.add_argument("--api-key", metavar="KEY", help=f"of the service; better given as ${KEY_VARIABLE}")
