"""Captured steps as partition problems: what is in them, what is tied, and what is refused."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor.partition.apply import apply
from loadmaster.executor.partition.capture import capture
from loadmaster.executor.partition.command import main
from loadmaster.models.partition.documents import read_problem, write_problem
from loadmaster.models.partition.meshes import mesh
from loadmaster.models.partition.problem import PartitionProblem
from tests.executor.partition.models import MADE, made, t

AXES = mesh("2x2")


def captured(name: str) -> PartitionProblem:
    model, batch, loss = made(name)
    return capture(model, batch, loss, axes=AXES, optimizer=torch.optim.AdamW(model.parameters()))


@pytest.mark.slow
def test_a_captured_model_can_be_let_go() -> None:
    model, batch, loss = made("perceptron")
    parameter = weakref.ref(next(model.parameters()))
    problem = capture(model, batch, loss, axes=AXES)
    del model
    gc.collect()
    assert problem.operators and parameter() is None


def test_every_parameter_has_a_gradient_of_its_shape_and_its_state() -> None:
    model, _, _ = made("gpt")
    problem = captured("gpt")
    by_role = {role: [x for x in problem.tensors if x.role == role] for role in ("parameter", "gradient", "state")}
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert {x.name: x.shape for x in by_role["parameter"]} == shapes
    assert {x.name.removesuffix(".grad"): x.shape for x in by_role["gradient"]} == shapes
    assert len(by_role["state"]) == 2 * len(shapes)
    assert {x.element_bytes for x in by_role["state"]} == {8}
    updates = [operator for operator in problem.operators if operator.op == "update"]
    assert [operator.module for operator in updates] == [problem.tensors[u.inputs[0]].name for u in updates]


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_every_example_can_be_split_entirely(name: str) -> None:
    """Nothing runs whole but what has nothing to split."""
    model, batch, loss = made(name)
    problem = capture(model, batch, loss, axes=AXES, strict=True)
    assert read_problem(json.loads(json.dumps(write_problem(problem)))) == problem
    assert loadmaster.plan(problem, budget_bytes="1GiB", gap=0.01).check["ok"]


@pytest.mark.slow
def test_two_captures_are_of_one_problem() -> None:
    assert captured("convolutional").sha256 == captured("convolutional").sha256


def test_a_model_without_values_is_captured_as_with_them() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).double()
        batch = torch.empty(8, 8, dtype=torch.float64), torch.empty(8, 4, dtype=torch.float64)
    without = capture(model, batch, functional.mse_loss, axes=AXES, name="one")
    with_values, values, loss = made("perceptron")
    assert without.name == capture(with_values, values, loss, axes=AXES, name="one").name


@pytest.mark.gpu
def test_a_model_without_values_is_captured_for_a_gpu_with_little_memory() -> None:
    def layers(device: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        with torch.device(device):
            model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
            return model, (torch.empty(4, 1024), torch.empty(4, 1024))

    on_gpu = capture(*layers("cuda"), functional.mse_loss, axes=AXES)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    without = capture(*layers("meta"), functional.mse_loss, axes=AXES, device="cuda")
    assert without.name == on_gpu.name
    assert torch.cuda.max_memory_allocated() - before < 3 * 4 * 1024 * 1024


def test_operators_without_results_are_captured() -> None:
    """``one_hot`` asserts that classes are classes."""
    model, batch, loss = made("experts")
    problem = capture(model, batch, loss, axes=AXES, strict=True)
    without = {operator.op for operator in problem.operators if not operator.outputs} - {"update"}
    assert without == {"aten._assert_async.msg"}
    assert read_problem(json.loads(json.dumps(write_problem(problem)))) == problem
    assert loadmaster.plan(problem, budget_bytes="1GiB", gap=0.5).check["ok"]


def test_layers_that_repeat_are_tied() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = functional.relu(layer(x))
            return x

    problem = capture(Deep(), (t(8, 16).float(), t(8, 16).float()), functional.mse_loss, axes=AXES)
    ties = [x.tie for x in problem.tensors if x.name in {f"layers.{n}.weight" for n in range(4, 8)}]
    assert len(ties) == 4
    assert len(set(ties)) == 1
    assert ties[0] is not None


class Renormed(nn.Module):
    """Uses an operator that nothing is known of."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.renorm(self.line(x), 2, 0, 1.0)
        return out


BATCH = torch.ones(4, 8), torch.ones(4, 8)


def test_what_runs_whole_is_named_and_refused_where_asked(caplog: pytest.LogCaptureFixture) -> None:
    capture(Renormed(), BATCH, functional.mse_loss, axes=AXES)
    assert "aten.renorm (1 times): has no formula; it runs whole on every GPU" in caplog.text
    with pytest.raises(InputError, match=r"cannot be split .*aten\.renorm"):
        capture(Renormed(), BATCH, functional.mse_loss, axes=AXES, strict=True)


def test_an_axis_that_does_not_divide_the_batch_is_named(caplog: pytest.LogCaptureFixture) -> None:
    problem = capture(nn.Linear(8, 8), BATCH, functional.mse_loss, axes=mesh("3x2"))
    assert "axis0 has 3 GPUs, which do not divide dimension 0 of the input of shape [4, 8]" in caplog.text
    assert loadmaster.plan(problem, budget_bytes="1GiB").check["ok"]


def test_a_model_that_keeps_tensors_is_refused() -> None:
    class Keeping(nn.Linear):
        kept: Tensor

        def forward(self, input: Tensor) -> Tensor:
            self.kept = super().forward(input)
            return self.kept.square().mean()

    with pytest.raises(InputError, match=r"keeps tensors of these shapes .* \(found \[\(4, 8\)\]\)"):
        capture(Keeping(8, 8), (torch.randn(4, 8),), axes=AXES)


def test_costs_of_a_model_without_values_need_a_device() -> None:
    with torch.device("meta"), pytest.raises(InputError, match="hardware"):
        capture(nn.Linear(8, 8), BATCH, functional.mse_loss, axes=AXES, hardware=None)


def test_costs_are_measured_where_no_device_is_named() -> None:
    problem = capture(nn.Linear(8, 8), BATCH, functional.mse_loss, axes=AXES, hardware=None)
    assert problem.title == "Linear, costs measured"
    assert any(operator.time_us for operator in problem.operators)


def test_a_plan_is_not_applied_to_another_step() -> None:
    problem = capture(nn.Linear(8, 8), BATCH, functional.mse_loss, axes=AXES)
    plan = loadmaster.plan(problem, budget_bytes="1GiB")
    other = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with pytest.raises(InputError, match="was captured from another step"):
        apply(other, BATCH, functional.mse_loss, problem=problem, plan=plan)
    with pytest.raises(InputError, match="was captured from another step"):
        apply(nn.Linear(8, 8), (torch.ones(8, 8), torch.ones(8, 8)), functional.mse_loss, problem=problem, plan=plan)
    with pytest.raises(InputError, match="has no process group"):
        apply(nn.Linear(8, 8), BATCH, functional.mse_loss, problem=problem, plan=plan)
    another = capture(other, BATCH, functional.mse_loss, axes=AXES)
    with pytest.raises(InputError, match="problem_sha256"):
        apply(other, BATCH, functional.mse_loss, problem=another, plan=plan)


@pytest.mark.slow
def test_the_command_writes_the_problem_and_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    path = tmp_path / "problem.json"
    assert main(["examples.llama:small", "--mesh", "2x2", "--gbps", "45,350", "-o", str(path)]) == 0
    problem = loadmaster.load_problem(path)
    assert isinstance(problem, PartitionProblem)
    assert [axis.gbps for axis in problem.axes] == [45.0, 350.0]
    assert problem.budget_bytes is not None
    assert "least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mesh", "1"], "--mesh"),
        (["--mesh", "2x2", "--gbps", "1,2,3"], "--gbps"),
        (["--mesh", "2x2", "--hardware", "abacus"], "abacus"),
    ],
)
def test_the_command_names_the_flag(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples.llama:small", *arguments]) == 2
    assert said in capsys.readouterr().err
