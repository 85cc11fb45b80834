"""Being alone: asked for once, and given back at the end."""

from __future__ import annotations

import io
import json

from benchmarks.gpu import talk


def connected():
    """A link whose scheduler always agrees, and what has been said over it."""
    says = io.StringIO()
    link = talk.Link(io.StringIO("go\n" * 20), says)
    return link, lambda: [json.loads(line.removeprefix(talk.MARK))["say"] for line in says.getvalue().splitlines()]


def test_alone_is_asked_for_once_and_given_back_at_the_end():
    link, said = connected()
    with link.alone(), link.alone():
        assert said() == ["alone"]
    assert said() == ["alone", "done"]
