"""The checker of collective schedules: right ones pass, and each way to be wrong is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.checker import check, check_plan
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.lowering import Message, messages_of
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Send
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.message_replay import replay, replay_messages
from tests.models.collective.schedules import random_schedule, ring_allgather
from tests.models.collective.stepwise_checker import holds
from tests.models.collective.tiny import EVEN, problem, ring, switched


def instance(collective: Collective, *, ranks: int = 3, size_bytes: int = 300, form: Any = "direct") -> Instance:
    """On a ring of wires of 100 ns and 1 byte/ns: chunks of 100 bytes take 200 ns."""
    return instance_of(problem(ring(ranks), collective, size_bytes, root=0), size_bytes, 1, form)


def refused(found: Instance, sends: list[Send], *words: str) -> None:
    verdict = check(found, sends)
    assert not verdict.ok
    for word in words:
        assert any(word in text for text in verdict.violations), verdict.violations


# Rank 0's chunk both ways round a ring of three, then the others': by hand.
ALLGATHER = [Send(0, a, b, (a,)) for a in range(3) for b in range(3) if a != b]
# Parts of ranks 1 and 2 to rank 0, then the sum back.
REDUCE = [Send(0, 1, 0, (0,), True), Send(0, 2, 0, (0,), True)]
SUM_BACK = [Send(200, 0, 1, (0,)), Send(200, 0, 2, (0,))]
ONE_SUM = Instance(ring(3), (Chunk(100, (0, 1, 2), (0, 1, 2), reduces=True),))


def test_an_allgather_by_hand() -> None:
    verdict = check(instance("allgather"), ALLGATHER)
    assert verdict.violations == ()
    assert verdict.ok
    assert verdict.time_ns == 200
    assert verdict.arrivals[0, 0] == 0
    assert verdict.arrivals[0, 2] == 200
    assert [(j.send.source, j.send.target, j.busy_until_ns, j.arrives_ns) for j in verdict.by_link[0]] == [
        (0, 1, 200, 200)
    ]
    assert sum(len(held) for held in verdict.by_resource.values()) == 6


def test_a_sum_by_hand() -> None:
    verdict = check(ONE_SUM, REDUCE + SUM_BACK)
    assert verdict.violations == ()
    assert verdict.time_ns == 400
    assert verdict.arrivals == {(0, 0): 200, (0, 1): 400, (0, 2): 400}


def test_latency_is_after_the_occupancy() -> None:
    """Two chunks of 100 bytes back to back over a wire of 30 ns latency, then both at once."""
    found = instance_of(problem(ring(2, latency_ns=30), "broadcast", 200, root=0), 200, 2)
    apart = check(found, [Send(0, 0, 1, (0,)), Send(200, 0, 1, (1,))])
    assert (apart.ok, apart.time_ns) == (True, 430)
    together = check(found, [Send(0, 0, 1, (0, 1))])
    assert (together.ok, together.time_ns) == (True, 330)


@pytest.mark.parametrize(
    ("sends", "words"),
    [
        (ALLGATHER[1:], "rank 1 ends without chunk 0"),
        ([Send(0, 0, 1, (5,)), *ALLGATHER[1:]], "of 3 that exist"),
        ([Send(0, 0, 1, ()), *ALLGATHER[1:]], "of 3 that exist"),
        ([Send(-1, 0, 1, (0,)), *ALLGATHER[1:]], "starts before the collective does"),
        ([Send(0, 0, 7, (0,)), *ALLGATHER[1:]], "there is no such link"),
        ([*ALLGATHER, Send(0, 1, 1, (1,))], "there is no such link"),
        ([*ALLGATHER, Send(300, 0, 1, (0, 0))], "they must ascend"),
        ([*ALLGATHER, Send(300, 0, 1, (2, 0))], "they must ascend"),
        ([*ALLGATHER, Send(199, 0, 1, (0,))], "wire 0->1 is held until 200 ns"),
        ([Send(0, 2, 1, (0,))], "which its source does not hold"),
        ([*ALLGATHER[1:], Send(199, 2, 1, (0,))], "which is there at 200 ns"),
        ([Send(0, 0, 1, (0,), True), *ALLGATHER[1:]], "which is no sum"),
    ],
)
def test_wrong_copies(sends: list[Send], words: str) -> None:
    refused(instance("allgather"), sends, words)


@pytest.mark.parametrize(
    ("sends", "words"),
    [
        (REDUCE, "rank 1 ends with chunk 0 without the parts of ranks [0, 2]"),
        ([*REDUCE[:1], *SUM_BACK], "in which the parts of ranks [2] are missing"),
        ([*REDUCE, Send(199, 0, 1, (0,)), SUM_BACK[1]], "which is there at 200 ns"),
        # Rank 1's part on its way twice.
        ([*REDUCE, Send(0, 1, 2, (0,), True), *SUM_BACK], "that was sent before"),
        # 1 to 2 and on to 0, which has 1's part already.
        ([Send(0, 1, 0, (0,)), *REDUCE, *SUM_BACK], "in which the parts of ranks [0, 2] are missing"),
        # 2's part leaves before 1's, which is on its way to it, is in.
        ([Send(0, 1, 2, (0,), True), Send(100, 2, 0, (0,), True), Send(300, 0, 1, (0,))], "complete at 200 ns"),
        # 2's part has left when 1's comes.
        ([Send(0, 2, 0, (0,), True), Send(9, 1, 2, (0,), True), *SUM_BACK], "adds to a part of chunk 0 that was sent"),
        # Adding the whole to ranks that have it.
        ([*REDUCE, *SUM_BACK, Send(400, 0, 1, (0,), True)], "to a sum that has them"),
    ],
)
def test_wrong_sums(sends: list[Send], words: str) -> None:
    refused(ONE_SUM, sends, words)


def test_a_chunk_that_arrives_twice_is_there_from_the_first_time() -> None:
    """Straight over a slow wire, and around over two fast ones: whichever is sent first, the first arrival counts."""
    costs = ((0, 1, 500), (0, 2, 0), (2, 1, 0), (1, 3, 0))
    links = tuple(Link(a, b, latency_ns, 100, 1.0, (k,)) for k, (a, b, latency_ns) in enumerate(costs))
    found = Instance(Topology("ways", (0,) * 4, links, tuple("abcd")), (Chunk(100, (0,), (1, 2, 3)),))
    around = [Send(0, 0, 2, (0,)), Send(200, 2, 1, (0,))]
    for straight_ns in (0, 150, 300):
        sends = [Send(straight_ns, 0, 1, (0,)), *around, Send(400, 1, 3, (0,))]
        verdict = check(found, sorted(sends, key=lambda s: (s.start_ns, s.source)))
        assert (verdict.ok, verdict.time_ns) == (True, 600)
        assert verdict.arrivals[0, 1] == 400
    refused(found, [Send(0, 0, 1, (0,)), *around, Send(399, 1, 3, (0,))], "which is there at 400 ns")


def test_adding_to_a_copy() -> None:
    """Rank 1 has no part; it got a copy of the whole, and then the whole on top of it."""
    found = Instance(ring(3), (Chunk(100, (0, 2), (1,), reduces=True),))
    sends = [Send(0, 2, 0, (0,), True), Send(200, 0, 1, (0,))]
    assert check(found, sends).ok
    refused(found, [*sends, Send(400, 0, 1, (0,), True)], "which its target holds whole")
    refused(found, [Send(0, 1, 0, (0,), True), *sends], "of which its source holds no part")


def test_copying_over_a_part() -> None:
    """A second sum, of other ranks' making, over a part that was never sent on."""
    refused(ONE_SUM, [Send(0, 1, 0, (0,), True), Send(200, 0, 2, (0,))], "over a part that was not sent on")


def test_links_that_a_sketch_forbids() -> None:
    """Only rank 0 sends the chunk of rank 1 to the other node."""
    topology = switched(2, 2)
    chunk = Chunk(64, (1,), (3,), senders=frozenset({0}))
    found = Instance(topology, (chunk,))
    refused(found, [Send(0, 1, 3, (0,))], "may not use this link")
    assert check(found, [Send(0, 1, 0, (0,)), Send(1000, 0, 2, (0,)), Send(5000, 2, 3, (0,))]).ok


def test_ports_are_shared_by_links() -> None:
    """Through a switch a rank sends to one other at a time."""
    found = instance_of(problem(switched(1, 3), "broadcast", 800, root=0), 800, 1)
    refused(found, [Send(0, 0, 1, (0,)), Send(0, 0, 2, (0,))], "egress 0 is held until 200 ns")
    assert check(found, [Send(0, 0, 1, (0,)), Send(200, 0, 2, (0,))]).time_ns == 400


def test_chunks_of_no_bytes_need_not_travel() -> None:
    """An AllToAllV in which rank 0 has nothing for rank 1."""
    pairs = ((0, 0, 5), (1, 0, 2), (3, 4, 0))
    found = instance_of(problem(ring(3), "alltoallv", 15, pair_bytes=pairs), 15, 1)
    sends = [Send(0, s, d, (3 * s + d,)) for s in range(3) for d in range(3) if pairs[s][d]]
    assert check(found, sends).ok
    assert check(found, [*sends, Send(200, 0, 1, (1,))]).ok
    assert replay(found, [*sends, Send(200, 0, 1, (1,))]) == ()
    refused(found, sends[:-1], "rank 1 ends without chunk 7")


def test_instant_links_keep_the_order_of_plans() -> None:
    """A link that takes no time: what arrives at a moment leaves at it, if the order of plans says so."""
    links = (Link(0, 1, 0, 0, 1e9, (0,)), Link(1, 2, 0, 0, 1e9, (1,)))
    onwards = Topology("line", (0, 0, 0), links, ("a", "b"))
    assert check(Instance(onwards, (Chunk(1, (0,), (2,)),)), [Send(0, 0, 1, (0,)), Send(0, 1, 2, (0,))]).ok
    links = (Link(2, 1, 0, 0, 1e9, (0,)), Link(1, 0, 0, 0, 1e9, (1,)))
    backwards = Topology("line", (0, 0, 0), links, ("a", "b"))
    refused(Instance(backwards, (Chunk(1, (2,), (0,)),)), [Send(0, 2, 1, (0,)), Send(0, 1, 0, (0,))], "does not hold")


@settings(max_examples=60, deadline=None)
@given(
    collective=st.sampled_from(EVEN),
    shape=st.sampled_from(["ring", "switched"]),
    seed=st.integers(0, 10**6),
)
def test_random_schedules_pass_and_each_of_their_sends_is_needed(collective: Collective, shape: str, seed: int) -> None:
    topology = ring(4) if shape == "ring" else switched(2, 2)
    found = instance_of(problem(topology, collective, 240, root=1), 240, 2)
    sends = random_schedule(found, seed)
    verdict = check(found, sends)
    assert verdict.violations == ()
    assert verdict.time_ns == max(j.arrives_ns for j in verdict.journeys)
    assert replay(found, sends, seeds=[seed, seed + 1]) == ()
    # Trees waste nothing: without any one send, or with it earlier or twice, something is wrong.
    index = seed % len(sends)
    chosen, others = sends[index], [*sends[:index], *sends[index + 1 :]]
    assert not check(found, others).ok
    assert replay(found, others, seeds=[seed])
    assert not check(found, [*sends, chosen]).ok
    if chosen.start_ns:
        assert not check(found, [*others, replace(chosen, start_ns=chosen.start_ns - 1)]).ok


@st.composite
def bent(draw: st.DrawFn) -> tuple[Instance, list[Send]]:
    """A random right schedule on a small topology, and what a few careless changes make of it."""
    collective = draw(st.sampled_from(EVEN))
    quick = {"message_ns": 2, "latency_ns": draw(st.integers(0, 2))}
    topology = draw(st.sampled_from([ring(3, **quick), switched(1, 3, **quick, gbps=1.0)]))
    found = instance_of(problem(topology, collective, 3, root=1), 3, 1)
    sends = list(random_schedule(found, draw(st.integers(0, 10**6))))
    for _ in range(draw(st.integers(0, 2))):
        index = draw(st.integers(0, len(sends) - 1))
        send, rank = sends[index], st.integers(0, 2)
        change = draw(st.sampled_from(["later", "all later", "earlier", "drop", "twice", "target", "source", "flip"]))
        shift = draw(st.integers(1, 12))
        if change == "drop":
            del sends[index]
        elif change == "all later":
            sends = [s if s.start_ns < send.start_ns else replace(s, start_ns=s.start_ns + shift) for s in sends]
        elif change == "twice":
            sends.append(replace(send, start_ns=send.start_ns + shift))
        else:
            sends[index] = {
                "later": replace(send, start_ns=send.start_ns + shift),
                "earlier": replace(send, start_ns=max(0, send.start_ns - shift)),
                "target": replace(send, target=draw(rank)),
                "source": replace(send, source=draw(rank)),
                "flip": replace(send, combines=not send.combines),
            }[change]
        if not sends:
            break
    return found, sends


@settings(max_examples=400, deadline=None)
@given(bent())
def test_a_stepwise_checker_agrees(given: tuple[Instance, list[Send]]) -> None:
    found, sends = given
    verdict = check(found, sends)
    assert verdict.ok == holds(found, sends), verdict.violations
    if verdict.ok:
        assert replay(found, sends, seeds=[1]) == ()


def test_replay_sees_what_the_checker_sees() -> None:
    """Wrong sums are wrong in numbers too."""
    assert replay(ONE_SUM, REDUCE + SUM_BACK) == ()
    twice = replay(ONE_SUM, [*REDUCE, Send(0, 1, 2, (0,), True), *SUM_BACK], seeds=[0])
    assert any("wrong chunk" in text for text in twice)
    assert any("does not hold" in text for text in replay(instance("allgather"), [Send(0, 2, 1, (0,))], seeds=[0]))


def test_replay_finds_what_never_ends() -> None:
    """Two messages between the same ranks, the first of which waits for the second's consequence."""
    found = instance("broadcast", ranks=2, size_bytes=200)
    circle = (Message(0, 0, 1, (0,), False, (1,), 0), Message(1, 0, 1, (0,), False, (), 0))
    assert any("2 messages never arrive" in text for text in replay_messages(found, circle, seeds=[0]))


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "reduce"])
def test_replay_needs_the_waits(collective: Collective) -> None:
    """Messages that wait for nothing carry what is not there yet, or not all of it."""
    found = instance_of(problem(switched(2, 2), collective, 240, root=1), 240, 2)
    messages = messages_of(random_schedule(found, 3))
    assert replay_messages(found, messages, seeds=range(20)) == ()
    assert replay_messages(found, [replace(m, waits_for=()) for m in messages], seeds=range(20))


def test_replay_finds_races() -> None:
    """1's part comes to 2 while 2's is on its way: in some order it changes meanwhile."""
    sends = [Send(0, 1, 2, (0,), True), Send(10, 2, 0, (0,), True), Send(300, 0, 1, (0,)), Send(300, 0, 2, (0,))]
    assert replay(ONE_SUM, sends) == ()  # as messages, the second waits for the first
    late = [Send(0, 2, 0, (0,), True), Send(10, 1, 2, (0,), True), Send(300, 0, 1, (0,)), Send(300, 0, 2, (0,))]
    assert replay(ONE_SUM, late, seeds=range(20))


def a_plan(asked: CollectiveProblem, **changes: Any) -> CollectivePlan:
    """A right plan of an AllGather of 300 bytes on a ring of three."""
    values: dict[str, Any] = {
        "name": asked.name,
        "problem_sha256": asked.sha256,
        "status": "optimal",
        "objective": 0.2,
        "bound": 0.2,
        "gap": 0.0,
        "unit": "us",
        "method": "hand",
        "stopped_by": "gap",
        "seconds": {},
        "solver": {},
        "check": {},
        "algorithms": (Algorithm(300, 1, "direct", tuple(ALLGATHER), 200, 200, "dilation", 150),),
    }
    return CollectivePlan(**{**values, **changes})


ASKED = problem(ring(3), "allgather", 300)


def test_a_plan_passes_with_its_summary() -> None:
    verdict = check_plan(ASKED, a_plan(ASKED))
    assert verdict.violations == ()
    assert verdict.summary() == {"ok": True, "algorithms": 1, "sends": 6, "times_ns": [200]}


ALGORITHM = a_plan(ASKED).algorithms[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_ns": 199}, "is said to take 199 ns, but takes 200"),
        ({"bound_ns": 201}, "its bound_ns of 201 is above its time of 200 ns"),
        ({"throughput_bound_ns": 201}, "its throughput_bound_ns of 201 is above"),
        ({"chunk_count": 7}, "does not divide 300 bytes"),
        ({"form": "gather"}, "is no form of allgather"),
        ({"sends": tuple(ALLGATHER[1:])}, "rank 1 ends without chunk 0"),
        ({"size_bytes": 600}, "no algorithm is for 300 bytes"),
        ({"from_bytes": 301}, "from_bytes do not ascend"),
    ],
)
def test_wrong_algorithms(changes: dict[str, Any], words: str) -> None:
    verdict = check_plan(ASKED, a_plan(ASKED, algorithms=(replace(ALGORITHM, **changes),)))
    assert not verdict.ok
    assert any(words in text for text in verdict.violations), verdict.violations


def test_wrong_tables() -> None:
    twice = check_plan(ASKED, a_plan(ASKED, algorithms=(ALGORITHM, ALGORITHM)))
    assert any("sizes do not ascend" in text for text in twice.violations)


def test_plans_that_cannot_be_checked() -> None:
    with pytest.raises(InputError, match="another problem's"):
        check_plan(problem(ring(3), "allgather", 600), a_plan(ASKED))
    with pytest.raises(InputError, match="holds no algorithm"):
        check_plan(ASKED, a_plan(ASKED, algorithms=(), status="infeasible"))


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_form_gather_is_checked_as_what_it_moves(collective: Collective) -> None:
    asked = problem(ring(3), collective, 300, root=0)
    found = instance_of(asked, 300, 1, "gather")
    assert not found.combines
    sends = random_schedule(found, 1)
    time_ns = check(found, sends).time_ns
    algorithm = Algorithm(300, 1, "gather", sends, time_ns, 0, "none", 0)
    plan = a_plan(asked, problem_sha256=asked.sha256, algorithms=(algorithm,), objective=time_ns / 1e3)
    assert check_plan(asked, plan).violations == ()


def test_rings_of_many_ranks() -> None:
    found = instance_of(problem(ring(32), "allgather", 3200), 3200, 1)
    verdict = check(found, ring_allgather(found))
    assert verdict.violations == ()
    assert verdict.time_ns == 31 * 200
