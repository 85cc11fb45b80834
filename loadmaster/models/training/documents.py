"""JSON of the kind ``training``: problem and plan documents to typed data and back."""

from __future__ import annotations

from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments, expect_with_status
from loadmaster.models.training.plan import TrainingPlan
from loadmaster.models.training.problem import TrainingProblem


def check_problem(problem: TrainingProblem) -> None:
    """Refuse layers of no class, groups of no layer, and frozen groups that have a gradient or state."""
    classes, layers = len(problem.classes), len(problem.layers)
    for n, layer in enumerate(problem.layers):
        if layer.layer_class >= classes:
            remedy = f"Classes are numbered 0 to {classes - 1}, in the order of the field classes."
            raise InputError(f"layers[{n}].layer_class", layer.layer_class, "is no class", remedy)
    for n, group in enumerate(problem.groups):
        if group.layers[-1] >= layers:
            remedy = f"Layers are numbered 0 to {layers - 1}, in the order of the field layers."
            raise InputError(f"groups[{n}].layers", group.layers[-1], "is no layer", remedy)
        for field in ("copy_gradient_bytes", "state_bytes"):
            if getattr(group, field) and not group.is_trained:
                remedy = "Give gradient_bytes too, or leave both out for parameters that are frozen."
                raise InputError(f"groups[{n}].{field}", getattr(group, field), "belongs to no gradient", remedy)


def _check_plan(plan: TrainingPlan) -> None:
    expect_with_status(plan, "objective", "schedule")


DOCUMENTS = KindDocuments(TrainingProblem, TrainingPlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
