"""MSCCL++ plans, read back and run by an interpreter of their own: right data, no deadlock, within the limits."""

from __future__ import annotations

import json
import random
from collections import defaultdict, deque
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.collective.exports.mscclpp import mscclpp_files, mscclpp_plan
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from tests.models.collective.buffers_by_hand import UNWRITTEN, after, before
from tests.models.collective.handmade import along_trees, table
from tests.models.collective.tiny import problem, ring, switched

KNOWN: tuple[Collective, ...] = ("allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast")
WRITES = ("put", "re", "copy")
WAITS = ("wait", "sem_acquire")


class Machine:
    """Threadblocks and one proxy for every port channel; whoever can go on does, at random.

    Twice in a row over the same semaphores and signals: a run must leave them as it found them.
    """

    def __init__(self, document: Any, inputs: list[Any], outputs: list[Any], seed: int) -> None:
        self.gpus, self.chance = document["gpus"], random.Random(seed)
        self.memory = [
            {"i": inputs[r], "o": outputs[r], "s": np.full(g["scratch_chunks"], UNWRITTEN)}
            for r, g in enumerate(self.gpus)
        ]
        for r, g in enumerate(self.gpus):
            assert g["id"] == r and len(inputs[r]) <= g["input_chunks"] and len(outputs[r]) <= g["output_chunks"]
        self.semaphores = [[s["init_value"] for s in g["semaphores"]] for g in self.gpus]
        # (rank, kind) -> its channels as (peer, how many channels to that peer come before it).
        self.ends: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for r, g in enumerate(self.gpus):
            for group in g["channels"]:
                peers = group["connected_to"]
                numbered = [(peer, peers[:n].count(peer)) for n, peer in enumerate(peers)]
                self.ends[r, group["channel_type"]] = numbered
        self.signals: dict[tuple[int, int, str, int], int] = defaultdict(int)
        self.proxies: dict[tuple[int, int, str, int], deque[Any]] = defaultdict(deque)

    def run(self) -> None:
        at = {(r, b["id"]): 0 for r, g in enumerate(self.gpus) for b in g["threadblocks"]}
        alive = [("block", key) for key in at if self.block(key)["ops"]]
        while alive or any(self.proxies.values()):
            actors = alive + [("proxy", key) for key, queue in self.proxies.items() if queue]
            self.chance.shuffle(actors)
            for kind, key in actors:
                if kind == "proxy":
                    self.proxies[key].popleft()()
                    break
                if self.operation(key, self.block(key)["ops"][at[key]]):
                    at[key] += 1
                    break
            else:
                raise AssertionError(f"deadlock: {[(k, self.block(k)['ops'][at[k]]) for _, k in alive]}")
            alive = [(kind, key) for kind, key in alive if at[key] < len(self.block(key)["ops"])]
        assert not any(self.signals.values())
        assert not any(any(values) for values in self.semaphores)

    def block(self, key: tuple[int, int]) -> Any:
        return self.gpus[key[0]]["threadblocks"][key[1]]

    def wire(self, key: tuple[int, int], op: Any) -> tuple[int, int, str, int]:
        """(from, to, kind, number) of the channel that a block's operation names."""
        groups = [g for g in self.block(key)["channels"] if g["channel_type"] == op["channel_type"]]
        (index,) = {groups[0]["channel_ids"][n] for n in op["channel_ids"]}
        peer, number = self.ends[key[0], op["channel_type"]][index]
        return key[0], peer, op["channel_type"], number

    def operation(self, key: tuple[int, int], op: Any) -> bool:
        rank = key[0]
        match op["name"]:
            case "signal":
                wire = self.wire(key, op)
                if op["channel_type"] == "port":
                    self.proxies[wire].append(lambda: self.signal(wire))
                else:
                    self.signal(wire)
            case "wait":
                source, target, kind, number = self.wire(key, op)
                if not self.signals[target, source, kind, number]:
                    return False
                self.signals[target, source, kind, number] -= 1
            case "sem_acquire":
                held = self.semaphores[rank]
                if not all(held[n] for n in op["semaphore_ids"]):
                    return False
                for n in op["semaphore_ids"]:
                    held[n] -= 1
            case "sem_release":
                for n in op["semaphore_ids"]:
                    self.semaphores[rank][n] += 1
            case "flush":
                return not self.proxies[self.wire(key, op)]
            case "put" | "pws":
                self.put(key, op)
            case "copy" | "re":
                self.write(self.memory[rank], op["dst_buff"][0], sum(self.read(rank, b) for b in op["src_buff"]))
            case name:
                assert name == "nop"
        return True

    def signal(self, wire: tuple[int, int, str, int]) -> None:
        self.signals[wire] += 1

    def put(self, key: tuple[int, int], op: Any) -> None:
        assert len(op["src_buff"]) == len(op["dst_buff"]) <= 8
        # The executor takes the base of the first source for all of them.
        assert op["channel_type"] == "port" or len({b["type"] for b in op["src_buff"]}) == 1
        refs = [r for r in self.block(key)["remote_buffer_refs"] if r["access_channel_type"] == op["channel_type"]]
        for source, target in zip(op["src_buff"], op["dst_buff"], strict=True):
            remote = self.gpus[key[0]]["remote_buffers"][refs[0]["remote_buffer_ids"][target["buffer_id"]]]
            assert op["channel_type"] in remote["access_channel_types"]
            if op["channel_type"] == "memory":
                assert op["name"] == "put", "through memory a put does not signal"
                self.carry(key[0], source, remote, target)
                continue
            wire = self.wire(key, op)
            assert wire[1] == remote["rank"] and len(op["channel_ids"]) == len(op["src_buff"])
            self.proxies[wire].append(lambda s=source, m=remote, t=target: self.carry(key[0], s, m, t))
            if op["name"] == "pws":
                self.proxies[wire].append(lambda w=wire: self.signal(w))

    def carry(self, rank: int, source: Any, remote: Any, target: Any) -> None:
        self.write(self.memory[remote["rank"]], {**target, "type": remote["type"]}, self.read(rank, source))

    def read(self, rank: int, place: Any) -> Any:
        buffer = self.memory[rank][place["type"]]
        assert place["index"] + place["size"] <= len(buffer)
        data = buffer[place["index"] : place["index"] + place["size"]]
        assert (data > UNWRITTEN // 2).all(), "read before it was written"
        return data.copy()

    def write(self, memory: Any, place: Any, data: Any) -> None:
        assert len(data) == place["size"] and place["index"] + place["size"] <= len(memory[place["type"]])
        memory[place["type"]][place["index"] : place["index"] + place["size"]] = data


def expect_arrays_hold(document: Any) -> None:
    """The limits of the executor's structures, and the barriers between threads that its operations need."""
    for gpu in document["gpus"]:
        for number, block in enumerate(gpu["threadblocks"]):
            assert block["id"] == number and len(block["ops"]) <= 64
            for kind in ("memory", "port"):
                named = [c["channel_ids"] for c in block["channels"] if c["channel_type"] == kind]
                assert sum(map(len, named)) <= 16
            assert all(len(r["remote_buffer_ids"]) <= 16 for r in block["remote_buffer_refs"])
            for op in block["ops"]:
                assert len(op.get("channel_ids", ())) <= 8 and len(op.get("semaphore_ids", ())) <= 16
                assert len(op.get("src_buff", ())) <= 10 and len(op.get("dst_buff", ())) <= 10
            names = [op["name"] for op in block["ops"]]
            settled = [name for name in names if name in (*WRITES, *WAITS, "nop", "signal", "sem_release", "pws")]
            for one, two in pairwise(settled):
                assert not (one in WRITES and two in ("signal", "sem_release", "pws")), names
                assert not (one in WAITS and two in (*WRITES, "pws")), names


def play(document: Any, given: CollectiveProblem, seed: int) -> None:
    n = given.topology.rank_count
    units = max(g["input_chunks"] for g in document["gpus"])
    if given.collective in ("reduce_scatter", "allreduce", "alltoall"):
        units //= n
    inputs = before(given, units, seed)
    wanted = after(given, inputs, units)
    outputs = [np.full(len(w), UNWRITTEN) for w in wanted]
    machine = Machine(document, [i.copy() for i in inputs], outputs, seed)
    for _ in range(2):
        machine.run()
        assert all((o == w).all() for o, w in zip(outputs, wanted, strict=True))
        for output in outputs:
            output[:] = UNWRITTEN


def one(collective: Collective, topology: Any, size_bytes: int, chunk_count: int = 1) -> CollectiveProblem:
    more = {"root": topology.rank_count - 1} if collective == "broadcast" else {}
    return problem(topology, collective, size_bytes, chunk_counts=(chunk_count,), **more)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    collective=st.sampled_from(KNOWN),
    topology=st.sampled_from([ring(2), ring(5), switched(1, 4), switched(2, 2), switched(2, 3)]),
    chunk_count=st.integers(1, 3),
    instances=st.sampled_from([1, 2]),
    seed=st.integers(0, 1 << 20),
)
def test_it_does_what_the_collective_means(
    collective: Collective, topology: Any, chunk_count: int, instances: int, seed: int
) -> None:
    size = topology.rank_count * chunk_count * 32
    given = one(collective, topology, size, chunk_count)
    algorithm = along_trees(given, size, chunk_count, seed=seed)
    document = json.loads(json.dumps(mscclpp_plan(given, algorithm, name="x", instances=instances)))
    expect_arrays_hold(document)
    play(document, given, seed)


@pytest.mark.parametrize("ranks", [3, 12])
def test_gathering_and_adding_up(ranks: int) -> None:
    given = one("allreduce", ring(ranks), 32)
    document = mscclpp_plan(given, along_trees(given, 32, 1, "gather"), name="x")
    expect_arrays_hold(document)
    inputs = [np.random.default_rng(r).integers(1, 99, 1) for r in range(ranks)]
    outputs = [np.full(1, UNWRITTEN) for _ in range(ranks)]
    Machine(document, inputs, outputs, 5).run()
    assert all((o == np.sum(inputs, axis=0)).all() for o in outputs)


def test_long_links_are_dealt_out_over_threadblocks() -> None:
    given = one("alltoall", ring(6), 6 * 40 * 16, 40)
    document = mscclpp_plan(given, along_trees(given, 6 * 40 * 16, 40), name="x")
    expect_arrays_hold(document)
    assert max(len(g["threadblocks"]) for g in document["gpus"]) > 4
    play(document, given, 2)


def test_ports_join_nodes_and_memory_joins_gpus_of_one() -> None:
    given = one("allgather", switched(2, 2), 128)
    document = mscclpp_plan(given, along_trees(given, 128, 1), name="x")
    for gpu in document["gpus"]:
        peers = {group["channel_type"]: set(group["connected_to"]) for group in gpu["channels"]}
        assert peers["memory"] == {gpu["id"] ^ 1}
        assert peers.get("port", set()) <= {gpu["id"] ^ 2}


def test_a_table_gives_a_file_for_each_range() -> None:
    given = problem(ring(4), "allgather", 1024, chunk_counts=(1,))
    small, large = along_trees(given, 1024, 1), along_trees(given, 1 << 24, 1)
    plan = table(given, small, replace(large, from_bytes=4096))
    files = [json.loads(text) for text in mscclpp_files(given, plan).values()]
    # From four units of 16 bytes on.
    assert [(f["min_message_size"], f["max_message_size"]) for f in files] == [(64, 4095), (4096, 2**32 - 1)]
    assert len({f["name"] for f in files}) == 2


def test_what_is_smaller_than_the_alignment_is_left_out() -> None:
    given = problem(ring(4), "allgather", 32, chunk_counts=(1,))
    small, large = along_trees(given, 32, 1), along_trees(given, 4096, 1)
    files = mscclpp_files(given, table(given, small, replace(large, from_bytes=48)))
    assert list(files) == ["allgather-4-4096.json"]


def test_what_does_not_fit_is_refused_in_words() -> None:
    reduce = problem(ring(4), "reduce", 64, root=0)
    with pytest.raises(InputError, match=r"MSCCL\+\+.*reduce"):
        mscclpp_plan(reduce, along_trees(reduce, 64, 1), name="x")
    wide = one("allgather", switched(1, 8), 8 * 128)
    with pytest.raises(InputError, match="threadblocks"):
        mscclpp_plan(wide, along_trees(wide, 8 * 128, 1), name="x", instances=32)
    huge = one("allgather", ring(4), 1 << 33)
    with pytest.raises(InputError, match="offsets"):
        mscclpp_plan(huge, along_trees(huge, 1 << 33, 1), name="x")
