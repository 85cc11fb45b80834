"""From a problem to an instance: the chunks of a size on the topology that the sketch leaves."""

from __future__ import annotations

from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem


def instance_of(problem: CollectiveProblem, size_bytes: int, chunk_count: int, form: Form = "direct") -> Instance:
    """The instance that algorithms of this size, chunk count and form are made for, under the problem's own sketch.

    Raises:
        InputError: the size does not divide, or the sketch does not fit the topology.
    """
    return Instance(problem.topology, chunks_of(problem, size_bytes, chunk_count, form))
