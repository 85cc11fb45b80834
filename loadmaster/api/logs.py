"""Log lines on stderr: plain text, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import sys
import time

from loadmaster.api.settings import Settings
from loadmaster.printable import printable

__all__ = ["JsonFormatter", "TextFormatter", "configure"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (UTC), level, logger, message, whatever ``extra`` held, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Lines for people to read, in a terminal, say: names of jobs and words of solvers in them are not obeyed."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def configure(settings: Settings) -> None:
    """Send all log records of this process to stderr in the asked format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # It tells of every database that is opened. What it changes there, the store says.
    logging.getLogger("alembic").setLevel(logging.WARNING)
