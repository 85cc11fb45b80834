"""The zoo: how gradients are compared, what a row keeps when a model fails, and the page that is written from rows."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from benchmarks import models_page
from benchmarks.zoo.entries import Entry
from benchmarks.zoo.measure import Measured, difference

GRADIENTS = {"weight": torch.tensor([3.0, 4.0]), "bias": torch.tensor([1e-9])}


def test_equal_gradients_do_not_differ() -> None:
    assert difference(GRADIENTS, dict(GRADIENTS)) == 0


def test_the_difference_is_relative_to_a_parameters_own_gradient() -> None:
    other = {**GRADIENTS, "weight": torch.tensor([3.0, 4.5])}
    assert difference(other, GRADIENTS) == pytest.approx(0.5 / 5)


def test_what_is_zero_but_for_rounding_is_held_against_the_whole_gradient() -> None:
    other = {**GRADIENTS, "bias": torch.tensor([-1e-9])}
    assert difference(other, GRADIENTS) == pytest.approx(2e-9 / 5e-3, rel=1e-3)


def test_a_parameter_without_a_gradient_is_a_difference() -> None:
    assert difference({"weight": GRADIENTS["weight"]}, GRADIENTS) == float("inf")


def test_what_a_model_raises_is_in_its_row(tmp_path) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no such thing")

    rows: list[str] = []
    one = Entry("Broken", "ours", "a trial", lambda: (Broken(), (torch.ones(2), torch.ones(2)), torch.dot))
    Measured(one, "eager", lambda row: rows.append(json.dumps(row))).run(tmp_path / "problem.json")
    found = json.loads(rows[-1])
    assert "no such thing" in found.get("refused", found.get("ended", ""))
    assert found["model"] == "Broken"


MEASURED = {"machine": {"processor": "P", "cores": 1}, "versions": {"torch": "2.13", "timm": "1"}}


def row(model: str, *budgets: dict, **more: object) -> dict:
    found = {"model": model, "library": "timm", "sort": "classification", "operators": 7, "peak_bytes": 100 << 20}
    found |= {"capture_cpu_s": 3.0, "tracing_cpu_s": 2.0}
    return {**found, **MEASURED, "budgets": list(budgets), **more}


def applied(share: float, peak: float, gap: float = 0.0, error: float = 0.0) -> dict:
    size = 100 << 20
    return {
        "budget": f"{share:.0%}",
        "budget_bytes": int(share * size),
        "status": "feasible",
        "gap": gap,
        "objective_us": 110.0,
        "unconstrained_us": 100.0,
        "peak_bytes": int(peak * size),
        "gradient_difference": error,
    }


def sweep(*rows: dict) -> dict:
    versions = {"torch": "2.13", "transformers": "5", "timm": "1"}
    found = {"models": list(rows), "plan_limit_s": 10.0, "command": "s", "date": "d", "versions": versions}
    return {**found, "machine": {"processor": "Q", "cores": 2}}


def test_the_page_counts_the_classes_that_nobody_chose() -> None:
    planned = {"budget_bytes": 50, "peak_bytes": 50, "gap": 0.01, "gradient_difference": 0.0}
    swept = sweep(
        {"model": "a", **planned},
        {"model": "b", **planned, "peak_bytes": 51},
        {"model": "c", **planned, "gradient_difference": 0.1, "gap": 0.2},
        {"model": "d", "left_out": "too large"},
        {"model": "e", "refused": "model: a loop. Rewrite it.", "is_one_graph": False},
        {"model": "f", "ended": "took more than 240 s"},
    )
    text = models_page.render({"models": [], "plan_limit_s": 15.0, "command": "c", "date": "d"}, swept)
    assert "Listed: 6. Made small, and trained by the library itself: 5." in text
    assert "Planned and trained: 3." in text
    assert "`e`: model: a loop. torch.compile makes no single graph of it." in text and "`f`: took more" in text
    assert "kept by the measured peak: 2 of 3; not `b`." in text
    assert "Gradients within 1e-04: 2 of 3; not `c`; bit-equal: 2." in text
    assert "Gaps of 3 % or less: 2 of 3 plans; not `c`." in text
    assert "Q, 2 cores, torch 2.13, transformers 5, timm 1: every class" in text


def test_the_page_names_what_did_not_hold() -> None:
    infeasible = {"budget": "35%", "budget_bytes": 35 << 20, "status": "infeasible", "least_bytes": 41 << 20}
    none = {"budget": "50%", "budget_bytes": 50 << 20, "status": "none", "refused": "no plan"}
    rows = [
        row("fine", applied(0.7, 0.69), infeasible),
        row("above", applied(0.7, 0.71), none),
        row("wrong", applied(0.7, 0.6, gap=0.05, error=0.5)),
        {
            "model": "odd",
            "library": "timm",
            "sort": "",
            "budgets": [],
            "refused": "model: branches on a value",
            **MEASURED,
        },
        row("slow", capture_cpu_s=5.0),
    ]
    text = models_page.render({"models": rows, "plan_limit_s": 15.0, "command": "c", "date": "d"}, sweep())
    assert "| `fine` | classification | 100.0 | +10.0 % (0.0 %) |  | needs 41 % |  | bit-equal |" in text
    assert "Captured: 4 of 5." in text and "`odd`: model: branches on a value." in text
    assert "kept by the measured peak: 2 of 3; not `above` at 70%." in text
    assert "within 1e-04: 2 of 3 models; not `wrong`." in text
    assert "Gaps of 3 % or less: 2 of 3 plans; not `wrong` at 70%." in text
    assert "or less: 3 of 4; not `slow`." in text
    assert "P, 1 cores, torch 2.13, timm 1: 5 models" in text
    assert "Answered in time: 4 of 5 budgets; not `above` at 50%." in text
