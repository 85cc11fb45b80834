"""Tables of fused collectives: right data and no deadlock in any order, on a simulated machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.collective.fused.operations import cut_of, operations_of
from loadmaster.executor.collective.fused.table import Awaited, Protocol, Table, notices_of, table_of
from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.lowering import lower
from loadmaster.models.collective.plan import Algorithm, Form, Send
from loadmaster.models.collective.problem import CollectiveProblem
from tests.executor.collective.simulator import Call, DeadlockError, Machine
from tests.models.collective.tiny import problem, switched

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "reduce", "scatter", "gather")
ROOTED = ("broadcast", "reduce", "scatter", "gather")
PROTOCOLS: tuple[Protocol, ...] = ("simple", "packed")


def case(collective: str, count: int) -> CollectiveProblem:
    more = {"root": count - 1} if collective in ROOTED else {}
    return problem(switched(1, count), collective, 16 * count, **more)  # type: ignore[arg-type]


def algorithm(p: CollectiveProblem, chunks: int, shape: str) -> Algorithm:
    """Sends written out by hand: ``direct`` in one hop (sums in two), ``gather``, or round a ``ring``."""
    count = p.topology.rank_count
    form: Form = "gather" if shape == "gather" else "direct"
    size = 16 * count * chunks
    sends: list[Send] = []
    for index, chunk in enumerate(chunks_of(p, size, chunks, form)):
        if shape == "ring":
            # Through all ranks, from the one behind a target (or the source) on, and round again where a sum spreads.
            end = chunk.targets[index // chunks % len(chunk.targets)] if chunk.reduces else chunk.sources[0]
            start = end
            if chunk.reduces:
                for step in range(count - 1):
                    sends.append(Send(step, (end + 1 + step) % count, (end + 2 + step) % count, (index,), True))
                start = end
            if len(chunk.targets) > 1 or (not chunk.reduces and chunk.targets != chunk.sources):
                last = (
                    count - 1
                    if len(chunk.targets) > 1
                    else next(s for s in range(count) if (start + s) % count == chunk.targets[0])
                )
                for step in range(last):
                    sends.append(Send(count + step, (start + step) % count, (start + step + 1) % count, (index,)))
            continue
        if chunk.reduces:
            owner = chunk.targets[index // chunks % len(chunk.targets)]
            sends += [Send(0, (owner + s) % count, owner, (index,), True) for s in range(1, count)]
            sends += [Send(1, owner, t, (index,)) for t in chunk.targets if t != owner]
        else:
            source = chunk.sources[0]
            sends += [Send(0, source, t, (index,)) for t in chunk.targets if t != source]
    sends.sort(key=lambda s: (s.start_ns, s.source, s.target))
    return Algorithm(size, chunks, form, tuple(sends), 1, 1, "none", 1)


def table(
    p: CollectiveProblem,
    a: Algorithm,
    block_bytes: int,
    protocol: Protocol,
    lanes: int = 2,
    rounds: int = 1,
    widths: tuple[int, int] = (1, 1),
    stride_bytes: int | None = None,
) -> Table:
    operations = operations_of(lower(p, a), cut_of(p, a, block_bytes, stride_bytes))
    return table_of(operations, p.topology.rank_count, protocol, lanes, rounds, widths)


def buffers(p: CollectiveProblem, block: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """Random whole-number inputs, and what ``torch.distributed`` says that outputs are (None: no output)."""
    n, c = p.topology.rank_count, p.collective
    random = np.random.default_rng(seed)
    root = p.root
    words = block // 4
    blocks_in = {"reduce_scatter": n, "alltoall": n}.get(c, 1)
    inputs = []
    for rank in range(n):
        blocks = n if c == "scatter" and rank == root else blocks_in
        given = not (c in ("broadcast", "scatter") and rank != root)
        inputs.append(random.integers(0, 1000, (blocks, words) if given else (0, words)).astype(np.float32))
    if c in ("allreduce", "reduce"):
        total = sum(i[0] for i in inputs)
        return inputs, [total if c == "allreduce" or r == root else None for r in range(n)]
    if c == "reduce_scatter":
        return inputs, [sum(i[r] for i in inputs) for r in range(n)]
    if c in ("allgather", "gather"):
        every = np.stack([i[0] for i in inputs])
        return inputs, [every if c == "allgather" or r == root else None for r in range(n)]
    if c == "alltoall":
        return inputs, [np.stack([i[r] for i in inputs]) for r in range(n)]
    if c == "broadcast":
        return inputs, [inputs[root][0] for _ in range(n)]
    return inputs, [inputs[root][r] for r in range(n)]


def call_of(t: Table, inputs: list[np.ndarray], expected: list[np.ndarray | None]) -> Call:
    raw = [np.ascontiguousarray(i).reshape(-1).view(np.uint8).copy() for i in inputs]
    outputs = [np.full(0 if e is None else e.nbytes, 0xFF, dtype=np.uint8) for e in expected]
    return Call(t, raw, outputs)


def check(call: Call, expected: list[np.ndarray | None]) -> None:
    for output, wanted in zip(call.outputs, expected, strict=True):
        if wanted is not None:
            np.testing.assert_array_equal(output.view(np.float32), wanted.reshape(-1))


def shapes(collective: str) -> tuple[str, ...]:
    more = ("gather",) if collective in ("allreduce", "reduce_scatter", "reduce") else ()
    return ("direct", "ring", *more) if collective not in ("scatter", "gather", "alltoall") else ("direct", "ring")


CASES = [(c, s) for c in COLLECTIVES for s in shapes(c)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("collective", "shape"), CASES)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_data_is_right_in_any_order(collective: str, shape: str, count: int, protocol: Protocol) -> None:
    p = case(collective, count)
    a = algorithm(p, 1 if count == 8 else 2, shape)
    calls, wanted = [], []
    machine = Machine(count, seed=count)
    for number in range(3):
        block = (36, 4, 200)[number] * (1 if count == 8 else 3)
        inputs, expected = buffers(p, block, number)
        rounds = 1 if protocol == "packed" else 1 + number
        calls.append(call_of(table(p, a, block, protocol, 1 + number % 2, rounds, (1, 2)), inputs, expected))
        wanted.append(expected)
    machine.run(calls)
    for call, expected in zip(calls, wanted, strict=True):
        check(call, expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_calls_of_every_kind_follow_one_another(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([2, 3, 4]))
    calls, wanted = [], []
    for number in range(data.draw(st.integers(3, 6))):
        collective, shape = data.draw(st.sampled_from(CASES))
        p = case(collective, count)
        a = algorithm(p, data.draw(st.integers(1, 2)), shape)
        protocol = data.draw(st.sampled_from(PROTOCOLS))
        block = 4 * data.draw(st.integers(1, 60))
        rounds = 1 if protocol == "packed" else data.draw(st.integers(1, 3))
        widths = tuple(data.draw(st.integers(1, 3)) for _ in range(2))
        lanes = data.draw(st.integers(1, 3))
        inputs, expected = buffers(p, block, number)
        calls.append(call_of(table(p, a, block, protocol, lanes, rounds, widths), inputs, expected))  # type: ignore[arg-type]
        wanted.append(expected)
    Machine(count, data.draw(st.integers(0, 1 << 30))).run(calls)
    for call, expected in zip(calls, wanted, strict=True):
        check(call, expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("collective", "shape"), [c for c in CASES if c[0] in ("allreduce", "reduce", "broadcast")])
@pytest.mark.parametrize("seed", range(4))
def test_output_may_be_input(collective: str, shape: str, protocol: Protocol, seed: int) -> None:
    p = case(collective, 4)
    t = table(p, algorithm(p, 2, shape), 520, protocol, 2, 1 if protocol == "packed" else 3, (2, 2))
    inputs, expected = buffers(p, 520, seed)
    call = call_of(t, inputs, expected)
    for rank, raw in enumerate(call.inputs):
        place = raw if raw.size else call.outputs[rank]
        call.inputs[rank] = call.outputs[rank] = place
    Machine(4, seed).run([call])
    check(call, expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_part_of_every_block_can_go_in_a_call_of_its_own(protocol: Protocol) -> None:
    p = case("alltoall", 4)
    a = algorithm(p, 2, "direct")
    inputs, expected = buffers(p, 300, 0)
    whole = call_of(table(p, a, 300, protocol), inputs, expected)
    calls = []
    for begin, end in ((0, 128), (128, 300)):
        t = table(p, a, end - begin, protocol, stride_bytes=300)
        calls.append(Call(t, [i[begin:] for i in whole.inputs], [o[begin:] for o in whole.outputs]))
    Machine(4, 1).run(calls)
    check(whole, expected)


def test_a_dead_rank_is_a_deadlock() -> None:
    p = case("allreduce", 4)
    inputs, expected = buffers(p, 64, 0)
    for protocol in PROTOCOLS:
        call = call_of(table(p, algorithm(p, 1, "direct"), 64, protocol), inputs, expected)
        with pytest.raises(DeadlockError):
            Machine(4, 0).run([call], stalled=2)


def test_one_shot_and_two_steps_add_up_in_one_order() -> None:
    p = case("allreduce", 4)
    random = np.random.default_rng(0)
    inputs = [(random.standard_normal(100) * 10.0 ** random.integers(-6, 6, 100)).astype(np.float32) for _ in range(4)]
    total = inputs[0]
    for one in inputs[1:]:
        total = total + one
    for shape in ("direct", "gather"):
        for protocol in PROTOCOLS:
            call = call_of(table(p, algorithm(p, 1, shape), 400, protocol), inputs, [total] * 4)
            Machine(4, 3).run([call])
            check(call, [total] * 4)


def test_notices_are_there_where_nothing_else_tells() -> None:
    p = case("broadcast", 4)
    operations = operations_of(lower(p, algorithm(p, 1, "direct")), cut_of(p, algorithm(p, 1, "direct"), 64))
    assert notices_of(operations, 4) == {0: (1, 2), 1: (0, 2), 2: (0, 1), 3: (0, 1, 2)}
    p = case("allreduce", 4)
    a = algorithm(p, 1, "direct")
    assert not any(notices_of(operations_of(lower(p, a), cut_of(p, a, 64)), 4).values())


def test_a_failure_names_the_message_and_its_sender() -> None:
    p = case("allreduce", 2)
    # After a copy from one place to another, which in simple programs has a signal, too.
    for protocol, second, operand in (("simple", 2 + 1 + 1 + 1, 0), ("packed", 2 + 1 + 1, 1)):
        t = table(p, algorithm(p, 1, "gather"), 64, protocol)  # type: ignore[arg-type]
        assert "sum of chunk 0, 64 bytes, to the output" in t.describe(0, 0, second)
        assert t.awaited(0, 0, second, operand) == Awaited(1, 1, 1)


def test_what_the_kernel_cannot_hold_is_refused() -> None:
    with pytest.raises(InputError, match="ranks"):
        table_of((), 33, "simple", 1, 1, (1, 1))
    p = case("alltoall", 8)
    a = algorithm(p, 16, "direct")
    with pytest.raises(InputError, match="streams"):
        table(p, a, 4096, "simple", widths=(100, 1))


def test_a_size_not_planned_for_is_cut_at_multiples_of_16() -> None:
    p = case("allreduce", 4)
    cut = cut_of(p, algorithm(p, 1, "direct"), 100)
    assert cut is not None
    assert [(cut.offset_bytes(k), cut.size_bytes(k)) for k in range(4)] == [(0, 32), (32, 32), (64, 32), (96, 4)]
    assert [cut.size_bytes(k) for k in range(4)] == [32, 32, 32, 4]
