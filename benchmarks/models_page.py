"""Writes ``docs/models.md`` from ``memory_zoo.json`` and ``library_sweep.json`` of ``benchmarks/results``.

python -m benchmarks.models_page
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

Result = Mapping[str, Any]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
RESULT, SWEEP = RESULTS / "memory_zoo.json", RESULTS / "library_sweep.json"
MIB = 1 << 20
# Float32 rounds at 6e-8; sums over a batch in another order differ by some hundred of that.
TOLERANCE = 1e-4
WIDE_GAP = 0.03
LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")
_BUDGETS = ("70%", "50%", "35%", "1.1 x least")
_HEADER = ("model", "for", "peak, MiB", "70 %", "50 %", "35 %", "1.1 x least", "gradients")
_INTRODUCTION = """# Models that were tried

{count} models of {libraries}, built from small
configurations with random weights, and called as their own documentation calls them: a dictionary or a `BatchEncoding`
with `labels` and the loss inside the output, images and labels with cross entropy, samples and timesteps with the noise
as the target. No model is wrapped and none is changed.
[benchmarks/zoo](../benchmarks/zoo) has each of them in a few lines.

```python
problem = capture(model, batch, loss)  # loss=None: it is in the output
plan = loadmaster.plan(problem, budget_bytes=peak * 70 // 100)
step = apply(plan, model, loss)
step(**batch).backward()  # or step(*batch)
```

Each cell below a budget says what it costs: how much longer a step is than with memory to spare, and in brackets how
much of the step is not proved to be needed, after at most {limit:.0f} s of planning. Budgets are shares of the plain
step's peak, and 1.1 times what every plan is proved to need. Where no plan fits, that least is there, as a share of the
peak. The last column is the largest difference of a parameter's gradient from plain PyTorch's, by norm and relative, in
float32. Dropout is off, so that there is something to compare.
"""
_SWEEP = """## Every class of two libraries

Nobody chose these: every class that transformers' automatic classes know for causal, masked and sequence-to-sequence
language models and for classes of images, and one model of each of timm's modules. Sizes are set by the names that
configurations have in common. Each was captured, planned for the middle between its least and its peak
(`backend="eager"`, at most {limit:.0f} s), and held against plain PyTorch.

"""


def load(path: Path) -> Result:
    """Read a recorded result."""
    return dict(json.loads(path.read_text("utf-8")))


def render(result: Result, sweep: Result) -> str:
    """Write the text of the page."""
    rows = result["models"]
    parts = [
        _INTRODUCTION.format(
            count=len(rows), libraries=f"{', '.join(LIBRARIES[:-1])} and {LIBRARIES[-1]}", limit=result["plan_limit_s"]
        )
    ]
    for library in LIBRARIES:
        parts.append(f"## {library}\n\n{_table([row for row in rows if row['library'] == library])}")
    parts += [_verdict(rows), _every_class(sweep)]
    parts.append(
        f"## Measured\n\n```bash\n{result['command']}    # {result['date']}\n"
        f"{sweep['command']}    # {sweep['date']}\n```\n\n{_where(rows)}{_where_swept(sweep)}"
    )
    return "\n".join(parts)


def _where(rows: Iterable[Result]) -> str:
    """List the machines and versions, and how many models were measured with each."""
    counted = Counter(
        f"{row['machine']['processor']}, {row['machine']['cores']} cores, torch {row['versions']['torch']}, "
        f"{row['library']} {row['versions'][row['library']]}"
        for row in rows
    )
    return "".join(f"- {where}: {count} models\n" for where, count in counted.items())


def _table(rows: Iterable[Result]) -> str:
    lines = [f"| {' | '.join(_HEADER)} |", f"|{' --- |' * len(_HEADER)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)]) + "\n"


def _cells(row: Result) -> Sequence[str]:
    named = (f"`{row['model']}`", row.get("sort", ""))
    if "operators" not in row:
        return (*named, "", "refused", "", "", "", "")
    by_name = {found["budget"]: found for found in row["budgets"]}
    cells = [_planned(by_name.get(name), row) for name in _BUDGETS]
    return (*named, f"{row['peak_bytes'] / MIB:.1f}", *cells, _gradients(row))


def _planned(found: Result | None, row: Result) -> str:
    if found is None or "status" not in found:
        return ""
    if found["status"] == "infeasible":
        return f"needs {found['least_bytes'] / row['peak_bytes']:.0%}".replace("%", " %")
    if found["status"] == "none":
        return "no plan in time"
    overhead = found["objective_us"] / found["unconstrained_us"] - 1
    return f"{100 * overhead:+.1f} % ({100 * found['gap']:.1f} %)"


def _differences(row: Result) -> list[float]:
    return [b["gradient_difference"] for b in row["budgets"] if "gradient_difference" in b]


def _gradients(row: Result) -> str:
    if not (found := _differences(row)):
        return ""
    return "bit-equal" if max(found) == 0 else f"{max(found):.0e}"


def _verdict(rows: Sequence[Result]) -> str:
    """State what held for all models, and by name what did not."""
    budgets = [(row, b) for row in rows for b in row["budgets"]]
    applied = [(row, b) for row, b in budgets if "peak_bytes" in b]
    above = [(row, b) for row, b in applied if b["peak_bytes"] > b["budget_bytes"]]
    wide = [(row, b) for row, b in applied if b["gap"] > WIDE_GAP]
    late = [(row, b) for row, b in budgets if b.get("status") == "none"]
    wrong = [row for row in rows if any(d > TOLERANCE for d in _differences(row))]
    traced = [row for row in rows if "tracing_cpu_s" in row]
    slow = [row for row in traced if row["capture_cpu_s"] > 2 * row["tracing_cpu_s"]]
    refused = [row for row in rows if "refused" in row or "ended" in row]
    lines = [
        f"- Captured: {sum('operators' in row for row in rows)} of {len(rows)}.",
        *(f"  - `{row['model']}`: {_first_sentence(row.get('refused') or row['ended'])}" for row in refused),
        f"- Budgets kept by the measured peak: {len(applied) - len(above)} of {len(applied)}{_named(above)}.",
        f"- Gradients within {TOLERANCE:.0e}: {sum(bool(_differences(r)) for r in rows) - len(wrong)} of "
        f"{sum(bool(_differences(r)) for r in rows)} models{_named((row, {}) for row in wrong)}.",
        f"- Gaps of {100 * WIDE_GAP:.0f} % or less: {len(applied) - len(wide)} of {len(applied)} plans{_named(wide)}.",
        "- Captured, with every operator measured, in twice PyTorch's own time to trace the step "
        '(`backend="aot_eager"`, CPU seconds), or less: '
        f"{len(traced) - len(slow)} of {len(traced)}{_named((row, {}) for row in slow)}.",
        f"- Answered in time: {len(budgets) - len(late)} of {len(budgets)} budgets{_named(late)}.",
    ]
    return "## What held, and what did not\n\n" + "\n".join(lines) + "\n"


def _every_class(sweep: Result) -> str:
    """State what held for the models that nobody chose, with the refusals by name."""
    rows = sweep["models"]
    trained = [row for row in rows if "left_out" not in row]
    ended = [row for row in trained if "ended" in row]
    refused = [row for row in trained if "refused" in row]
    applied = [row for row in trained if "peak_bytes" in row]
    kept = [row for row in applied if row["peak_bytes"] <= row["budget_bytes"]]
    equal = [row for row in applied if row["gradient_difference"] <= TOLERANCE]
    exact = sum(row["gradient_difference"] == 0 for row in applied)
    narrow = [row for row in applied if row["gap"] is not None and row["gap"] <= WIDE_GAP]

    def but(some: Sequence[Result]) -> str:
        return _named((row, {}) for row in applied if row not in some)

    lines = [
        f"- Listed: {len(rows)}. Made small, and trained by the library itself: {len(trained)}.",
        f"- Planned and trained: {len(applied)}.",
        *(f"  - `{row['model']}`: {_first_sentence(row['refused'])} {_as_one_graph(row)}" for row in refused),
        *(f"  - `{row['model']}`: {row['ended']}." for row in ended),
        f"- Budgets kept by the measured peak: {len(kept)} of {len(applied)}{but(kept)}.",
        f"- Gradients within {TOLERANCE:.0e}: {len(equal)} of {len(applied)}{but(equal)}; bit-equal: {exact}.",
        f"- Gaps of {100 * WIDE_GAP:.0f} % or less: {len(narrow)} of {len(applied)} plans{but(narrow)}.",
    ]
    return _SWEEP.format(limit=sweep["plan_limit_s"]) + "\n".join(lines) + "\n"


def _as_one_graph(row: Result) -> str:
    return f"torch.compile makes {'one' if row['is_one_graph'] else 'no single'} graph of it."


def _where_swept(sweep: Result) -> str:
    machine, versions = sweep["machine"], sweep["versions"]
    known = ", ".join(f"{package} {versions[package]}" for package in ("torch", "transformers", "timm"))
    return f"- {machine['processor']}, {machine['cores']} cores, {known}: every class\n"


def _first_sentence(text: str) -> str:
    """Cut a refusal to its first sentence: where it broke and on what; the rest gives remedies."""
    return f"{' '.join(text.split()).partition('. ')[0].removesuffix('.')}."


def _named(found: Iterable[tuple[Result, Result]]) -> str:
    names = [f"`{row['model']}`" + (f" at {b['budget']}" if b else "") for row, b in found]
    return f"; not {', '.join(names)}" if names else ""


def main() -> None:
    """Write ``docs/models.md``."""
    PAGE.write_text(render(load(RESULT), load(SWEEP)), "utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
