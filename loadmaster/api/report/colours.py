"""The colours of pages and pictures, by what they stand for: each has a value for light and one for dark."""

from __future__ import annotations

LIGHT = {
    "ground": "#fbfbfa",
    "ink": "#1d2430",
    "quiet": "#667085",
    "line": "#e3e6ea",
    "plan": "#2b6cb0",
    "band": "#2b6cb026",
    "budget": "#c2410c",
    "forward": "#4c8dd6",
    "recompute": "#e08e2b",
    "backward": "#3a9d7c",
    "kept": "#3b7dc4",
    "recomputed": "#e08e2b",
    "offloaded": "#8a63c9",
    "freed": "#88919e",
    "shade": "#c3c9d1",
    "reference": "#8a63c9",
}
DARK = {
    "ground": "#14171c",
    "ink": "#e6e9ee",
    "quiet": "#98a2b3",
    "line": "#2a3038",
    "plan": "#6ea8e6",
    "band": "#6ea8e633",
    "budget": "#f0814f",
    "forward": "#5b9be0",
    "recompute": "#e8a04a",
    "backward": "#4fb594",
    "kept": "#5b9be0",
    "recomputed": "#e8a04a",
    "offloaded": "#a98be0",
    "freed": "#636c7a",
    "shade": "#4a525e",
    "reference": "#a98be0",
}


def paint(colour: str) -> str:
    """A colour as CSS: the name of one of these, or a value."""
    return f"var(--{colour})" if colour in LIGHT else colour


def words_css(within: str) -> str:
    """Classes for text in a colour, ``in-budget`` and so on: the style of all text is stronger than an attribute, and
    a page may forbid styles in its markup."""
    return " ".join(f"{within} .in-{name} {{ fill: var(--{name}); }}" for name in ("budget", "quiet"))


def css() -> str:
    """The variables of a page, light unless the reader prefers dark."""

    def variables(colours: dict[str, str]) -> str:
        return " ".join(f"--{name}: {value};" for name, value in colours.items())

    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
    return f"\n:root {{ color-scheme: light dark; {variables(LIGHT)} }}\n{dark}"


def in_light(markup: str) -> str:
    """Markup with the values of a light page in the variables' place, for what knows no variables."""
    for name, value in LIGHT.items():
        markup = markup.replace(f"var(--{name})", value)
    return markup
