"""Text in columns, for the command line and for plans in words."""

from __future__ import annotations

from datetime import datetime


def table(rows: list[list[str]], header: list[str]) -> str:
    """Columns aligned with spaces; numbers (cells that start with a digit) to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    right = [
        bool(rows) and all(row[i][:1].isdigit() or row[i] in ("", "-") for row in rows) for i in range(len(header))
    ]
    lines = []
    for row in [header, *rows]:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def moment(at: float) -> str:
    """Format seconds since the epoch as date and time here, to the second."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
