"""Placement problems from presets: what is written is read later, and the bytes are those that training takes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.hardware import hardware
from loadmaster.models.memory import presets as memory
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.documents import read_problem
from loadmaster.models.placement.limits import least_bytes, peak_bytes, spread
from loadmaster.models.placement.presets import chain, transformer
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.synthetic import decoder
from loadmaster.models.units import show_bytes

H200 = hardware("h200")


def test_a_chain_by_hand() -> None:
    problem = read_problem(chain(2, 1000, 500, 10.0, H200, 25.0))
    numbers = {block.name: n for n, block in enumerate(problem.blocks)}

    def named(operator: int) -> tuple[str, list[str], list[str]]:
        o = problem.operators[operator]
        names = {n: name for name, n in numbers.items()}
        return o.op, [names[b] for b in o.reads], [names[b] for b in o.writes]

    assert [named(i) for i in range(8)] == [
        ("block", ["input", "layers.0"], ["0 block"]),
        ("block", ["0 block", "layers.1"], ["1 block"]),
        ("loss", ["input", "1 block"], ["2 loss"]),
        ("loss backward", ["input", "1 block"], ["1 block gradient"]),
        ("block backward", ["0 block", "layers.1", "1 block gradient"], ["0 block gradient", "layers.1 gradient"]),
        ("block backward", ["input", "layers.0", "0 block gradient"], ["layers.0 gradient"]),
        ("adamw", ["layers.0", "layers.0 gradient", "layers.0 mean", "layers.0 variance"], named(6)[2]),
        ("adamw", ["layers.1", "layers.1 gradient", "layers.1 mean", "layers.1 variance"], named(7)[2]),
    ]
    assert named(6)[2] == ["layers.0", "layers.0 mean", "layers.0 variance"]
    assert [o.time_us for o in problem.operators] == [10, 10, 1, 1, 20, 20, 1, 1]
    sizes = {block.name: (block.size_bytes, block.role) for block in problem.blocks}
    # 250 elements: 2 bytes each in bf16, 4 in each state.
    assert sizes["layers.0"] == (500, "parameter")
    assert sizes["layers.0 gradient"] == (500, "gradient")
    assert sizes["layers.0 mean"] == (1000, "state")
    assert (problem.tiers[0].to_gbps, problem.tiers[0].from_gbps) == (25.0, 25.0)


@settings(max_examples=15)
@given(layers=st.integers(1, 3), hidden=st.integers(1, 32), sequence=st.integers(1, 32), batch=st.integers(1, 3))
def test_a_transformer_trains(layers: int, hidden: int, sequence: int, batch: int) -> None:
    problem = read_problem(transformer(layers, hidden, sequence, batch, H200, vocabulary=100))
    weights = 6 * layers + 2
    operators = 10 * layers + 4
    assert len(problem.operators) == 2 * operators + weights
    for block, uses in zip(problem.blocks, Accesses(problem).uses, strict=True):
        # Results and gradients are made before they are read; everything else is there all along.
        made = block.role in ("activation", "gradient")
        assert uses[0][1] is not made and (uses[0][2] or not made)
        assert block.name == "input" or any(writes for _, _, writes in uses)
    roles = Counter(block.role for block in problem.blocks)
    assert (roles["parameter"], roles["gradient"], roles["state"], roles["input"]) == (weights, weights, 2 * weights, 1)
    size = Counter[str]()
    for block in problem.blocks:
        size[block.role] += block.size_bytes
    assert size["parameter"] == 2 * (12 * layers * hidden**2 + (2 * layers + 1) * hidden + 100 * hidden)
    assert (size["gradient"], size["state"]) == (size["parameter"], 4 * size["parameter"])
    assert peak_bytes(problem) > size["parameter"] + size["state"]


def test_forward_and_backward_take_what_they_take_in_the_memory_kind() -> None:
    shape = (2, 64, 32, 2)
    placement = read_problem(transformer(*shape, H200, vocabulary=100))
    document = memory.transformer(*shape, H200, vocabulary=100)
    forward = [o["implementations"][0]["time_us"] for o in document["forward"]]
    backward = [o["implementations"][0]["time_us"] for o in document["backward"]]
    times = [o.time_us for o in placement.operators]
    assert times[: len(forward) + len(backward)] == forward + backward
    assert [o["output_bytes"] for o in document["forward"]] == [o.output_bytes for o in decoder(*shape, 100)]


def test_budgets_are_spread_between_what_is_needed_and_what_is_enough() -> None:
    problem = read_problem(chain(3, 1000, 500, 10.0, H200))
    budgets = spread(problem, 4)
    assert (budgets[0], budgets[-1], len(budgets)) == (least_bytes(problem)[0], peak_bytes(problem), 4)


def test_the_summary_says_what_it_takes() -> None:
    problem = read_problem(transformer(1, 64, 32, 2, H200, vocabulary=100))
    said = str(problem.summary())
    for words in (show_bytes(peak_bytes(problem)), f"({least_bytes(problem)[0]} bytes)", "adamw", "host: 55.4 GB/s"):
        assert words in said
    assert problem.summary().figures["unconstrained_peak_bytes"] == peak_bytes(problem)
    assert isinstance(problem, PlacementProblem)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [((0, 1, 2, 1.0), "--chain"), ((1, 0, 2, 1.0), "--activation-bytes"), ((1, 1, 1, 1.0), "--parameter-bytes")],
)
def test_numbers_out_of_range_are_refused(arguments: tuple[int, int, int, float], field: str) -> None:
    with pytest.raises(InputError) as caught:
        chain(*arguments, H200)
    assert caught.value.field == field
