"""The ``loadmaster`` command: one module per group of commands, thin over the library and the client."""

from loadmaster.api.cli.app import main

__all__ = ["main"]
