"""Text that others wrote, on a terminal: names of problems, words of a server, lines of a log.

A terminal obeys escape sequences: they recolour it, move over what was said before, or put text on the clipboard. Here
every control character but a tab and the end of a line is shown as its number.
"""

from __future__ import annotations

import re

# C0 but for tab and newline, DEL, C1, and the marks that turn the direction of writing.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with control characters as escapes, as JSON writes them: ``\\u001b[2J`` is seen, not obeyed."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
