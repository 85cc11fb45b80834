"""The schedule by rule, and the rules that every schedule is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from loadmaster.errors import InputError
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.library import LAYERS, layer
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel, Schedule
from loadmaster.models.graph.schedule_rules import broken_rules, expect_schedule


def names(program: Program, kernel: Kernel) -> tuple[str, ...]:
    return tuple(program.values[n].op for n in kernel.stores)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "heads"), [(n, h) for n in LAYERS for h in (1, 2) if (n, h) != ("rgcn", 2)])
def test_a_schedule_by_rule_holds(name: str, heads: int, training: bool) -> None:
    forward = layer(name, 8, 8, heads)
    program = with_backward(forward) if training else forward
    schedule = greedy_schedule(program)
    assert broken_rules(program, schedule) == []
    assert (schedule.forward_count < len(schedule.kernels)) == training


def test_attention_is_two_products_and_one_traversal() -> None:
    program = layer("rgat", 8, 8)
    schedule = greedy_schedule(program)
    assert [(k.template, k.rows, names(program, k)) for k in schedule.kernels] == [
        ("gemm", "source_pair", ("linear", "dot")),
        ("gemm", "target_pair", ("linear", "dot")),
        ("traverse", "target", ("aggregate", "aggregate")),
    ]


def _changed(at: int, **fields: object) -> Callable[[Schedule], Schedule]:
    def change(schedule: Schedule) -> Schedule:
        kernels = [*schedule.kernels]
        kernels[at] = replace(kernels[at], **fields)  # type: ignore[arg-type]
        return replace(schedule, kernels=tuple(kernels))

    return change


def _without(at: int) -> Callable[[Schedule], Schedule]:
    return lambda s: replace(s, kernels=s.kernels[:at] + s.kernels[at + 1 :], forward_count=s.forward_count - 1)


def _backwards(schedule: Schedule) -> Schedule:
    return replace(schedule, kernels=schedule.kernels[::-1])


# Of rgat: 5 and 7 are products, 8 and 9 scores, 12 the logarithm of the sum, 15 weighed messages, 16 the result.
WRONG: list[tuple[str, Callable[[Schedule], Schedule]]] = [
    ("S3", _without(0)),
    ("S1", _changed(1, stores=(7, 9, 8))),
    ("S2", _backwards),
    ("S5", _changed(0, rows="edge")),
    ("S5", _changed(0, template="map")),
    ("S5", _changed(2, over=None)),
    ("S5", _changed(2, stores=(12, 16, 15))),
    ("S5", _changed(0, stores=(5, 7))),
    ("S1", _changed(0, stores=(5, 8, 4))),
]


@pytest.mark.parametrize(("rule", "change"), WRONG)
def test_a_schedule_that_breaks_a_rule_is_refused_by_it(rule: str, change: Callable[[Schedule], Schedule]) -> None:
    program = layer("rgat", 8, 8)
    schedule = change(greedy_schedule(program))
    assert any(broken.startswith(f"({rule})") for broken in broken_rules(program, schedule))
    with pytest.raises(InputError, match="breaks a rule"):
        expect_schedule(program, schedule)


def test_a_kernel_of_unknown_values_is_refused() -> None:
    program = layer("rgat", 8, 8)
    with pytest.raises(InputError, match="is no value of the program"):
        broken_rules(program, _changed(0, stores=(99,))(greedy_schedule(program)))


def test_a_forward_pass_longer_than_the_schedule_is_refused() -> None:
    program = layer("rgat", 8, 8)
    with pytest.raises(InputError, match="is more than there are"):
        broken_rules(program, replace(greedy_schedule(program), forward_count=4))


def test_a_forward_kernel_stores_nothing_of_the_backward_pass() -> None:
    program = with_backward(layer("rgat", 8, 8))
    schedule = greedy_schedule(program)
    wrong = replace(schedule, forward_count=schedule.forward_count + 1)
    assert any(broken.startswith("(S2)") for broken in broken_rules(program, wrong))
