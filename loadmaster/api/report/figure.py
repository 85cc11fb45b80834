"""What pictures of all kinds share: how they look, and how they are written. matplotlib, without a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadmaster.errors import InputError

BLUE, PURPLE, GREY, INK = "#2b6cb0", "#8a63c9", "#667085", "#1d2430"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as PNG.

    Raises:
        InputError: the path cannot be written.
    """
    try:
        figure.savefig(path, format="png", metadata={"Software": None})
    except OSError as error:
        remedy = "Give a path that can be written."
        raise InputError("--png", str(path), f"cannot be written: {error.strerror}", remedy) from None
