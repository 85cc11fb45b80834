"""What every rank does in tests of models that are split into their modules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor.partition.apply import apply, split
from loadmaster.executor.partition.module_step import METHODS, ModuleStep
from loadmaster.models.partition.plan import PartitionPlan, Roles, roles_of
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.planner.partition.modules import by_roles
from loadmaster.planner.partition.pairwise import minimize
from tests.executor.partition.models import made
from tests.executor.partition.step_scenarios import RATE, captured, on_one_device, plan_of
from tests.models.partition.instances import axes


def under(problem: PartitionProblem, roles: Roles, *, once: bool = False) -> PartitionPlan:
    """The best plan where the axes have these roles, and sharded parameters are gathered so often."""
    choices = next(choices for *of, choices in by_roles(problem) if of == [roles, once])
    chosen, _ = minimize(choices.unary, choices.pairs)
    splits = choices.splits(chosen)
    assert roles_of(problem, splits) == roles
    return replace(plan_of(problem, splits), method="module")


def fast_links(name: str, sizes: tuple[int, ...]) -> PartitionProblem:
    """So fast that all is split which can be."""
    return replace(captured(name), axes=axes(*sizes, gbps=1e6))


def trains_alike(name: str, every: list[Roles], sizes: tuple[int, ...], rank: int, *, once: bool = False) -> None:
    """Loss and parameters are those of one device, whatever the axes are for, however often weights are gathered."""
    problem = fast_links(name, sizes)
    for roles in every:
        expect_equal_training(name, problem, under(problem, roles, once=once))


def methods_train_alike(name: str, sizes: tuple[int, ...], rank: int) -> None:
    """So are they under plans by hand."""
    problem = replace(fast_links(name, sizes), budget_bytes=1 << 30)
    for method in METHODS:
        plan = loadmaster.plan(problem, method=method, progress=False)
        assert isinstance(plan, PartitionPlan) and plan.method == method
        expect_equal_training(name, problem, plan)


def expect_equal_training(name: str, problem: PartitionProblem, plan: PartitionPlan) -> None:
    """Expect losses and parameters of one device."""
    model, batch, loss = made(name)
    step = apply(model, batch, loss, problem=problem, plan=plan, executor="module")
    optimizer = torch.optim.AdamW(step.parameters(), lr=RATE)
    for wanted, _, state in on_one_device(name):
        found = step(*batch)
        found.backward()
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(step.state_dict(), state, rtol=1e-9, atol=1e-11)


def gathers_as_planned(sizes: tuple[int, ...], rank: int) -> None:
    """Parameters that stay whole are not gathered in the backward pass."""
    problem = fast_links("llama", sizes)
    gathers = {}
    for once in (False, True):
        model, batch, loss = made("llama")
        step = apply(model, batch, loss, problem=problem, plan=under(problem, ("shard",), once=once), executor="module")
        for part in ("forward", "backward"):
            with CommDebugMode() as counted:  # type: ignore[no-untyped-call, unused-ignore]
                if part == "forward":
                    found = step(*batch)
                else:
                    found.backward()
            names = {str(of): times for of, times in counted.get_comm_counts().items()}
            gathers[once, part] = sum(times for of, times in names.items() if "gather" in of)
    assert gathers[False, "forward"] == gathers[False, "backward"] == gathers[True, "forward"] > 1
    assert gathers[True, "backward"] == 0


def splits_in_one_call(sizes: tuple[int, ...], rank: int) -> None:
    """Whole state goes out and in; a loss that is a sum has its own gradients."""
    model, batch, _ = made("perceptron")
    reference, _, _ = made("perceptron")
    loss = nn.MSELoss(reduction="sum")
    mesh = "x".join(map(str, sizes))
    planner = loadmaster.plan
    step = split(model, batch, loss, mesh=mesh, planner=planner, budget_bytes="5KiB", executor="module")
    assert isinstance(step, ModuleStep) and step.module is model
    wanted = loss(reference(batch[0]), batch[1])
    wanted.backward()
    found = step(*batch)
    found.backward()
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    for (name, parameter), own in zip(step.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), own.grad, rtol=1e-10, atol=1e-12, msg=name)
    state = {name: 2 * value for name, value in step.state_dict().items()}
    step.load_state_dict(state)
    torch.testing.assert_close(step.state_dict(), state, rtol=0, atol=0)


def refuses(sizes: tuple[int, ...], rank: int) -> None:
    """What would train otherwise than one device is found before it trains."""
    problem = fast_links("convolutional", sizes)

    def tried(roles: Roles) -> None:
        model, batch, loss = made("convolutional")
        apply(model, batch, loss, problem=problem, plan=under(problem, roles), executor="module")

    # Statistics of a share of the batch, and running ones that DTensor does not write.
    with pytest.raises(InputError, match=r"loss.*one device has.*executor='graph'"):
        tried(("shard",))
    with pytest.raises(InputError, match=r"1\.running_mean.*executor='graph'"):
        tried(("tensor",))
    model, batch, loss = made("convolutional")
    plan = replace(under(problem, ("shard",)), method="auto")
    with pytest.raises(InputError, match=r"plan\.method.*auto.*method=\"module\""):
        apply(model, batch, loss, problem=problem, plan=plan, executor="module")
    with pytest.raises(InputError, match=r"executor.*modules.*graph, module"):
        apply(model, batch, loss, problem=problem, plan=plan, executor="modules")  # type: ignore[arg-type]
    dropped = nn.Sequential(nn.Linear(8, 4), nn.Dropout()).double()
    with pytest.raises(InputError, match="dropout to 0"):
        split(
            dropped,
            (torch.ones(8, 8).double(), torch.ones(8, 4).double()),
            nn.MSELoss(),
            mesh="2",
            planner=loadmaster.plan,
            budget_bytes="1GiB",
            executor="module",
        )
