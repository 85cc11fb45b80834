"""Problem and plan documents of the kind ``memory``: what is read comes back, what is wrong is refused by name."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.api.report.memory.words import summary
from loadmaster.errors import InputError
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.documents import read_plan, read_problem, write_plan, write_problem
from loadmaster.models.memory.plan import Blocker, Compute, Fetch, MemoryInfeasibility, MemoryPlan, Schedule, Stage
from loadmaster.models.memory.presets import example, example_names
from loadmaster.models.memory.problem import MemoryProblem
from tests.models.memory.instances import random_problem

Document = dict[str, Any]

# As published: stored plans name their problem by it.
IDENTITIES = {
    "mobilenet_v2-b272-full": "96d8ccfeb9b6d5a0",
    "mobilenet_v2-b272-recompute": "866cae4906d69081",
    "resnet50-b184-full": "f1b7dc82dedcd323",
    "resnet50-b184-recompute": "29715e4189359ad8",
    "unet-b11-full": "7225508b6db3da14",
    "unet-b11-recompute": "e30903f16e10ca42",
}


def small_document() -> Document:
    """Three operators: a convolution, a ReLU with sign bits that may run in place, a loss."""

    def cost(time_us: float, **more: Any) -> Document:
        return {"time_us": time_us, "workspace_bytes": 0, "energy_uj": 2 * time_us, **more}

    def forward(id_: int, op: str, inputs: list[int], size: int, live: int, **more: Any) -> Document:
        sizes = {"output_bytes": size, "live_inputs": inputs, "live_bytes": live, "fixed_bytes": 8}
        costs = {"implementations": [cost(10.0)], "recompute_implementations": [cost(9.0)]}
        return {"id": id_, "op": op, "inputs": inputs, **sizes, **costs, **more}

    def backward(id_: int, op: str, *needs: list[int]) -> Document:
        sizes = {"output_bytes": 16, "live_bytes": 16, "fixed_bytes": 8}
        return {"id": id_, "op": op, **sizes, "implementations": [cost(20.0, needs=n) for n in needs]}

    in_place = {"overwrites": 0, "time_delta_us": -1.0, "workspace_delta_bytes": -64, "energy_delta_uj": -1.0}
    return {
        "schema": "loadmaster/problem/1",
        "kind": "memory",
        "name": "small",
        "budget_bytes": None,
        "forward": [
            forward(0, "conv", [], 64, 0),
            forward(1, "relu", [0], 64, 64, in_place=in_place),
            forward(2, "signs", [1], 2, 64, encodes=1, in_place={**in_place, "time_delta_us": 1.0}),
            forward(3, "loss", [1], 4, 64),
        ],
        "backward": [
            backward(1, "loss backward", [1]),
            backward(2, "relu backward", [0], [1], [2]),
            backward(3, "conv backward", []),
        ],
    }


def changed(*path: str | int, to: Any) -> Document:
    """The small document with one value replaced (or added)."""
    document = copy.deepcopy(small_document())
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return document


def without(*path: str | int) -> Document:
    document = copy.deepcopy(small_document())
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return document


@pytest.mark.parametrize("name", example_names())
def test_shipped_problems_load_and_round_trip(name: str) -> None:
    problem = read_problem(example(name))
    assert problem.budget_bytes is None
    assert problem.forward[-1].op.startswith("loss")
    again = json.loads(json.dumps(write_problem(problem)))
    assert read_problem(again) == problem
    assert read_problem(again).sha256 == problem.sha256


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), once_only=st.sampled_from([0.0, 0.5]), energy=st.booleans(), link=st.booleans())
def test_any_problem_round_trips(seed: int, once_only: float, energy: bool, link: bool) -> None:
    problem = random_problem(
        seed,
        operators=5,
        once_only=once_only,
        objective="energy" if energy else "time",
        host_link=HostLink(12.0, 10.0, 1000, cut_us=9.0, cut_gbps=4000.0) if link else None,
    )
    assert read_problem(json.loads(json.dumps(write_problem(problem)))) == problem


def test_shipped_problems_keep_their_identity() -> None:
    found = {name: read_problem(example(name)).sha256[:16] for name in example_names()}
    assert found == IDENTITIES


def test_places_in_the_model_are_optional_and_come_back() -> None:
    document = small_document()
    assert not {"module", "source"} & write_problem(read_problem(document))["forward"][0].keys()
    document["forward"][0] |= {"op": "aten.add.Tensor", "module": "layers.0", "source": "model.py:214"}
    problem = read_problem(document)
    assert write_problem(problem)["forward"][0]["source"] == "model.py:214"
    assert read_problem(write_problem(problem)) == problem
    assert problem.forward[0].label == "layers.0, add, model.py:214 (forward 0)"
    assert problem.forward[1].label == f"forward 1 ({problem.forward[1].op})"


def test_identity_is_graph_costs_and_objective_only() -> None:
    problem = read_problem(small_document())
    renamed = read_problem({**small_document(), "name": "other", "title": "Another name", "budget_bytes": 1000})
    assert renamed.sha256 == problem.sha256
    assert problem.with_budget(17).sha256 == problem.sha256
    placed = changed("forward", 0, "module", to="layers.0")
    placed["backward"][0] |= {"module": "head", "source": "model.py:7"}
    assert read_problem(placed).sha256 == problem.sha256
    assert read_problem({**small_document(), "objective": "energy"}).sha256 != problem.sha256
    assert read_problem(changed("forward", 0, "output_bytes", to=65)).sha256 != problem.sha256
    assert read_problem(changed("backward", 0, "implementations", 0, "time_us", to=21)).sha256 != problem.sha256


def test_needs_are_a_set() -> None:
    twice = read_problem(changed("backward", 0, "implementations", 0, "needs", to=[3, 1, 1]))
    assert twice.backward[0].implementations[0].needs == (1, 3)


GBPS = {"to_host_gbps": 1, "from_host_gbps": 1}

REFUSED: list[tuple[Document, str, str]] = [
    (changed("colour", to="red"), "colour", "not a field"),
    (changed("forward", 1, "outputs", to=[]), "forward[1].outputs", "not a field"),
    (
        changed("backward", 0, "implementations", 0, "speed", to=1),
        "backward[0].implementations[0].speed",
        "not a field",
    ),
    (without("forward", 2, "live_bytes"), "forward[2].live_bytes", "missing"),
    (without("backward"), "backward", "missing"),
    (changed("schema", to="loadmaster/problem/2"), "schema", "version"),
    (changed("schema", to="loadmaster/plan/1"), "schema", "not the expected schema"),
    (without("schema"), "schema", "not the expected schema"),
    (changed("kind", to="placement"), "kind", "memory"),
    (changed("objective", to="memory"), "objective", "time"),
    (changed("forward", to=[]), "forward", "at least 1"),
    (changed("forward", 0, "implementations", to=[]), "forward[0].implementations", "at least 1"),
    (changed("backward", 1, "implementations", to=[]), "backward[1].implementations", "at least 1"),
    # Graphs that are none.
    (changed("forward", 1, "inputs", to=[3]), "forward[1].inputs", "cyclic"),
    (changed("forward", 1, "inputs", to=[1]), "forward[1].inputs", "cyclic"),
    (changed("forward", 1, "live_inputs", to=[2]), "forward[1].live_inputs", "cyclic"),
    (changed("forward", 3, "inputs", to=[9]), "forward[3].inputs", "dangling"),
    (changed("forward", 3, "live_inputs", to=[9]), "forward[3].live_inputs", "dangling"),
    (changed("backward", 0, "implementations", 0, "needs", to=[4]), "backward[0].implementations[0].needs", "dangling"),
    (changed("forward", 2, "encodes", to=3), "forward[2].encodes", "not an earlier"),
    (changed("forward", 3, "encodes", to=2), "forward[3].encodes", "encoded result"),
    (changed("forward", 1, "id", to=2), "forward[1].id", "position"),
    (changed("backward", 1, "id", to=1), "backward[1].id", "is not 2"),
    (changed("forward", 1, "in_place", "overwrites", to=2), "forward[1].in_place.overwrites", "not an input"),
    (without("forward", 1, "in_place"), "forward[2].in_place", "parent"),
    (changed("forward", 2, "in_place", "overwrites", to=1), "forward[2].in_place.overwrites", "parent"),
    # Numbers that are none, or are absurd.
    (changed("forward", 0, "output_bytes", to=-1), "forward[0].output_bytes", "greater than or equal to 0"),
    (changed("forward", 0, "output_bytes", to=1 << 61), "forward[0].output_bytes", "less than or equal"),
    (changed("forward", 0, "output_bytes", to=64.5), "forward[0].output_bytes", "integer"),
    (changed("forward", 0, "output_bytes", to="64"), "forward[0].output_bytes", "integer"),
    (changed("forward", 0, "output_bytes", to=True), "forward[0].output_bytes", "integer"),
    (changed("backward", 2, "live_bytes", to=-5), "backward[2].live_bytes", "greater than or equal to 0"),
    (changed("budget_bytes", to=-1), "budget_bytes", "greater than or equal to 0"),
    (
        changed("forward", 0, "implementations", 0, "time_us", to=-1.0),
        "forward[0].implementations[0].time_us",
        "greater",
    ),
    (changed("forward", 0, "implementations", 0, "time_us", to=1e15), "forward[0].implementations[0].time_us", "less"),
    (
        changed("forward", 0, "implementations", 0, "time_us", to=math.nan),
        "forward[0].implementations[0].time_us",
        "finite",
    ),
    (
        changed("forward", 0, "implementations", 0, "time_us", to=math.inf),
        "forward[0].implementations[0].time_us",
        "finite",
    ),
    (changed("forward", 1, "in_place", "time_delta_us", to=-10.5), "forward[1].in_place.time_delta_us", "negative"),
    (changed("forward", 1, "in_place", "energy_delta_uj", to=-21.0), "forward[1].in_place.energy_delta_uj", "negative"),
    (changed("host_link", to={"to_host_gbps": 0, "from_host_gbps": 1}), "host_link.to_host_gbps", "greater than 0"),
    (changed("host_link", to={"to_host_gbps": 1}), "host_link.from_host_gbps", "missing"),
    (changed("host_link", to={**GBPS, "cut_us": -1.0}), "host_link.cut_us", "greater than or equal to 0"),
    (changed("host_link", to={**GBPS, "cut_us": 1e10}), "host_link.cut_us", "less than or equal to"),
    (changed("host_link", to={**GBPS, "cut_us": math.nan}), "host_link.cut_us", "finite"),
    (changed("host_link", to={**GBPS, "cut_us": "1"}), "host_link.cut_us", "number"),
    (changed("host_link", to={**GBPS, "cut_gbps": 0}), "host_link.cut_gbps", "greater than 0"),
    (changed("host_link", to={**GBPS, "cut_ms": 1.0}), "host_link.cut_ms", "not a field"),
]


@pytest.mark.parametrize(("document", "field", "problem"), REFUSED, ids=[f"{r[1]}-{r[2]}" for r in REFUSED])
def test_what_is_wrong_is_refused_by_name(document: Document, field: str, problem: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_problem(document)
    assert refusal.value.field == field
    assert problem in refusal.value.problem
    assert refusal.value.remedy.endswith(".")
    assert field in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (("forward", 0, "implementations", 0, "energy_uj"), "forward[0].implementations[0].energy_uj"),
        (
            ("forward", 3, "recompute_implementations", 0, "energy_uj"),
            "forward[3].recompute_implementations[0].energy_uj",
        ),
        (("forward", 1, "in_place", "energy_delta_uj"), "forward[1].in_place.energy_delta_uj"),
        (("backward", 1, "implementations", 2, "energy_uj"), "backward[1].implementations[2].energy_uj"),
    ],
)
def test_energy_as_objective_asks_for_every_energy(path: tuple[str | int, ...], field: str) -> None:
    document = without(*path)
    assert read_problem(document).unit == "us"
    with pytest.raises(InputError, match="energy") as refusal:
        read_problem({**document, "objective": "energy"})
    assert refusal.value.field == field


def a_plan(problem: MemoryProblem, schedule: Schedule | None) -> MemoryPlan:
    verdict = {} if schedule is None else check(problem, schedule, 10**6).summary()
    return MemoryPlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        budget_bytes=10**6,
        status="infeasible" if schedule is None else "feasible",
        objective=None if schedule is None else 87.5,
        bound=None if schedule is None else 80.0,
        gap=None if schedule is None else 7.5 / 87.5,
        overhead_gap=None,
        unconstrained=80.0,
        unit="us",
        method="plain",
        stopped_by="proof",
        seconds={"build": 0.1, "solve": 0.2, "check": 0.0},
        solver={"name": "none", "nodes": 0},
        check=verdict,
        schedule=schedule,
        infeasibility=MemoryInfeasibility(200, 10, "forward 1 (relu)", (Blocker("forward 0", "conv", 64),))
        if schedule is None
        else None,
    )


def test_plans_round_trip() -> None:
    problem = read_problem(small_document())
    step = plain.formulate(problem)
    travelling = replace(
        step,
        stages=(
            *step.stages[:2],
            replace(step.stages[2], computes=(Compute(1, 0, True),), fetches=(Fetch(0, 1),)),
            *step.stages[3:],
        ),
        offload=(0,),
        gone_before=(3,),
    )
    for schedule in (step, travelling, None):
        plan = a_plan(problem, schedule)
        assert read_plan(json.loads(json.dumps(write_plan(plan)))) == plan


def test_plans_that_do_not_say_when_results_are_gone_are_read() -> None:
    problem = read_problem(small_document())
    document = write_plan(a_plan(problem, replace(plain.formulate(problem), offload=(0,), gone_before=(3,))))
    del document["schedule"]["gone_before"]
    schedule = read_plan(document).schedule
    assert schedule is not None
    assert (schedule.offload, schedule.gone_before, schedule.departures(5)) == ((0,), (), {0: 5})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.update(schema="loadmaster/plan/7"), "schema"),
        (lambda d: d.update(verdict="fine"), "verdict"),
        (lambda d: d.update(status="perfect"), "status"),
        (lambda d: d.update(problem_sha256="abc"), "problem_sha256"),
        (lambda d: d["schedule"]["stages"][0].update(keep=[-1]), "schedule.stages[0].keep[0]"),
        (lambda d: d["schedule"]["stages"][1].update(notes=""), "schedule.stages[1].notes"),
        (lambda d: d["schedule"].update(offload=[0, 1], gone_before=[3]), "schedule.gone_before"),
        (lambda d: d["schedule"].update(gone_before=[3]), "schedule.gone_before"),
        (lambda d: d["schedule"].update(offload=[0], gone_before=[-3]), "schedule.gone_before[0]"),
        (lambda d: d.pop("schedule"), "schedule"),
        (lambda d: d.pop("objective"), "objective"),
        (lambda d: d.update(status="infeasible"), "objective"),
        (lambda d: d.pop("kind"), "kind"),
        (lambda d: d["check"].update(peak_bytes=[1]), "check.peak_bytes"),
        (lambda d: d["solver"].update(nodes=10**400), "solver.nodes"),
        (lambda d: d["solver"].update(nodes=[{"first": math.inf}]), "solver.nodes"),
    ],
)
def test_wrong_plans_are_refused_by_name(change: Callable[[Document], Any], field: str) -> None:
    problem = read_problem(small_document())
    document = write_plan(a_plan(problem, plain.formulate(problem)))
    change(document)
    with pytest.raises(InputError) as refusal:
        read_plan(document)
    assert refusal.value.field == field


def test_stage_of_plain_step_is_what_it_should_be() -> None:
    """The plain step of the small problem, by hand: ReLU saves its result, which the loss saves anyway.

    Backward 2 reads it last, so stage 2 is the last to keep it.
    """
    step = plain.formulate(read_problem(small_document()))
    assert step == Schedule(
        (
            Stage((Compute(0), Compute(1), Compute(3)), None, (1,)),
            Stage((), 0, (1,)),
            Stage((), 1, (1,)),
            Stage((), 0, ()),
        )
    )


def test_optimal_is_said_only_where_the_overhead_is_proved_too() -> None:
    """0.5 % of a step may be 69 % of what the budget costs."""
    problem = read_problem(small_document())
    plan = replace(a_plan(problem, plain.formulate(problem)), status="optimal", options={"gap": 0.01})
    assert replace(plan, gap=0.0, overhead_gap=0.0).standing == "optimal"
    assert replace(plan, gap=0.001, overhead_gap=0.009).standing == "optimal"
    within = replace(plan, gap=0.005, overhead_gap=0.69)
    assert within.standing == "within 0.50 % of the best step"
    assert "0.50 % of the best step" in summary(within) and "69.00 % of the overhead is not proved" in summary(within)
    assert "optimal" not in summary(within)
    assert replace(within, status="feasible").standing == "feasible"
