"""JSON of the kind ``collective``: problem and plan documents to typed data and back.

A problem holds its whole topology, so that a document means the same whatever presets say later.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import ROOTED, chunk_bytes, instance_of, pieces
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.documents import KindDocuments
from loadmaster.models.fields import LARGEST_BYTES
from loadmaster.models.topologies.topology import LARGEST_NS


def _check_plan(plan: CollectivePlan) -> None:
    if (plan.status == "infeasible") == bool(plan.algorithms):
        problem = f"does not go with {len(plan.algorithms)} algorithms"
        remedy = "An infeasible plan has no algorithms, any other plan has some."
        raise InputError("status", plan.status, problem, remedy)


# More chunks than this cannot be planned one by one in any time worth waiting for.
LARGEST_CHUNK_COUNT = 1 << 18


def check_problem(problem: CollectiveProblem) -> None:
    """Refuse a problem that means nothing, with an ``InputError`` that names the field. Links that do not connect what
    must meet mean something: the plan says that no schedule exists (:mod:`loadmaster.models.collective.reach`), whether
    the topology or a sketch lacks them."""
    count = problem.topology.rank_count
    if count < 2:
        raise InputError("topology.node_of", list(problem.topology.node_of), "names one rank", "Give two or more.")
    _check_fields(problem)
    _check_custom(problem)
    _check_sizes(problem)
    _check_links(problem)
    _check_sketch(problem)


def _check_fields(problem: CollectiveProblem) -> None:
    """Fields that belong to some collectives only: there where they are needed, and nowhere else."""
    given = {"root": problem.root, "pair_bytes": problem.pair_bytes, "custom": problem.custom}
    wanted = {
        "root": problem.collective in ROOTED,
        "pair_bytes": problem.collective == "alltoallv",
        "custom": problem.collective == "custom",
    }
    for field, value in given.items():
        if wanted[field] and value is None:
            raise InputError(field, None, "is missing", f"{problem.collective} needs it.")
        if value is not None and not wanted[field]:
            raise InputError(field, value, f"means nothing to {problem.collective}", "Leave it out.")
    count = problem.topology.rank_count
    if problem.root is not None and not 0 <= problem.root < count:
        raise InputError("root", problem.root, "is no rank", f"Ranks are 0 to {count - 1}.")
    if problem.pair_bytes is not None:
        _check_pairs(problem.pair_bytes, count)


def _check_pairs(pair_bytes: Sequence[Sequence[int]], count: int) -> None:
    if len(pair_bytes) != count:
        raise InputError("pair_bytes", len(pair_bytes), f"is not the number of ranks, {count}", "Give a row for each.")
    for source, row in enumerate(pair_bytes):
        if len(row) != count:
            raise InputError(
                f"pair_bytes[{source}]", len(row), f"is not the number of ranks, {count}", "Give a size for each."
            )
        for target, size_bytes in enumerate(row):
            if not 0 <= size_bytes <= LARGEST_BYTES:
                raise InputError(f"pair_bytes[{source}][{target}]", size_bytes, "is no size", "Give bytes, 0 or more.")


def _check_sizes(problem: CollectiveProblem) -> None:
    sizes = problem.sizes_bytes
    if not sizes or list(sizes) != sorted(set(sizes)) or not 1 <= sizes[0] <= sizes[-1] <= LARGEST_BYTES:
        raise InputError(
            "sizes_bytes", list(sizes), "are not sizes that ascend", "Give bytes, each once, smallest first."
        )
    counts = problem.chunk_counts
    if len(set(counts)) < len(counts) or min(counts, default=1) < 1:
        raise InputError(
            "chunk_counts", list(counts), "are not different numbers of parts", "Give each once, 1 or more."
        )
    if problem.collective == "custom" and counts:
        raise InputError(
            "chunk_counts", list(counts), "cut no custom chunks", "Leave it out; cut the chunks themselves."
        )
    most, ranks = max(_counts(problem)), problem.topology.rank_count
    largest = most * (ranks**2 if problem.collective in ("alltoall", "alltoallv") else pieces(problem))
    if largest > LARGEST_CHUNK_COUNT:
        raise InputError("chunk_counts", most, f"makes {largest} chunks", f"Ask for {LARGEST_CHUNK_COUNT} at most.")
    if problem.collective in ("alltoallv", "custom"):
        _check_total(problem)
        return
    for size_bytes in sizes:
        for chunk_count in _counts(problem):
            chunk_bytes(problem, size_bytes, chunk_count)


def _check_total(problem: CollectiveProblem) -> None:
    """Require one size, the total, where sizes are given chunk by chunk."""
    field = "pair_bytes" if problem.collective == "alltoallv" else "custom"
    total = sum(map(sum, problem.pair_bytes or ())) + sum(chunk.size_bytes for chunk in problem.custom or ())
    if problem.sizes_bytes != (total,):
        raise InputError(
            "sizes_bytes", list(problem.sizes_bytes), f"is not the sum of {field}", f"Give the one size {total}."
        )


def _check_links(problem: CollectiveProblem) -> None:
    """Check what topologies leave open: order of resources, switches, and times that can still be added up."""
    topology = problem.topology
    largest = problem.sizes_bytes[-1]
    for index, link in enumerate(topology.links):
        field = f"topology.links[{index}]"
        if list(link.resources) != sorted(set(link.resources)):
            raise InputError(f"{field}.resources", list(link.resources), "do not ascend", "Give each once, in order.")
        if link.switch is not None and link.switch not in range(len(topology.switches)):
            raise InputError(f"{field}.switch", link.switch, "is no switch", "Give an index into topology.switches.")
        if not (link.latency_ns or link.occupancy_ns(1)):
            raise InputError(
                f"{field}.gbps",
                link.gbps,
                "moves a byte in no time at all, so that nothing says what was sent first",
                "Give GB/s as the link has them, or a latency_ns or message_ns.",
            )
        if largest / link.gbps > LARGEST_NS:
            raise InputError(
                f"{field}.gbps",
                link.gbps,
                f"takes more than a year for {largest} bytes",
                "Give GB/s, or smaller sizes.",
            )


def _check_custom(problem: CollectiveProblem) -> None:
    count = problem.topology.rank_count
    if problem.custom is not None and not 1 <= len(problem.custom) <= LARGEST_CHUNK_COUNT:
        raise InputError("custom", len(problem.custom), "is no number of chunks", f"Give 1 to {LARGEST_CHUNK_COUNT}.")
    for index, chunk in enumerate(problem.custom or ()):
        field = f"custom[{index}]"
        for name, ranks in (("sources", chunk.sources), ("targets", chunk.targets)):
            if not ranks:
                raise InputError(f"{field}.{name}", [], "names no rank", "Give one or more.")
            if len(set(ranks)) < len(ranks):
                raise InputError(f"{field}.{name}", list(ranks), "names a rank twice", "Give each once.")
        senders = sorted(chunk.senders or ())
        for name, ranks in (("sources", chunk.sources), ("targets", chunk.targets), ("senders", tuple(senders))):
            for rank in ranks:
                if not 0 <= rank < count:
                    raise InputError(f"{field}.{name}", rank, "is no rank", f"Ranks are 0 to {count - 1}.")


def _check_sketch(problem: CollectiveProblem) -> None:
    if problem.sketch is not None:
        instance_of(problem, problem.sizes_bytes[0], _counts(problem)[0])


def _counts(problem: CollectiveProblem) -> tuple[int, ...]:
    """The chunk counts that a problem asks for; 1 where it leaves them to the planner."""
    drawn = None if problem.sketch is None else problem.sketch.chunk_count
    return problem.chunk_counts or (drawn or 1,)


DOCUMENTS = KindDocuments(CollectiveProblem, CollectivePlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
