"""What a recorded step says of real and fake tensors alike: storages, splits, micro-batches, partial writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from loadmaster.errors import InputError
from loadmaster.executor.placement.capture import capture, fake_step, record, run
from loadmaster.executor.placement.operands import joined, parts_of
from loadmaster.executor.placement.recorder import (
    Notes,
    Recorder,
    Recording,
    name_gradients,
    name_resident,
    name_state,
    passes,
    update,
)
from loadmaster.executor.placement.trace import Cost, trace_of
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.places import CallPlaces, Place
from loadmaster.executor.steps.step import Step
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import PlacementProblem, Tier

BATCH = Batch((torch.randn(32, 64), torch.randn(32, 64)))
TIERS = (Tier("host", 50.0, 50.0),)


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


class Odd(nn.Module):
    """Slices written into an empty tensor, statistics, shared storages, a result in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.register_buffer("table", torch.ones(64, 64))
        self.register_buffer("row", self.table[3])

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).relu_()
        halves = torch.empty_like(hidden)
        halves[:, :32] = hidden[:, 32:]
        halves[:, 32:] = hidden[:, :32]
        return self.second(halves @ self.table * self.row)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, foreach=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), foreach=True),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), fused=True),
}


def made(kind: str) -> tuple[Step, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Odd()
    return Step(model, mean_square, expects_loss=True), OPTIMIZERS[kind](model)


def really_recorded(kind: str, steps: int = 2, micro_batches: int = 1) -> list[Recording]:
    """Steps of real tensors, each with a recorder of its own."""
    step, optimizer = made(kind)
    found = []
    for _ in range(steps):
        places = CallPlaces(step)
        notes = Notes(lambda tensor: True, places.here, with_calls=True)
        name_resident(notes, step.model, BATCH)
        with Recorder(notes), places.followed():
            passes(step, BATCH, optimizer, micro_batches)
            name_gradients(notes, step.model)
            places.otherwise = Place("optimizer")
            update(optimizer)
        name_state(notes, step.model, optimizer)
        found.append(notes.recording)
    return found


def problem_of(recording: Recording) -> PlacementProblem:
    return trace_of(recording, [Cost(1.0)] * len(recording.operators), TIERS, "odd", small_bytes=1).problem


def uses(problem: PlacementProblem) -> list[object]:
    return [
        (o.op, [(problem.blocks[b].name, problem.blocks[b].size_bytes) for b in o.blocks]) for o in problem.operators
    ]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_second_step_is_the_third(kind: str) -> None:
    _, second, third = map(problem_of, really_recorded(kind, steps=3))
    assert uses(second) == uses(third)
    assert second == third


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fake_and_real_tensors_give_the_same_trace(kind: str) -> None:
    real = problem_of(really_recorded(kind)[-1])
    step, optimizer = made(kind)
    with fake_step(step.model, BATCH, mean_square, optimizer) as fake:
        run(fake)
        traced = problem_of(record(fake))
    assert uses(traced) == uses(real)
    assert [(o.op, o.reads, o.writes) for o in traced.operators] == [(o.op, o.reads, o.writes) for o in real.operators]


class Lives(TorchDispatchMode):
    """Every storage that operators touch, from its first use until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[weakref.ref[torch.UntypedStorage]] = []
        self.sizes: list[int] = []
        self.spans: list[list[int]] = []
        self.count = 0

    def born(self, storage: torch.UntypedStorage) -> None:
        span = [self.count, -1]

        def freed(_: object) -> None:
            span[1] = self.count - 1

        self.storages.append(weakref.ref(storage, freed))
        self.sizes.append(storage.nbytes())
        self.spans.append(span)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        parts = parts_of(func, args, kwargs or {})
        if parts:
            return joined([self.__torch_dispatch__(func, types, *part) for part in parts])
        out = func(*args, **(kwargs or {}))
        shape_only = "_like" in str(func) or "new_" in str(func)
        touched = [t for t in torch.utils._pytree.tree_leaves(((), {}, out) if shape_only else (args, kwargs, out))]
        tensors = [t for t in touched if isinstance(t, Tensor) and t.untyped_storage().nbytes() > 16]
        given = {
            id(t.untyped_storage()) for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        made = {id(t.untyped_storage()) for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, Tensor)}
        changes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
        if func.namespace == "prim" or not tensors or (not changes and made and made <= given):
            return out
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if all(one() is not storage for one in self.storages):
                self.born(storage)
        self.count += 1
        return out


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_lives_is_what_a_recount_of_storages_finds(kind: str) -> None:
    step, optimizer = made(kind)
    passes(step, BATCH, optimizer)
    update(optimizer)
    lasting = [*step.parameters(), *step.buffers(), *BATCH.args]
    lasting += [v for state in optimizer.state.values() for v in state.values() if v.numel() > 4]
    optimizer.zero_grad()
    lives = Lives()
    with lives:
        passes(step, BATCH, optimizer)
        update(optimizer)
    always = [t.untyped_storage() for t in lasting]
    recount = [0] * lives.count
    for storage, size, (first, last) in zip(lives.storages, lives.sizes, lives.spans, strict=True):
        whole = any(storage() is one for one in always)
        for n in range(0 if whole else first, lives.count if last < 0 else last + 1):
            recount[n] += size
    assert Accesses(problem_of(really_recorded(kind)[-1])).live_bytes.tolist() == recount


def test_what_a_variable_still_names_is_counted_though_nobody_reads_it() -> None:
    notes = Notes(lambda tensor: True)
    with Recorder(notes):
        kept = torch.ones(1000)
        twice = kept * 2.0
        total = twice.sum()
        del kept
        total = total + twice.sum()
    problem = problem_of(notes.recording)
    # ones | mul: ones and twice | sum: ones is still held | sum: ones is gone
    assert [n // 4000 for n in Accesses(problem).live_bytes] == [1, 2, 2, 1]


def test_a_dead_storage_and_its_successor_at_the_same_address_are_two() -> None:
    notes = Notes(lambda tensor: True)
    with Recorder(notes):
        for _ in range(3):
            first = torch.ones(1000)
            gone = weakref.ref(first.untyped_storage())
            del first
            assert gone() is None
    assert len(notes.recording.storages) == 3


def test_gradients_of_micro_batches_are_added_up() -> None:
    once, twice = (problem_of(really_recorded("sgd", micro_batches=n)[-1]) for n in (1, 2))
    gradients = [b for b, block in enumerate(twice.blocks) if block.name == "gradient of first.weight"]
    assert len(gradients) == 1
    written = [o for o in twice.operators if gradients[0] in o.writes]
    assert [gradients[0] in o.reads for o in written] == [False, True]
    assert len(twice.operators) > len(once.operators)
    captured = capture(Odd(), BATCH, mean_square, small_bytes=1, micro_batches=2)
    assert sum(o.op == "aten.native_batch_norm.default" for o in captured.operators) == 2


def test_slices_written_into_an_empty_tensor_are_no_read_of_the_step_before() -> None:
    problem = problem_of(really_recorded("sgd")[-1])
    (made_at,) = [n for n, o in enumerate(problem.operators) if o.op.startswith("aten.empty_like") and o.writes]
    (block,) = problem.operators[made_at].writes
    gaps = Accesses(problem).by_block[block]
    assert gaps and all(made_at <= gap.after < gap.before < len(problem.operators) for gap in gaps)


def test_running_statistics_are_written_though_the_schema_does_not_say_so() -> None:
    problem = problem_of(really_recorded("sgd")[-1])
    names = [b.name for b in problem.blocks]
    (norm,) = [o for o in problem.operators if o.op == "aten.native_batch_norm.default"]
    assert {"norm.running_mean", "norm.running_var"} <= {names[b] for b in norm.writes}


def test_views_of_one_buffer_are_one_block() -> None:
    names = [b.name for b in problem_of(really_recorded("sgd")[-1]).blocks]
    assert "table" in names or "row" in names
    assert not {"table", "row"} <= set(names)


def test_backward_operators_have_the_place_of_their_forward() -> None:
    problem = capture(Odd(), BATCH, mean_square, small_bytes=1)
    backward = [o for o in problem.operators if o.op == "aten.native_batch_norm_backward.default"]
    assert [o.module for o in backward] == ["norm"]
    assert backward[0].source is not None
    assert backward[0].source.startswith("test_placement_trace.py:")


def test_a_step_that_asks_for_values_is_named() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) * x.sum().item()

    with pytest.raises(InputError, match=r"asks for a value.*_local_scalar_dense"):
        capture(Asks(), BATCH, mean_square)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_operators_on_lists_do_the_same_in_parts(kind: str) -> None:
    class Splits(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            parts = parts_of(func, args, kwargs or {})
            if parts:
                return joined([func(*a, **k) for a, k in parts])
            return func(*args, **(kwargs or {}))

    found = []
    for split in (False, True):
        step, optimizer = made(kind)
        for _ in range(3):
            optimizer.zero_grad()
            step(*BATCH.args).backward()
            torch.nn.utils.clip_grad_norm_(step.parameters(), 0.1, foreach=True)
            if split:
                with Splits():
                    norm = torch.nn.utils.clip_grad_norm_(step.parameters(), 0.05, foreach=True)
                    optimizer.step()
            else:
                norm = torch.nn.utils.clip_grad_norm_(step.parameters(), 0.05, foreach=True)
                optimizer.step()
        found.append([norm, *(p.detach() for p in step.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_costs_are_measured_where_no_hardware_is_named() -> None:
    problem = capture(Odd(), BATCH, mean_square, small_bytes=1, hardware=None, tiers=TIERS)
    assert problem.compute_us > 0
