"""Training problems from presets: what is written is read later, with the bytes and the times that training takes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from loadmaster.errors import InputError
from loadmaster.models.hardware import hardware
from loadmaster.models.synthetic import SHAPES
from loadmaster.models.training.documents import check_problem, read_problem, write_problem
from loadmaster.models.training.presets import model, parameters
from loadmaster.models.training.problem import TrainingProblem

H200 = hardware("h200")
GB = 1e9


def plain_us(problem: TrainingProblem) -> float:
    points = [problem.points(n)[0] for n in range(len(problem.layers))]
    return sum(p.forward_us + p.backward_us for p in points) + sum(g.update_us for g in problem.groups)


@pytest.mark.parametrize("name", SHAPES)
def test_every_model_is_a_problem(name: str) -> None:
    problem = model(name, H200, batch=1, sequence=128)
    check_problem(problem)
    assert read_problem(json.loads(json.dumps(write_problem(problem)))) == problem
    shape = SHAPES[name]
    assert problem.sizes == {"layers": shape.layers + 2, "groups": shape.layers + (1 if shape.tied_head else 2)}
    assert sum(group.weight_bytes for group in problem.groups) == 4 * parameters(shape)
    tied = [group.layers for group in problem.groups if len(group.layers) > 1]
    assert tied == ([(0, shape.layers + 1)] if shape.tied_head else [])


def test_parameters_are_counted_as_published() -> None:
    assert parameters(SHAPES["llama3-8b"]) == 8_030_261_248
    assert parameters(SHAPES["llama3.2-1b"]) == 1_235_814_400


def test_a_block_keeps_ever_less_and_takes_ever_longer() -> None:
    for name in ("llama-3b", "gpt2"):
        points = model(name, H200, sequence=256).classes[1].points
        assert [p.name for p in points] == [
            "keep",
            "redo elementwise",
            "redo gate and up" if name == "llama-3b" else "redo up",
            "checkpoint",
        ]
        for one, other in pairwise(points):
            assert other.kept_bytes < one.kept_bytes and other.backward_us > one.backward_us
            assert other.forward_bytes >= one.forward_bytes and other.forward_us == one.forward_us
            # What a pass makes again is there while it runs.
            assert other.backward_bytes + other.kept_bytes == one.backward_bytes + one.kept_bytes
        # The input alone: 4 sequences of 256 tokens in bf16.
        assert points[-1].kept_bytes == 4 * 256 * 2 * SHAPES[name].hidden


def test_a_step_is_near_what_was_measured() -> None:
    """Plain PyTorch on an H200: 0.33 s a step; forward and backward of a block 3.1 and 7.4 ms, and it keeps 1.06 GB."""
    problem = model("llama-3b", H200, batch=4, sequence=2048)
    assert plain_us(problem) == pytest.approx(0.33e6, rel=0.12)
    keep = problem.classes[1].points[0]
    assert keep.forward_us == pytest.approx(3.1e3, rel=0.1)
    assert keep.backward_us == pytest.approx(7.4e3, rel=0.15)
    assert keep.kept_bytes == pytest.approx(1.06 * GB, rel=0.2)


def test_groups_take_what_adamw_takes() -> None:
    group = model("llama-3b", H200, host_update_gbps=56.0).groups[1]
    size = group.weight_bytes // 4
    assert (group.copy_bytes, group.gradient_bytes, group.copy_gradient_bytes) == (2 * size, 4 * size, 2 * size)
    assert group.state_bytes == 8 * size
    assert group.host_update_us == pytest.approx(size / 2e3)
    assert group.update_us == pytest.approx(28 * size / (H200.dram_gbps * H200.dram_share * 1e3) + H200.launch_us)
    plain = model("llama-3b", H200, optimizer="sgd", host_update_gbps=None).groups[1]
    assert (plain.state_bytes, plain.host_update_us) == (0, None)


def test_the_step_is_the_one_asked_for() -> None:
    problem = model("GPT2", H200, batch=2, micro_batches=3, clip_grad_norm=True, host_bytes=1 << 30)
    assert problem.name == "gpt2-m3-b2-s1024-h200"
    assert (problem.micro_batches, problem.clip_grad_norm, problem.host.capacity_bytes) == (3, True, 1 << 30)
    assert (problem.host.to_gbps, problem.host.from_gbps) == (H200.to_host_gbps, H200.from_host_gbps)
    assert problem.fixed_bytes == 2 * 8 * 2 * 1024


@pytest.mark.parametrize(
    ("options", "field"),
    [({"batch": 0}, "--batch"), ({"sequence": 0}, "--sequence"), ({"micro_batches": 1001}, "--micro-batches")],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int], field: str) -> None:
    with pytest.raises(InputError) as caught:
        model("gpt2", H200, **options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="Did you mean llama3-8b") as caught:
        model("llama-8b", H200)
    assert caught.value.field == "--model"
