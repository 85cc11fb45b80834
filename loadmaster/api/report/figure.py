"""What pictures of all kinds share: how they look, and how they are written. matplotlib, without a display."""

from __future__ import annotations

import io
import textwrap
from typing import Any

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


def new_figure(title: str) -> tuple[Any, Any]:
    """A figure that no window system knows of, and its axes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.8), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_title(textwrap.fill(title, 92), loc="left", fontsize=11, fontweight="bold", color=INK)
    return figure, axes


def png_bytes(figure: Any) -> bytes:
    """A figure as PNG."""
    target = io.BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()
