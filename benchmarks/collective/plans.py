"""Direct plans for the GPUs of one switched node, written out here.

A direct plan sends every chunk in one hop (an AllReduce in two: parts to their owners, sums to all), each rank to its
next neighbour first, so that no port of the switch is asked for twice at once. Times in it are not predictions.
"""

from __future__ import annotations

from loadmaster.models.collective.collectives import chunks_of, pieces
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Algorithm, CollectivePlan, Form, Send
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.topologies.topology import Link, Topology

COLLECTIVES: tuple[Collective, ...] = ("allreduce", "allgather", "reduce_scatter", "alltoall")
_ROOTED = ("broadcast", "reduce", "scatter", "gather")
# A hop costs about this much, and a port carries this many bytes in a nanosecond; packed words are twice as many.
HOP_NS, GBPS = 1500, 370
NEVER_BYTES = 1 << 40


def node(ranks: int) -> Topology:
    """Topology of ranks around one switch: a port out and a port in each."""
    links = tuple(Link(a, b, HOP_NS, 0, GBPS, (a, ranks + b), 0) for a in range(ranks) for b in range(ranks) if a != b)
    ports = tuple(f"{way} {rank}" for way in ("egress", "ingress") for rank in range(ranks))
    return Topology(f"node of {ranks}", (0,) * ranks, links, ports, (tuple(range(ranks)),))


def crossover_bytes(ranks: int) -> int:
    """Size from which an AllReduce in two hops is faster than in one: it saves 2(n-1) - 4(n-1)/n sizes of packed words.

    Two ranks save none at any size.
    """
    saved = 2 * (ranks - 1) - 4 * (ranks - 1) / ranks
    return int(HOP_NS * GBPS / saved) if saved else NEVER_BYTES


def direct(collective: Collective, ranks: int) -> tuple[CollectiveProblem, CollectivePlan]:
    """Build a problem of one node and its direct plan."""
    root = 0 if collective in _ROOTED else None
    problem = CollectiveProblem(collective, node(ranks), collective, (16 * ranks,), root=root)
    algorithms = [_algorithm(problem, "direct", 1)]
    if collective == "allreduce":
        algorithms = [_algorithm(problem, "gather", 1), _algorithm(problem, "direct", crossover_bytes(ranks))]
    return problem, _plan(problem, tuple(algorithms))


def _algorithm(problem: CollectiveProblem, form: Form, from_bytes: int) -> Algorithm:
    size = 16 * pieces(problem)
    sends: list[Send] = []
    for index, chunk in enumerate(chunks_of(problem, size, 1, form)):
        sends += _sends(index, chunk, problem.topology.rank_count, index)
    ordered = tuple(sorted(sends, key=lambda s: (s.start_ns, s.source, s.target)))
    return Algorithm(size, 1, form, ordered, 1, 1, "none", 1, from_bytes, "direct")


def _sends(index: int, chunk: Chunk, ranks: int, owner: int) -> list[Send]:
    if not chunk.reduces:
        source = chunk.sources[0]
        return [Send((t - source) % ranks, source, t, (index,)) for t in chunk.targets if t != source]
    home = chunk.targets[owner % len(chunk.targets)]
    parts = [Send((home - s) % ranks, s, home, (index,), True) for s in chunk.sources if s != home]
    return parts + [Send(ranks + (t - home) % ranks, home, t, (index,)) for t in chunk.targets if t != home]


def _plan(problem: CollectiveProblem, algorithms: tuple[Algorithm, ...]) -> CollectivePlan:
    return CollectivePlan(
        name="direct",
        problem_sha256=problem.sha256,
        status="feasible",
        objective=None,
        bound=None,
        gap=None,
        unit="ns",
        method="direct",
        stopped_by="method",
        seconds={},
        solver={},
        check={},
        algorithms=algorithms,
    )
