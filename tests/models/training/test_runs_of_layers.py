"""Runs of like layers: what is alike, how it is cut, and the slots of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.models.training.problem import Layer, LayerClass, Point, TrainingProblem
from loadmaster.models.training.runs import Window, runs
from tests.models.training.steps import group, problems, step_of


def like_layers(count: int, **fields: object) -> TrainingProblem:
    """Layers with two like groups each, and one that is not."""
    own = [(f"a{n}", n, 1.0) for n in range(count)] + [(f"b{n}", n, 1.0) for n in range(count)]
    own += [(f"c{n}", n, 2.0) for n in range(count)]
    return step_of(count, *(group(name, n, update_us=us) for name, n, us in own), **fields)


def test_like_layers_are_cut_into_runs_of_about_the_same_length() -> None:
    found = runs(like_layers(7), 3)
    assert [run.layers for run in found.layers] == [range(2), range(2, 4), range(4, 7)]
    assert [found.layers[2].groups, found.groups[4].layers] == [(4, 5), (4, 5, 6)]
    # Both like groups of a layer are in one run, layer by layer.
    assert found.groups[4].groups == (4, 11, 5, 12, 6, 13)
    assert [found.groups[4].each, found.groups[5].each] == [2, 1]
    assert found.groups[5].groups == (18, 19, 20)


def test_without_a_limit_each_layer_is_a_run() -> None:
    found = runs(like_layers(3), None)
    assert [run.layers for run in found.layers] == [range(1), range(1, 2), range(2, 3)]
    assert len(found.groups) == 6


def test_other_classes_and_other_groups_end_a_stretch() -> None:
    problem = like_layers(5)
    classes = (*problem.classes, LayerClass("other", (Point("keep", 1.0, 1.0, 1),)))
    other = replace(problem, classes=classes, layers=(Layer("first", 1), *problem.layers[1:]))
    assert [run.layers for run in runs(other, 1).layers] == [range(1), range(1, 5)]
    groups = (*problem.groups[:3], replace(problem.groups[3], state_bytes=1), *problem.groups[4:])
    assert [run.layers for run in runs(replace(problem, groups=groups), 1).layers] == [
        range(3),
        range(3, 4),
        range(4, 5),
    ]


def test_a_group_of_several_layers_is_a_run_of_its_own() -> None:
    problem = step_of(4, *(group(f"g{n}", n) for n in range(4)), group("tied", 0, 3))
    found = runs(problem, 1)
    assert [run.layers for run in found.layers] == [range(4)]
    assert [(run.groups, run.layers) for run in found.groups] == [((0, 1, 2, 3), (0, 1, 2, 3)), ((4,), (0, 3))]
    assert found.groups[1].is_shared and not found.groups[0].is_shared


def test_windows_are_those_of_all_members() -> None:
    found = runs(step_of(3, *(group(f"g{n}", n) for n in range(3)), micro_batches=2), 1)
    assert found.uses(0) == [Window(0, 2), Window(3, 5), Window(6, 8), Window(9, 11)]
    assert found.first_gradients(0) == Window(3, 5)
    assert found.last_gradients(0) == found.updates_from(0) == Window(9, 11)
    assert found.next_uses(0) == Window(12, 14)
    clipped = runs(step_of(3, *(group(f"g{n}", n) for n in range(3)), clip_grad_norm=True), 1)
    assert clipped.updates_from(0) == Window(5, 5)


@given(problem=problems(), most=st.one_of(st.none(), st.integers(1, 3)))
def test_runs_and_slots_hold_everything_once(problem: TrainingProblem, most: int | None) -> None:
    found = runs(problem, most)
    assert [n for run in found.layers for n in run.layers] == list(range(len(problem.layers)))
    assert sorted(g for run in found.groups for g in run.groups) == list(range(len(problem.groups)))
    phases = found.phases
    slots = [found.slot(p) for p in range(2 * len(phases))]
    assert slots == sorted(slots)
    assert slots[len(phases) - 1] == found.slots - 1
    for p, slot in enumerate(slots):
        assert found.is_forward(slot) == phases.is_forward(p)
        assert phases.layer(p) in found.layers[found.run(slot)].layers
        assert found.last_phase(slot) == max(other for other, its in enumerate(slots) if its == slot)
        assert found.is_single(slot) == (slots.count(slot) == 1)


@pytest.mark.parametrize("most", [1, 4])
def test_members_of_a_run_differ_in_name_and_layer_alone(most: int) -> None:
    problem = like_layers(6)
    found = runs(problem, most)
    for r, run in enumerate(found.groups):
        alike = found.alike(r)
        assert all(replace(problem.groups[g], name=alike.name, layers=alike.layers) == alike for g in run.groups)
