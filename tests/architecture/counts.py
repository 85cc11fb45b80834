"""Size of the package, counted: ``python -m tests.architecture.counts [CHECKOUT]``.

Prints the lines of each floor, of tests and of benchmarks, the small files, and the pairs of equal lines. Run it in two
checkouts to compare them.
"""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FLOORS = ("solvers", "models", "planner", "api", "executor")
# A small file: fewer lines, and no more classes and functions at its top level.
SMALL_LINES, SMALL_DEFINITIONS = 60, 2
# Lines that make a pair. A run that stands in more places than the second number is an idiom.
PAIR_LINES, MOST_PLACES = 6, 8


def python_files(folder: Path) -> list[Path]:
    """List the Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def lines(folder: Path) -> int:
    """Count the lines of all Python files below a folder."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in python_files(folder))


def is_small(path: Path) -> bool:
    """Return whether a file has few lines and few definitions. An ``__init__.py`` has its reason: the package."""
    text = path.read_text("utf-8")
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    definitions = sum(isinstance(node, kinds) for node in ast.parse(text).body)
    few = len(text.splitlines()) < SMALL_LINES and definitions <= SMALL_DEFINITIONS
    return few and path.name != "__init__.py"


def shapes(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, its text, its text with names, strings and numbers replaced) of lines that say something.

    Imports, comments, docstrings and lone punctuation say nothing here.
    """
    text: defaultdict[int, list[str]] = defaultdict(list)
    shape: defaultdict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.OP) or (
            token.type == tokenize.STRING and token.line.strip()[:3] not in ('"""', 'r"""')
        ):
            is_operator = token.type == tokenize.OP or keyword.iskeyword(token.string)
            text[token.start[0]].append(token.string)
            shape[token.start[0]].append(token.string if is_operator else "_")
    for number, words in text.items():
        if words[0] not in ("import", "from") and any(word[0].isalnum() for word in words):
            yield number, " ".join(words), " ".join(shape[number])


def pairs(files: list[Path], *, by_shape: bool) -> list[tuple[int, str, str]]:
    """Find the longest runs of equal lines that stand twice: (lines, where, where), longest first."""
    found = [(path, number, shape if by_shape else text) for path in files for number, text, shape in shapes(path)]
    windows: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for start in range(len(found) - PAIR_LINES + 1):
        run = found[start : start + PAIR_LINES]
        if run[0][0] == run[-1][0]:
            windows[tuple(line for _, _, line in run)].append(start)
    begun = {
        pair
        for starts in windows.values()
        if len(starts) <= MOST_PLACES
        for pair in itertools.combinations(starts, 2)
        if pair[1] - pair[0] >= PAIR_LINES
    }
    rows = []
    for first, second in sorted(begun):
        if (first - 1, second - 1) not in begun:
            length = PAIR_LINES
            while (first + length - PAIR_LINES + 1, second + length - PAIR_LINES + 1) in begun:
                length += 1
            rows.append((length, *(f"{found[at][0]}:{found[at][1]}" for at in (first, second))))
    return sorted(rows, reverse=True)


def main(checkout: Path) -> None:
    """Print all counts of a checkout."""
    package = checkout / "loadmaster"
    for floor in FLOORS:
        print(f"{floor:12}{lines(package / floor):8} lines")
    files = [path for floor in FLOORS for path in python_files(package / floor)]
    print(f"{'five floors':12}{sum(lines(package / floor) for floor in FLOORS):8} lines in {len(files)} files")
    for folder in ("tests", "benchmarks"):
        print(f"{folder:12}{lines(checkout / folder):8} lines")
    small = sum(map(is_small, files))
    print(f"{small} files ({small / len(files):.1%}) have under {SMALL_LINES} lines and few definitions")
    for by_shape in (False, True):
        rows = pairs(files, by_shape=by_shape)
        long = sum(length >= 2 * PAIR_LINES for length, _, _ in rows)
        how = "of one shape" if by_shape else "to the letter"
        print(f"{len(rows)} pairs of {PAIR_LINES} lines or more {how}, {long} of {2 * PAIR_LINES} or more")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
