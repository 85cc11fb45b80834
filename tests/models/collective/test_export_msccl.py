"""MSCCL XML, read back and run by an interpreter of its own: right data, no deadlock, within the loaders' limits."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.exports import msccl, mscclpp
from loadmaster.models.collective.exports.msccl import msccl_files, msccl_xml
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.kinds import KINDS
from tests.models.collective.buffers_by_hand import UNWRITTEN, after, before
from tests.models.collective.handmade import along_trees, table
from tests.models.collective.tiny import EVEN, problem, ring, switched

ROOTED = ("broadcast", "reduce", "scatter", "gather")


class Machine:
    """Threadblocks that run at once: a step at a time, whichever can, at random.

    ``slots`` is how many sends a connection holds before the sender blocks; 0: until the receiver takes it.
    """

    def __init__(self, text: str, inputs: list[Any], outputs: list[Any], slots: int, seed: int) -> None:
        self.algo, self.slots, self.chance = ET.fromstring(text), slots, random.Random(seed)
        self.memory: list[dict[str, Any]] = []
        self.blocks: dict[tuple[int, int], ET.Element] = {}
        self.at: dict[tuple[int, int], int] = {}
        self.flag: dict[tuple[int, int], int] = defaultdict(lambda: -1)
        self.wires: dict[tuple[int, int, int], deque[Any]] = defaultdict(deque)
        for rank, gpu in enumerate(self.algo):
            assert int(gpu.attrib["id"]) == rank
            scratch = np.full(int(gpu.attrib["s_chunks"]), UNWRITTEN)
            self.memory.append({"i": inputs[rank], "o": outputs[rank], "s": scratch})
            assert len(inputs[rank]) == int(gpu.attrib["i_chunks"])
            assert len(outputs[rank]) == int(gpu.attrib["o_chunks"])
            for number, block in enumerate(gpu):
                assert int(block.attrib["id"]) == number
                self.blocks[rank, number], self.at[rank, number] = block, 0

    def run(self) -> None:
        waiting = [key for key in self.blocks if len(self.blocks[key])]
        while waiting:
            self.chance.shuffle(waiting)
            moved = next((key for key in waiting if self.step(key)), None)
            assert moved is not None, f"deadlock: {[(k, self.now(k).attrib) for k in waiting]}"
            waiting = [key for key in waiting if self.at[key] < len(self.blocks[key])]
        assert not any(self.wires.values())

    def now(self, key: tuple[int, int]) -> ET.Element:
        return self.blocks[key][self.at[key]]

    def ready(self, key: tuple[int, int]) -> bool:
        step = self.now(key)
        wanted, at = int(step.attrib["depid"]), int(step.attrib["deps"])
        return wanted < 0 or self.flag[key[0], wanted] >= at

    def step(self, key: tuple[int, int]) -> bool:
        """Whether the block could go on."""
        step, block = self.now(key), self.blocks[key]
        assert int(step.attrib["s"]) == self.at[key]
        if not self.ready(key):
            return False
        rank, channel, kind = key[0], int(block.attrib["chan"]), step.attrib["type"]
        if kind == "s":
            wire = self.wires[rank, int(block.attrib["send"]), channel]
            if len(wire) >= self.slots and not (not wire and self.taker(key, int(block.attrib["send"]), channel)):
                return False
            wire.append(self.read(rank, step, "src").copy())
            if self.slots == 0:
                taker = self.taker(key, int(block.attrib["send"]), channel)
                assert taker is not None
                self.done(key)
                return self.step(taker)
        elif kind in ("r", "rrc"):
            wire = self.wires[int(block.attrib["recv"]), rank, channel]
            if not wire:
                return False
            data = wire.popleft()
            assert len(data) == int(step.attrib["cnt"])
            if kind == "rrc":
                data = data + self.read(rank, step, "src")
            self.write(rank, step, data)
        elif kind == "cpy":
            self.write(rank, step, self.read(rank, step, "src").copy())
        elif kind == "re":
            self.write(rank, step, self.read(rank, step, "dst") + self.read(rank, step, "src"))
        else:
            assert kind == "nop"
        self.done(key)
        return True

    def taker(self, key: tuple[int, int], peer: int, channel: int) -> tuple[int, int] | None:
        """The block that would receive a send at once, if it stands at the receive."""
        mine = [
            k
            for k, b in self.blocks.items()
            if k[0] == peer and int(b.attrib["recv"]) == key[0] and int(b.attrib["chan"]) == channel
        ]
        assert len(mine) == 1, "a connection belongs to one threadblock"
        stands = self.at[mine[0]] < len(self.blocks[mine[0]]) and self.ready(mine[0])
        return mine[0] if stands and self.now(mine[0]).attrib["type"] in ("r", "rrc") else None

    def done(self, key: tuple[int, int]) -> None:
        if self.now(key).attrib["hasdep"] == "1":
            self.flag[key] = self.at[key]
        self.at[key] += 1

    def span(self, rank: int, step: ET.Element, end: str) -> tuple[Any, slice]:
        first, count = int(step.attrib[f"{end}off"]), int(step.attrib["cnt"])
        buffer = self.memory[rank][step.attrib[f"{end}buf"]]
        assert first >= 0 and first + count <= len(buffer)
        return buffer, slice(first, first + count)

    def read(self, rank: int, step: ET.Element, end: str) -> Any:
        buffer, where = self.span(rank, step, end)
        assert (buffer[where] > UNWRITTEN // 2).all(), "read before it was written"
        return buffer[where]

    def write(self, rank: int, step: ET.Element, data: Any) -> None:
        buffer, where = self.span(rank, step, "dst")
        buffer[where] = data


def one(collective: Collective, topology: Any, size_bytes: int, chunk_count: int = 1) -> CollectiveProblem:
    more = {"root": topology.rank_count - 1} if collective in ROOTED else {}
    return problem(topology, collective, size_bytes, chunk_counts=(chunk_count,), **more)


def play(text: str, given: CollectiveProblem, slots: int, seed: int, in_place: bool = False) -> None:
    """Run and compare with what the collective means."""
    n, root = given.topology.rank_count, given.root or 0
    algo = ET.fromstring(text)
    units = max(int(g.attrib["i_chunks"]) for g in algo)
    if given.collective in ("reduce_scatter", "allreduce", "alltoall", "scatter"):
        units //= n
    inputs = before(given, units, seed)
    wanted = after(given, inputs, units)
    outputs = [np.full(len(w), UNWRITTEN) for w in wanted]
    inputs = [i.copy() for i in inputs]
    if in_place:
        for r in range(n):
            match given.collective:
                case "allreduce" | "reduce" | "broadcast" if len(inputs[r]) and len(outputs[r]):
                    outputs[r] = inputs[r]
                case "allgather":
                    outputs[r][r * units : (r + 1) * units] = inputs[r]
                    inputs[r] = outputs[r][r * units : (r + 1) * units]
                case "reduce_scatter":
                    outputs[r] = inputs[r][r * units : (r + 1) * units]
                case "gather" if r == root:
                    outputs[r][r * units : (r + 1) * units] = inputs[r]
                    inputs[r] = outputs[r][r * units : (r + 1) * units]
                case "scatter" if r == root:
                    outputs[r] = inputs[r][r * units : (r + 1) * units]
    Machine(text, inputs, outputs, slots, seed).run()
    for rank in range(n):
        assert (outputs[rank] == wanted[rank]).all(), f"rank {rank}"


@settings(max_examples=60, deadline=None)
@given(
    collective=st.sampled_from(EVEN),
    topology=st.sampled_from([ring(2), ring(5), switched(1, 4), switched(2, 2), switched(2, 3)]),
    chunk_count=st.integers(1, 3),
    instances=st.sampled_from([1, 2]),
    slots=st.sampled_from([0, 1, 8]),
    seed=st.integers(0, 1 << 20),
)
def test_it_does_what_the_collective_means(
    collective: Collective, topology: Any, chunk_count: int, instances: int, slots: int, seed: int
) -> None:
    size = topology.rank_count * chunk_count * 16
    given = one(collective, topology, size, chunk_count)
    text = msccl_xml(given, along_trees(given, size, chunk_count, seed=seed), instances=instances)
    play(text, given, slots, seed)
    if ET.fromstring(text).attrib["inplace"] == "1":
        play(text, given, slots, seed, in_place=True)


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "reduce"])
@pytest.mark.parametrize("chunk_count", [1, 2])
def test_gathering_and_adding_up(collective: Collective, chunk_count: int) -> None:
    topology = ring(3)
    given = one(collective, topology, 96 * chunk_count, chunk_count)
    text = msccl_xml(given, along_trees(given, 96 * chunk_count, chunk_count, "gather"), instances=2)
    assert ET.fromstring(text).attrib["inplace"] == "0"
    n, pieces = 3, 3 if collective == "reduce_scatter" else 1
    inputs = [np.random.default_rng(r).integers(1, 99, pieces * chunk_count * 2) for r in range(n)]
    total = np.sum(inputs, axis=0)
    unit = chunk_count * 2
    for slots in (0, 4):
        wanted = {
            "allreduce": [total] * n,
            "reduce": [total if r == given.root else total[:0] for r in range(n)],
            "reduce_scatter": [total[r * unit : (r + 1) * unit] for r in range(n)],
        }[collective]
        outputs = [np.full(len(w), UNWRITTEN) for w in wanted]
        Machine(text, [i.copy() for i in inputs], outputs, slots, 1).run()
        assert all((o == w).all() for o, w in zip(outputs, wanted, strict=True))


def test_long_links_are_dealt_out_over_channels() -> None:
    given = one("alltoall", ring(6), 6 * 40 * 4, 40)
    text = msccl_xml(given, along_trees(given, 6 * 40 * 4, 40))
    algo = ET.fromstring(text)
    assert int(algo.attrib["nchannels"]) > 1
    assert max(len(block) for gpu in algo for block in gpu) <= 64
    play(text, given, 0, 3)


def test_messages_of_many_pieces_are_several_steps() -> None:
    # Every other chunk leaves later: no two chunks of a message are neighbours.
    given = one("broadcast", ring(3), 400 * 4, 400)
    text = msccl_xml(given, along_trees(given, 400 * 4, 400))
    assert max(len(block) for gpu in ET.fromstring(text) for block in gpu) <= 64
    play(text, given, 0, 3)


def test_every_loader_can_read_it() -> None:
    given = one("allreduce", switched(2, 3), 6 * 32)
    text = msccl_xml(given, along_trees(given, 6 * 32, 1), instances=2)
    algo = ET.fromstring(text)
    # What the loaders ask of the algorithm, and their handmade parser of the text: one blank, double quotes, no tab.
    asked = "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes redop"
    assert list(algo.attrib) == asked.split()
    assert text.startswith("<algo ")
    assert not re.search(r"[\t']|<\?|  [a-z]+=", text)
    channels = int(algo.attrib["nchannels"])
    for gpu in algo:
        sends, receives = set(), set()
        for block in gpu:
            peers, channel = (int(block.attrib["send"]), int(block.attrib["recv"])), int(block.attrib["chan"])
            assert 0 <= channel < channels
            assert (peers[0], channel) not in sends and (peers[1], channel) not in receives
            sends |= {(peers[0], channel)} if peers[0] >= 0 else set()
            receives |= {(peers[1], channel)} if peers[1] >= 0 else set()
            for place, step in enumerate(block):
                # A chain of waits ends in a step that waits itself.
                if step.attrib["type"] == "nop":
                    assert block[place + 1].attrib["depid"] != "-1"
                if step.attrib["depid"] != "-1":
                    awaited = gpu[int(step.attrib["depid"])][int(step.attrib["deps"])]
                    assert awaited.attrib["hasdep"] == "1"


def test_a_table_gives_a_file_for_each_range() -> None:
    given = problem(ring(4), "allgather", 64, chunk_counts=(1,))
    small, large = along_trees(given, 64, 1), along_trees(given, 1 << 24, 1)
    files = msccl_files(given, table(given, small, replace(large, from_bytes=4096)))
    heads = [ET.fromstring(text).attrib for text in files.values()]
    assert [(h["minBytes"], h["maxBytes"], h["proto"]) for h in heads] == [("0", "4095", "LL"), ("4096", "0", "Simple")]


def test_what_does_not_fit_is_refused_in_words() -> None:
    topology = ring(4)
    uneven = problem(topology, "alltoallv", 1, pair_bytes=((8,) * 4,) * 4)
    with pytest.raises(InputError, match=r"MSCCL.*alltoallv"):
        msccl_xml(uneven, along_trees(uneven, 128, 1))
    mixed = problem(topology, "custom", 1, custom=(Chunk(8, (0,), (1,)),))
    with pytest.raises(InputError, match="MSCCL"):
        msccl_xml(mixed, along_trees(mixed, 8, 1))
    given = one("allgather", topology, 64)
    with pytest.raises(InputError, match="instances"):
        msccl_xml(given, along_trees(given, 64, 1), instances=3)
    with pytest.raises(InputError, match=r"threadblocks|channels"):
        wide = one("allgather", switched(1, 8), 8 * 64)
        msccl_xml(wide, along_trees(wide, 8 * 64, 1), instances=16)
    with pytest.raises(InputError, match="peers on a channel"):
        star = one("broadcast", switched(1, 40), 16)
        msccl_xml(star, along_trees(star, 16, 1))
    with pytest.raises(InputError, match="threadblock holds 64"):
        crowd = one("allreduce", ring(70), 16)
        msccl_xml(crowd, along_trees(crowd, 16, 1, "gather"))


def test_instances_that_no_loader_holds_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a plan whose chunks divide by anything: the number alone says it."""
    exports = {export.name: export for export in KINDS["collective"].exports}
    for name, most in (("msccl", msccl.CHANNELS), ("mscclpp", mscclpp.BLOCKS)):
        (number,) = exports[name].numbers
        assert number.most == most
        assert number.checked(most, "instances") == most
        with pytest.raises(InputError, match=f"from 1 to {most}"):
            number.checked(most + 1, "instances")
    # Also where it is called from Python, and where it is the links that make it too many.
    for module in (msccl, mscclpp):
        monkeypatch.setattr(module, "fitted", lambda *_, **__: pytest.fail("it was built"))
    size = 4 * 15_625_000
    given = one("allgather", ring(4), size)
    plan = along_trees(given, size, 1)
    for instances in (250, 15_625_000):
        with pytest.raises(InputError, match=r"channels|threadblocks"):
            msccl_xml(given, plan, instances=instances)
        with pytest.raises(InputError, match="threadblocks"):
            mscclpp.mscclpp_plan(given, plan, name="n", instances=instances)
