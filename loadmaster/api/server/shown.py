"""Values from requests as refusals show them: cut short, and text that can be sent."""

from __future__ import annotations

from loadmaster.errors import InputError

__all__ = ["Shown", "show", "with_shown_value"]

_SHOWN_CHARACTERS = 80


class Shown:
    """A value of which only its text is kept."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def show(value: object) -> str:
    """Write a value as text, cut short."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # Nested too deeply, or a number with too many digits.
        text = f"<{type(value).__name__}>"
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 3] + "..."
    # Lone surrogates cannot be sent.
    return text.encode("utf-8", "backslashreplace").decode()


def with_shown_value(error: InputError) -> InputError:
    """Return the refusal without the value, which may be the whole of a body."""
    return InputError(error.field, Shown(show(error.value)), error.problem, error.remedy)
