"""``export``: a plan of a service as a report, a picture, a trace, or for other programs."""

from __future__ import annotations

import argparse
import sys

from loadmaster.api.cli.server import add_service, connect
from loadmaster.api.cli.show import export_numbers, exports_by_name
from loadmaster.api.cli.terminal import Terminal
from loadmaster.errors import InputError
from loadmaster.models.files import expect_writable, write_bytes
from loadmaster.models.kinds import find_kind

_ARCHIVE = ".zip"


def export_arguments(export: argparse.ArgumentParser) -> None:
    """Add the arguments of ``export`` to its parser."""
    export.description = _export.__doc__
    export.add_argument("id", metavar="ID")
    export.add_argument("format", metavar="FORMAT", choices=sorted(exports_by_name()), help=_formats())
    said = "write it here; - is standard output (default: named after the plan, in this folder)"
    export.add_argument("-o", "--output", metavar="FILE", help=said)
    for name, (number, formats) in export_numbers().items():
        said = f"of {', '.join(formats)}: {number.help} ({number.default})"
        export.add_argument(f"--{name}", dest=f"number_{name}", type=int, metavar="N", help=said)
    said = "of one that is not done, the best plan so far"
    export.add_argument("--incumbent", action="store_true", help=said)
    add_service(export)
    export.set_defaults(run=_export)


def _formats() -> str:
    return "; ".join(f"{name}: of {', '.join(kinds)}" for name, kinds in exports_by_name().items())


def _export(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Fetch a plan of a service in another form. Several files come as one ZIP archive."""
    expect_writable(arguments.output, "-o")
    numbers = {name: value for name in export_numbers() if (value := getattr(arguments, f"number_{name}")) is not None}
    with connect(arguments) as client:
        handle = client.plan(arguments.id)
        kind = find_kind(handle.state().kind)
        own = {} if kind is None else {export.name: export for export in kind.exports}
        export = own.get(arguments.format)
        if export is None:
            raise InputError("FORMAT", arguments.format, "is none that this plan has", f"Give one of {', '.join(own)}.")
        content = handle.export(export.name, incumbent=arguments.incumbent, **numbers)
    if arguments.output == "-":
        sys.stdout.buffer.write(content)
        return 0
    path = arguments.output or f"{arguments.id}-{export.name}{export.suffix or _ARCHIVE}"
    write_bytes(path, content, "-o")
    terminal.say(f"{export.name}: {path}" + (f" ({export.hint})" if export.hint else ""))
    return 0
