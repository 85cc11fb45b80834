"""What is shown of operators that say where in the model they are from: that place, wherever an operator is named."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.api.report.bands import LETTER_WIDTH, bands
from loadmaster.api.report.memory.pictures import filling, png
from loadmaster.api.report.memory.plan_page import plan_page
from loadmaster.api.report.memory.snapshot import memory_snapshot
from loadmaster.api.report.memory.view import MemoryView, view
from loadmaster.api.report.memory.views import chrome_trace
from loadmaster.api.report.memory.words import details
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.verdict import Event
from tests.models.memory.test_checked_journeys import LINK, travelling
from tests.models.memory.test_memory_checker import KEEP_ALL, PLENTY, a_plan, three_operators


def placed(problem: MemoryProblem) -> MemoryProblem:
    forward = tuple(replace(f, module=f"layers.{f.id}", source=f"model.py:{f.id + 7}") for f in problem.forward)
    backward = tuple(replace(b, module=f"layers.{3 - b.id}", source="model.py:99") for b in problem.backward)
    return replace(problem, forward=forward, backward=backward)


def seen(problem: MemoryProblem) -> MemoryView:
    return view(problem, a_plan(problem, KEEP_ALL, PLENTY))


def event(module: str | None, start_us: float, duration_us: float) -> Event:
    return Event(0, "forward", 0, "op", start_us, duration_us, 1, module=module)


def test_places_are_named_by_the_checker_the_minimum_and_every_view() -> None:
    problem = placed(three_operators())
    verdict = check(problem, KEEP_ALL, budget_bytes=33)
    assert verdict.peak_at == "layers.1, backward2, model.py:99 (backward 2)"
    assert verdict.violations == (f"{verdict.peak_at}: 34 bytes, 1 over the budget of 33",)
    least = minimum_budget(problem)
    assert least.where.startswith("layers.1, backward2, model.py:99")
    assert "layers.0, op0, model.py:7" in [b.words for b in least.blockers]
    shown = seen(problem)
    for text in (details(shown), plan_page(shown)):
        assert "layers.0, op0, model.py:7" in text
    names = [e["name"] for e in chrome_trace(shown)["traceEvents"]]
    assert "layers.2, op2, model.py:9" in names
    frames = [b["frames"] for s in memory_snapshot(shown)["segments"] for b in s["blocks"]]
    traces = [e["frames"] for e in memory_snapshot(shown)["device_traces"][0]]
    assert any(f and f[0]["name"] == "layers.0, op0, model.py:7" for f in (*frames, *traces))


def test_copies_are_named_by_the_operator_whose_result_travels() -> None:
    problem = placed(three_operators(host_link=LINK))
    shown = view(problem, a_plan(problem, travelling(1), PLENTY))
    copies = {e["name"] for e in chrome_trace(shown)["traceEvents"] if e.get("cat") == "copy"}
    assert copies == {"layers.0, op0, model.py:7"}


def test_what_fills_the_peak_is_shown_where_modules_are_known() -> None:
    """Backward 2 at the peak: its workspace and gradient of 2 + 4 bytes, result 0 of 4, live 3, resident 21."""
    shown = seen(placed(three_operators()))
    rows = [" ".join(line.split()) for line in details(shown).splitlines()]
    assert "layers.1 6 B 17.65 %" in rows
    assert "layers.0 4 B 11.76 %" in rows
    assert "What fills the peak, by module" in plan_page(shown)
    assert png(shown).startswith(b"\x89PNG")
    plain = seen(three_operators())
    assert filling(plain) == []
    assert "fills the peak" not in details(plain) + plan_page(plain)


def test_bands_name_modules_where_there_is_room_and_their_parts_where_those_have_some() -> None:
    events = [
        event("embedding", 0, 20e3),
        event("layers.0", 20e3, 100e3),
        event("layers.0.fc", 120e3, 20e3),
        event("layers.1", 140e3, 120e3),
        event(None, 260e3, 200e3),
        event("layers.2.fc", 460e3, 30e3),
        event("head", 490e3, 100e3),
    ]
    assert bands(events, lambda ms: ms) == [
        (20, 140, "layers.0"),
        (140, 260, "layers.1"),
        (490, 590, "head"),
    ]
    assert bands(events, lambda ms: ms / 2) == [(10, 130, "layers"), (245, 295, "head")]
    assert bands(events, lambda ms: ms / 4) == [(5, 65, "layers")]
    assert all(right - left > LETTER_WIDTH * len(name) for left, right, name in bands(events, lambda ms: ms / 3))


def test_parts_of_a_numbered_module_keep_its_number() -> None:
    events = [event("model.layers.2.attn.q", 0, 60e3), event("model.layers.2.mlp", 60e3, 60e3)]
    assert bands(events, lambda ms: ms) == [(0, 60, "2.attn"), (60, 120, "2.mlp")]
    assert bands(events, lambda ms: ms * 0.6) == [(0, 72, "model")]  # the least deep of those that would say the same
