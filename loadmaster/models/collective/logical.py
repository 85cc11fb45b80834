"""Instances from problems: the chunks of a size on the topology that the sketch leaves."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem, Sketch
from loadmaster.models.collective.rotations import generator
from loadmaster.models.collective.sketch import connections, logical_topology, with_senders


def instance_of(
    problem: CollectiveProblem,
    size_bytes: int,
    chunk_count: int,
    form: Form = "direct",
    sketch: Sketch | None = None,
) -> Instance:
    """The instance that algorithms of this size, chunk count and form are made for.

    Args:
        sketch: in place of the problem's own, where the planner tries some.

    Raises:
        InputError: the size does not divide, or the sketch does not fit the topology.
    """
    chunks = chunks_of(problem, size_bytes, chunk_count, form)
    sketch = sketch or problem.sketch
    if sketch is None:
        return Instance(problem.topology, chunks, connections=(0,) * len(problem.topology.switches))
    topology = logical_topology(problem.topology, sketch)
    chunks = with_senders(topology, sketch, chunks)
    plain = Instance(topology, chunks, (), connections(topology, sketch))
    owners = _owners(problem, chunk_count, form)
    generators = tuple(
        generator(plain, offset, group, owners, f"sketch.symmetry[{index}]")
        for index, (offset, group) in enumerate(sketch.symmetry)
    )
    return Instance(topology, chunks, generators, plain.connections)


def _owners(problem: CollectiveProblem, chunk_count: int, form: Form) -> Sequence[int] | None:
    """The rank that a chunk goes along with where its ends do not say it: piece r of an AllReduce is rank r's."""
    if problem.collective != "allreduce" or form != "direct":
        return None
    return [rank for rank in range(problem.topology.rank_count) for _ in range(chunk_count)]
