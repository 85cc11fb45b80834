"""The instructions of the Dockerfile, for tests that read them and for one that runs them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tests.architecture.sources import ROOT

__all__ = ["Instruction", "instructions", "stages"]


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str

    def copied(self) -> tuple[list[str], str]:
        """Sources of a COPY from the context, and where they go; no sources for anything else."""
        words = shlex.split(self.rest)
        if self.word != "COPY" or words[0].startswith("--from="):
            return [], ""
        return words[:-1], words[-1]

    def assigned(self) -> dict[str, str]:
        """The variables of an ENV; none for anything else."""
        words = shlex.split(self.rest) if self.word == "ENV" else []
        return dict(word.split("=", 1) for word in words)


def instructions() -> list[Instruction]:
    """The Dockerfile, continued lines joined, comments dropped."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for instruction in instructions():
        if instruction.word == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found
