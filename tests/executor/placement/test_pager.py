"""Training under a pager: the same numbers, within the limit; what is evicted is empty; what fails leaves all whole."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
from functools import partial

import pytest
import torch
from torch import nn

import loadmaster
from loadmaster.errors import InputError
from loadmaster.executor import Pager
from loadmaster.executor.placement.pager.copies import HostCopies
from loadmaster.executor.placement.pager.memory import Page, PagedMemory
from loadmaster.models.hardware import HostLink
from loadmaster.models.placement.checker import check_plan
from loadmaster.models.placement.problem import PlacementProblem, Tier
from tests.executor.placement.paged_models import (
    SMALL,
    Case,
    Mixer,
    peak_bytes,
    train,
    trained_by_demand,
    trained_plainly,
)

CASES = {
    "adamw": Case(),
    "sgd": Case(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "fused": Case(lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True)),
    "checkpointed": Case(checkpointed=True),
    "micro-batches": Case(micro_batches=2, clip=0.1),
    "gradients kept": Case(keep_gradients=True),
}
planner = partial(loadmaster.plan, time_limit_s=0.5, progress=False)


HEAVY = ("sgd", "micro-batches", "gradients kept")
SHARES = [pytest.param(0.85, marks=pytest.mark.slow), pytest.param(0.7, marks=pytest.mark.slow), 0.5]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in HEAVY else n for n in CASES])
def test_by_demand_numbers_are_those_of_plain_training(name: str, share: float) -> None:
    case = CASES[name]
    budget_bytes = int(share * peak_bytes(case))
    paged = trained_by_demand(case, 6, budget_bytes)
    assert paged.equals(trained_plainly(case, 6))
    assert max(step.peak_bytes for step in paged.stats) <= budget_bytes
    assert sum(step.faults for step in paged.stats) > 0
    assert sum(step.unforeseen for step in paged.stats) == 0


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n != "adamw" else n for n in CASES])
def test_predicted_pages_are_there_and_numbers_are_those_of_plain_training(name: str, share: float) -> None:
    case = CASES[name]
    budget_bytes = int(share * peak_bytes(case))
    paged, demand = train(case, 6, budget_bytes), trained_by_demand(case, 6, budget_bytes)
    assert paged.equals(trained_plainly(case, 6))
    assert max(step.peak_bytes for step in paged.stats) <= budget_bytes
    assert paged.stats[-1].prefetches > 0
    assert paged.stats[-1].faults <= 0.5 * demand.stats[-1].faults
    assert sum(step.unforeseen for step in paged.stats) == 0


def test_a_way_to_prefetch_that_there_is_not() -> None:
    with pytest.raises(InputError, match=r"is no way to prefetch.*'correlation' or None"):
        Pager(Mixer(), budget_bytes="1MiB", prefetch="belady")  # type: ignore[arg-type]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(
    "name", ["adamw", *(pytest.param(n, marks=pytest.mark.slow) for n in ("checkpointed", "fused", "micro-batches"))]
)
def test_planned_numbers_are_those_of_plain_training_without_faults(name: str, share: float) -> None:
    case = CASES[name]
    budget_bytes = int(share * peak_bytes(case))
    paged = train(case, 7, budget_bytes, planner=planner)
    assert paged.pager is not None and paged.pager.refused is None
    assert paged.equals(trained_plainly(case, 7))
    assert max(step.peak_bytes for step in paged.stats) <= budget_bytes
    by_demand, planned = paged.stats[2], paged.stats[-1]
    assert planned.planned == 1.0
    assert planned.prefetches > 0
    assert planned.faults <= max(1, 0.02 * by_demand.faults)


@pytest.mark.slow
def test_the_recorded_problem_is_one_that_the_plan_is_of() -> None:
    case = CASES["adamw"]
    pager = train(case, 5, int(0.7 * peak_bytes(case)), planner=planner).pager
    assert pager is not None and pager.problem is not None and pager.plan is not None
    assert check_plan(pager.problem, pager.plan).ok
    assert {"table.weight", "gradient of wide.0.weight", "exp_avg of wide.0.weight"} <= {
        block.name for block in pager.problem.blocks
    }


def test_with_room_enough_nothing_moves() -> None:
    stats = train(CASES["adamw"], 3, 1 << 40).stats
    assert all(step.faults == step.evictions == step.stored_bytes == 0 for step in stats)


def test_evicted_storages_are_empty_and_come_back() -> None:
    case = CASES["adamw"]
    budget_bytes = int(0.6 * peak_bytes(case))
    model, optimizer = case.made()
    sizes = {name: p.untyped_storage().nbytes() for name, p in model.named_parameters()}
    with Pager(model, optimizer, budget_bytes=budget_bytes, small_bytes=SMALL) as pager:
        for n in range(3):
            case.step(model, optimizer, n)
        held = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}
        assert 0 in storages.values()
        assert sum(storages.values()) <= pager.used_bytes + 16 * len(storages) <= budget_bytes + 16 * len(storages)
    assert {name: p.untyped_storage().nbytes() for name, p in model.named_parameters()} == sizes


def test_too_small_a_limit_names_the_operator_and_its_size() -> None:
    with pytest.raises(InputError, match=r"aten\.\w+.* alone needs [\d.]+ [KM]iB on the device") as found:
        train(CASES["adamw"], 2, 60_000)
    assert found.value.field == "budget_bytes"


@pytest.mark.parametrize("at", ["forward", "backward"])
def test_an_exception_leaves_everything_where_it_was(at: str) -> None:
    case = CASES["adamw"]
    budget_bytes = int(0.6 * peak_bytes(case))
    model, optimizer = case.made()
    foreach = optimizer.param_groups[0]["foreach"]
    plain, plain_optimizer = case.made()
    for n in range(2):
        case.step(plain, plain_optimizer, n)

    class FellOverError(Exception):
        pass

    def fail(*_: object) -> None:
        raise FellOverError

    with pytest.raises(FellOverError), Pager(model, optimizer, budget_bytes=budget_bytes, small_bytes=SMALL):
        for n in range(2):
            case.step(model, optimizer, n)
        if at == "forward":
            model.head.register_forward_pre_hook(fail)  # type: ignore[union-attr, operator]
        else:
            model.wide[0].weight.register_hook(fail)  # type: ignore[index, union-attr]
        case.step(model, optimizer, 2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    for parameter, state in optimizer.state.items():
        twin = plain_optimizer.state[dict(zip(model.parameters(), plain.parameters(), strict=True))[parameter]]  # type: ignore[index]
        assert all(torch.equal(value, twin[key]) for key, value in state.items())
    assert optimizer.param_groups[0]["foreach"] is foreach
    assert "data_ptr" not in vars(torch.Tensor)
    model.table(torch.zeros(3, dtype=torch.int64))  # type: ignore[operator]


@pytest.mark.slow
def test_another_batch_size_falls_back_and_the_plan_is_followed_again() -> None:
    case = Case(rows=(48, 48, 48, 48, 20, 48, 48))
    budget_bytes = int(0.6 * peak_bytes(Case()))
    paged = train(case, 7, budget_bytes, planner=planner)
    assert paged.equals(trained_plainly(case, 7))
    followed = [step.planned for step in paged.stats]
    assert followed[3] == followed[5] == followed[6] == 1.0
    assert followed[4] < 0.9
    assert max(step.peak_bytes for step in paged.stats) <= budget_bytes


@pytest.mark.slow
def test_a_step_that_stays_different_is_recorded_anew() -> None:
    case = Case(rows=(48, 48, 48, 48, 20, 20, 20, 20, 20, 20))
    paged = train(case, 10, int(0.6 * peak_bytes(Case())), planner=planner)
    assert paged.equals(trained_plainly(case, 10))
    assert paged.stats[-1].planned == 1.0


def test_shapes_that_alternate_have_a_plan_each() -> None:
    case = Case(rows=(48, 20))
    paged = train(case, 12, int(0.6 * peak_bytes(Case())), planner=planner)
    assert paged.equals(trained_plainly(case, 12))
    assert [step.planned for step in paged.stats[6:]] == [1.0] * 6
    assert max(step.peak_bytes for step in paged.stats) <= int(0.6 * peak_bytes(Case()))
    by_demand = trained_by_demand(case, 12, int(0.6 * peak_bytes(Case())))
    # Not none: each plan is made for a step of its own shape before it, which left other pages on the device.
    for planned, missed in zip(paged.stats[-2:], by_demand.stats[-2:], strict=True):
        assert planned.faults <= 0.5 * missed.faults


@pytest.mark.slow
def test_plans_of_shapes_that_do_not_come_back_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.executor.placement.pager.schedule.MOST_SHAPES", 2)
    sizes = (48, 40, 30, 20)
    case = Case(rows=(sizes[0], *(size for size in sizes for _ in range(5)), *[sizes[0]] * 5))
    asked = []

    def counted(problem: PlacementProblem) -> object:
        asked.append(problem)
        return planner(problem)

    paged = train(case, len(case.rows), int(0.6 * peak_bytes(Case())), planner=counted)
    assert paged.equals(trained_plainly(case, len(case.rows)))
    assert paged.stats[-1].planned == 1.0
    assert len(asked) == len(sizes) + 1  # the first shape's plan was dropped, and made again


@pytest.mark.slow
def test_a_loop_whose_shapes_never_come_back_is_paged_without_a_plan() -> None:
    case = Case(rows=tuple(range(20, 28)))
    paged = train(case, len(case.rows), int(0.6 * peak_bytes(Case())), planner=planner)
    assert paged.equals(trained_plainly(case, len(case.rows)))
    assert paged.pager is not None and paged.pager.plan is None and paged.pager.refused is None


def test_what_is_compiled_says_once_that_it_is_not(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    for call, expected in ((model, 0), (compiled, 1)):
        caplog.clear()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with Pager(model, optimizer, budget_bytes="1MiB"):
            for _ in range(3):
                optimizer.zero_grad()
                call(torch.ones(3, 8)).sum().backward()
                optimizer.step()
        said = [record.getMessage() for record in caplog.records if record.name.startswith("loadmaster")]
        assert len(said) == expected
        assert all("torch.compile" in line for line in said)


def test_the_link_is_the_planners_and_its_old_name_warns() -> None:
    case = CASES["adamw"]
    budget_bytes = int(0.6 * peak_bytes(case))

    def refuses(problem: object) -> object:
        raise InputError("problem", "it", "is not planned", "Give another.")

    for given in ({"host_link": HostLink(3.0, 2.0)}, {"tier": Tier("disk", 3.0, 2.0)}):
        with pytest.warns(DeprecationWarning, match="host_link") if "tier" in given else contextlib.nullcontext():
            pager = train(case, 4, budget_bytes, planner=refuses, **given).pager
        assert pager is not None and pager.problem is not None
        assert (pager.problem.tiers[0].to_gbps, pager.problem.tiers[0].from_gbps) == (3.0, 2.0)


@pytest.mark.slow
def test_calls_in_between_do_not_end_a_plan() -> None:
    case = CASES["adamw"]
    model, optimizer = case.made()
    budget_bytes = int(0.6 * peak_bytes(case))
    with Pager(model, optimizer, budget_bytes=budget_bytes, planner=planner, small_bytes=SMALL) as pager:
        for n in range(7):
            case.step(model, optimizer, n)
            if n == 5:
                norms = [p.norm().item() for p in model.parameters()]
        assert all(norm > 0 for norm in norms)
    assert [round(step.planned, 6) for step in pager.stats[3:]] == [1.0] * 4


def test_a_planner_without_a_plan_leaves_paging_by_demand() -> None:
    def refuses(problem: object) -> object:
        raise InputError("problem", "it", "is not liked", "Give another.")

    case = CASES["adamw"]
    paged = train(case, 5, int(0.6 * peak_bytes(case)), planner=refuses)
    assert paged.pager is not None and paged.pager.refused is not None
    assert "is not liked" in paged.pager.refused
    assert paged.equals(trained_plainly(case, 5))


@pytest.mark.slow
def test_dead_storages_are_forgotten_without_a_copy() -> None:
    memory = PagedMemory(10_000, HostCopies(), small_bytes=1)
    first, second = torch.ones(1000), torch.ones(1000)
    for tensor in (first, second):
        memory.add(tensor.untyped_storage())
    page = memory.page(first.untyped_storage())
    assert page is not None
    memory.evict(page)
    assert (memory.used_bytes, memory.counts.stored_bytes) == (4000, 4000)
    del first, second, tensor
    gc.collect()
    assert (memory.used_bytes, memory.pages(), page.host) == (0, [], None)
    assert memory.counts.stored_bytes == 4000


def test_a_copy_in_the_host_is_good_until_the_page_is_written() -> None:
    memory = PagedMemory(10_000, HostCopies(), small_bytes=1)
    tensor = torch.ones(1000)
    page = memory.add(tensor.untyped_storage())
    for write, stored in ((False, 4000), (False, 4000), (True, 8000)):
        if write:
            memory.will_be_written(page)
            tensor.fill_(2.0)
        memory.evict(page)
        empty = tensor.untyped_storage().nbytes() == 0
        assert empty
        memory.load(page)
        assert memory.counts.stored_bytes == stored
    assert torch.equal(tensor, torch.full((1000,), 2.0))


def paged_model(debug: bool = False) -> tuple[nn.Module, Pager]:
    model = Mixer()
    size = sum(p.untyped_storage().nbytes() for p in model.parameters())
    return model, Pager(model, budget_bytes=size // 2, small_bytes=SMALL, debug=debug)


def test_raw_access_brings_the_memory_back_and_keeps_it() -> None:
    model, pager = paged_model()
    weight = model.wide[0].weight  # type: ignore[index, union-attr]
    expected = weight.detach().clone().numpy()
    sizes = []
    with pager:
        sizes.append(weight.untyped_storage().nbytes())
        array = weight.detach().numpy()
        sizes.append(weight.untyped_storage().nbytes())
        for other in model.parameters():
            other.sum()
        sizes.append(weight.untyped_storage().nbytes())
        assert (array == expected).all()
    assert sizes == [0, expected.nbytes, expected.nbytes]


def test_copies_of_modules_are_whole() -> None:
    model, pager = paged_model()
    before = [p.detach().clone() for p in model.parameters()]
    with pager:
        twin = copy.deepcopy(model.wide)
    assert all(torch.equal(p, q) for p, q in zip(twin.parameters(), model.wide.parameters(), strict=True))  # type: ignore[union-attr]
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


def test_debug_mode_refuses_raw_access() -> None:
    model, pager = paged_model(debug=True)
    with pager, pytest.raises(InputError, match=r"goes past the dispatcher.*Tensor\.data_ptr"):
        model.table.weight.data_ptr()  # type: ignore[union-attr, operator]


def test_a_paged_model_is_saved_while_the_pager_pauses() -> None:
    model, pager = paged_model()
    with pager:
        with pytest.raises(InputError, match="paused"):
            torch.save(model.state_dict(), io.BytesIO())
        written = io.BytesIO()
        with pager.paused():
            torch.save(model.state_dict(), written)
        assert pager.used_bytes <= pager.budget_bytes
    written.seek(0)
    loaded = torch.load(written)
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())


def test_what_is_on_the_device_is_saved_though_the_rest_is_not() -> None:
    model, pager = paged_model()
    weight, written = model.wide[0].weight, io.BytesIO()  # type: ignore[index, union-attr]
    with pager:
        weight.sum()
        torch.save({"weight": weight, "step": 3}, written)
        assert any(p.untyped_storage().nbytes() == 0 for p in model.parameters())
    written.seek(0)
    assert torch.equal(torch.load(written)["weight"], weight)


def test_a_module_is_not_saved_while_parts_of_it_are_away() -> None:
    model, pager = paged_model()
    with pager, pytest.raises(InputError, match="memory is elsewhere"):
        torch.save({"whole": model}, io.BytesIO())


def test_what_the_device_has_no_room_for_stays_in_host_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES["adamw"]
    plain = train(case, 3)
    model, optimizer = case.made()
    load, loads = PagedMemory.load, []

    def load_a_few(memory: PagedMemory, page: Page, **options: bool) -> None:
        loads.append(page)
        if len(loads) > 5:
            raise torch.OutOfMemoryError
        load(memory, page, **options)

    with Pager(model, optimizer, budget_bytes=int(0.5 * peak_bytes(case)), small_bytes=SMALL):
        for n in range(3):
            case.step(model, optimizer, n)
        monkeypatch.setattr(PagedMemory, "load", load_a_few)
    assert "are in host memory now" in caplog.text
    held = [*model.parameters(), *model.buffers(), *(v for s in optimizer.state.values() for v in s.values())]
    assert all(torch.equal(one, other) for one, other in zip(held, plain.state, strict=True))
