"""Algorithms by hand for tests: every chunk along a random tree. Not fast, and right by construction."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Form, Send
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.topologies.topology import Topology

STEP_NS = 1_000_000


def along_trees(
    problem: CollectiveProblem, size_bytes: int, chunk_count: int, form: Form = "direct", seed: int = 0
) -> Algorithm:
    """Chunks that take the same link at the same time travel together."""
    chance = random.Random(seed)
    sends: dict[tuple[int, int, int, bool], list[int]] = defaultdict(list)
    for index, chunk in enumerate(chunks_of(problem, size_bytes, chunk_count, form)):
        late = chance.choice((0, STEP_NS // 2))
        for level, source, target, combines in _journey(problem.topology, chunk, chance):
            sends[late + level * STEP_NS, source, target, combines].append(index)
    ordered = sorted(
        (
            Send(start, source, target, tuple(sorted(chunks)), combines)
            for (start, source, target, combines), chunks in sends.items()
        ),
        key=lambda s: (s.start_ns, s.source, s.target),
    )
    time_ns = max((s.start_ns for s in ordered), default=0) + STEP_NS
    return Algorithm(size_bytes, chunk_count, form, tuple(ordered), time_ns, time_ns // 2, "by hand", time_ns // 4)


def one_after_another(problem: CollectiveProblem, algorithm: Algorithm) -> Algorithm:
    """The same, with every send after the arrival of the one before: no two can collide."""
    chunks = chunks_of(problem, algorithm.size_bytes, algorithm.chunk_count, algorithm.form)
    sends, now_ns = [], 0
    for send in algorithm.sends:
        link = problem.topology.links[problem.topology.link_between[send.source, send.target]]
        sends.append(replace(send, start_ns=now_ns))
        now_ns += link.transfer_ns(sum(chunks[c].size_bytes for c in send.chunks))
    bounds = {"bound_ns": now_ns // 2, "throughput_bound_ns": now_ns // 4}
    return replace(algorithm, sends=tuple(sends), time_ns=now_ns, **bounds)


def table(problem: CollectiveProblem, *algorithms: Algorithm) -> CollectivePlan:
    """A plan of these."""
    objective = sum(a.time_ns for a in algorithms) / 1e3
    return CollectivePlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="feasible",
        objective=objective,
        bound=objective / 2,
        gap=0.5,
        unit="us",
        method="by hand",
        stopped_by="method",
        seconds={"build": 0.0, "solve": 0.0, "check": 0.0},
        solver={},
        check={"ok": True},
        algorithms=algorithms,
    )


def _journey(topology: Topology, chunk: Chunk, chance: random.Random) -> list[tuple[int, int, int, bool]]:
    """(level, source, target, combines): parts up a tree to a root, then the whole down to the targets."""
    root = chance.choice(chunk.targets) if chunk.reduces else chunk.sources[0]
    # Parts go up along the links that lead to the root, the whole goes down those that lead away.
    up, depth_up = _tree(topology, root, chance, towards=True)
    down, depth_down = _tree(topology, root, chance, towards=False)
    found, lowest = [], 0
    if chunk.reduces:
        lowest = max(depth_up.values())
        found += [(lowest - depth_up[rank], rank, parent, True) for rank, parent in up.items()]
    needed: set[int] = set()
    for target in chunk.targets:
        while target != root and target not in needed:
            needed.add(target)
            target = down[target]
    found += [(lowest + depth_down[rank], down[rank], rank, False) for rank in needed]
    return found


def _tree(topology: Topology, root: int, chance: random.Random, towards: bool) -> tuple[dict[int, int], dict[int, int]]:
    """Parent and depth of every rank, along links towards the root or away from it."""
    parent: dict[int, int] = {}
    depth, queue = {root: 0}, [root]
    while queue:
        rank = queue.pop(0)
        links = [topology.links[k] for k in (topology.in_links if towards else topology.out_links)[rank]]
        near = [link.source if towards else link.target for link in links]
        chance.shuffle(near)
        for other in near:
            if other not in depth:
                parent[other], depth[other] = rank, depth[rank] + 1
                queue.append(other)
    return parent, depth
