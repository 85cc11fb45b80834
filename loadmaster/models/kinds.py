"""Registry of the kinds of problem: the one place that lists them.

A kind of this package is one more entry of :data:`KINDS`. A kind of another package is one entry point of the group
``loadmaster.kinds`` that names its :class:`~loadmaster.models.kind.Kind`. Either way command line, service, client and
pages serve it (see docs/add-a-kind.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.checking import checked
from loadmaster.models.documents import MEASUREMENT_SCHEMA, Document, load_document, write
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Export, Kind, Limit, Number, Problem, Verdict, resolve
from loadmaster.models.registering import budget, page, picture, program, table, trace

__all__ = [
    "KINDS",
    "Plan",
    "Problem",
    "Verdict",
    "all_kinds",
    "check_plan",
    "find_kind",
    "kind_named",
    "load_plan",
    "load_problem",
    "read_measurement",
    "read_plan",
    "read_problem",
    "write_plan",
    "write_problem",
]

ENTRY_POINTS = "loadmaster.kinds"
# Each instance takes a channel of MSCCL, and a threadblock of MSCCL++.
_MSCCL_INSTANCES = Number("instances", 1, "parallel copies of every transfer", most=32)
_MSCCLPP_INSTANCES = replace(_MSCCL_INSTANCES, most=108)

KINDS: dict[str, Kind] = {
    "memory": Kind(
        name="memory",
        question="under a byte budget, keep, recompute or offload each activation; which implementation, when?",
        documents="loadmaster.models.memory.documents",
        validate="loadmaster.models.memory.graph_rules:check_problem",
        check="loadmaster.models.memory.checker:check_plan",
        statements="loadmaster.models.memory.statements:STATEMENTS",
        plan="loadmaster.planner.memory.driver:plan_memory",
        methods=("auto", "monet", "checkmate", "chen", "gist", "plain"),
        limit=budget(
            whole="loadmaster.models.memory.plain:peak_bytes",
            whole_words="the peak with memory to spare",
            points="loadmaster.models.memory.budgets:spread",
            with_bound="loadmaster.planner.memory.answer:with_bound",
            extras="loadmaster.api.report.memory.views:frontier_extras",
            restrictions="loadmaster.models.memory.restricted:restrictions",
        ),
        views="loadmaster.api.report.memory.views",
        exports=(
            page("memory"),
            picture("memory", "memory over the step as a picture"),
            trace("memory"),
            program("memory"),
            Export(
                name="snapshot",
                help="planned memory for PyTorch's viewer",
                media_type="application/octet-stream",
                write="loadmaster.api.report.memory.snapshot:snapshot_bytes",
                suffix=".pickle",
                hint="open it at https://pytorch.org/memory_viz",
            ),
        ),
        new="loadmaster.api.cli.new_memory",
        capture="loadmaster.executor.memory.command:main",
        captured_by_default=True,
        summary="loadmaster.models.memory.summary:summary",
        measurement="loadmaster.models.memory.measurement:read_measurement",
    ),
    "collective": Kind(
        name="collective",
        question="over which links, in which order, does each chunk of a collective travel?",
        documents="loadmaster.models.collective.documents",
        validate="loadmaster.models.collective.documents:check_problem",
        check="loadmaster.models.collective.checker:check_plan",
        statements="loadmaster.models.collective.statements:STATEMENTS",
        plan="loadmaster.planner.collective.driver:plan_collective",
        methods=("auto", "greedy", "pipeline", "cpsat"),
        views="loadmaster.api.report.collective.views",
        exports=(
            page("collective"),
            picture("collective", "time by size, and who sends when, as a picture"),
            trace("collective"),
            Export(
                name="msccl",
                help="MSCCL XML, a file for each algorithm",
                media_type="application/xml",
                write="loadmaster.api.report.collective.views:msccl",
                numbers=(_MSCCL_INSTANCES,),
            ),
            Export(
                name="mscclpp",
                help="MSCCL++ execution plans, one for each algorithm",
                media_type="application/json",
                write="loadmaster.api.report.collective.views:mscclpp",
                numbers=(_MSCCLPP_INSTANCES,),
            ),
        ),
        new="loadmaster.api.cli.new_collective",
        summary="loadmaster.models.collective.problem:summary",
    ),
    "placement": Kind(
        name="placement",
        question="when training outgrows the device: which tier holds which block when, and what moves next?",
        documents="loadmaster.models.placement.documents",
        validate="loadmaster.models.placement.documents:check_problem",
        check="loadmaster.models.placement.checker:check_plan",
        statements="loadmaster.models.placement.statements:STATEMENTS",
        plan="loadmaster.planner.placement.driver:plan_placement",
        methods=("auto", "greedy"),
        limit=budget(
            whole="loadmaster.models.placement.limits:peak_bytes",
            whole_words="the peak with memory to spare",
            points="loadmaster.models.placement.limits:spread",
            extras="loadmaster.api.report.placement.views:frontier_extras",
        ),
        views="loadmaster.api.report.placement.views",
        exports=(
            page("placement"),
            picture("placement", "memory over the step, what is away and the links as a picture"),
            trace("placement"),
        ),
        new="loadmaster.api.cli.new_placement",
        capture="loadmaster.executor.placement.command:main",
        summary="loadmaster.models.placement.summary:summary",
        simulate="loadmaster.api.report.placement.simulation:simulate",
        policies=("lru", "belady", "correlation", "plan"),
    ),
    "partition": Kind(
        name="partition",
        question="how is every tensor and operator split over a mesh of GPUs?",
        documents="loadmaster.models.partition.documents",
        validate="loadmaster.models.partition.documents:check_problem",
        check="loadmaster.models.partition.checker:check_plan",
        statements="loadmaster.models.partition.statements:STATEMENTS",
        plan="loadmaster.planner.partition.driver:plan_partition",
        methods=(
            "auto",
            "module",
            "recursive",
            "equal-chop",
            "no-reduction",
            "all-row",
            "spartan",
            "data-parallel",
            "fsdp",
            "megatron",
        ),
        limit=budget(
            whole="loadmaster.models.partition.limits:whole_bytes",
            whole_words="what one GPU would need",
            points="loadmaster.models.partition.limits:spread",
        ),
        views="loadmaster.api.report.partition.views",
        exports=(
            page("partition"),
            picture("partition", "what moves in each layer as a picture"),
            table("partition", "the placement of every tensor as a table"),
        ),
        new="loadmaster.api.cli.new_partition",
        capture="loadmaster.executor.partition.command:main",
        summary="loadmaster.models.partition.summary:summary",
    ),
    "graph": Kind(
        name="graph",
        question="for a graph network: which order, layout and kernel for each value?",
        documents="loadmaster.models.graph.documents",
        validate="loadmaster.models.graph.documents:check_problem",
        check="loadmaster.models.graph.checker:check_plan",
        statements="loadmaster.models.graph.statements:STATEMENTS",
        plan="loadmaster.planner.graph.driver:plan_graph",
        methods=("auto", "hector", "vanilla", "unfused"),
        limit=budget(
            whole="loadmaster.models.graph.limits:whole_bytes",
            whole_words="what its largest order takes by rule",
            points="loadmaster.models.graph.limits:spread",
        ),
        views="loadmaster.api.report.graph.views",
        exports=(
            page("graph"),
            picture("graph", "the time of each kernel as a picture"),
            table("graph", "every kernel's time, bytes and products as a table"),
            program("graph"),
        ),
        new="loadmaster.api.cli.new_graph",
        capture="loadmaster.executor.graph.command:main",
        summary="loadmaster.models.graph.summary:summary",
    ),
    "index": Kind(
        name="index",
        question="for each shard of an index of keys: which structure, with which parameters?",
        documents="loadmaster.models.index.documents",
        validate="loadmaster.models.index.documents:check_problem",
        check="loadmaster.models.index.checker:check_plan",
        statements="loadmaster.models.index.statements:STATEMENTS",
        plan="loadmaster.planner.index.driver:plan_index",
        methods=("auto", "greedy", "one-for-all"),
        limit=budget(
            whole="loadmaster.models.index.limits:whole_bytes",
            whole_words="what the fullest host takes with every shard at its quickest",
            points="loadmaster.models.index.limits:spread",
        ),
        views="loadmaster.api.report.index.views",
        exports=(
            page("index"),
            picture("index", "the time of each shard and the bytes of each host as a picture"),
            table("index", "what was chosen for every shard, with its figures, as a table"),
            program("index"),
        ),
        new="loadmaster.api.cli.new_index",
        summary="loadmaster.models.index.summary:summary",
    ),
}


@cache
def installed_kinds() -> Mapping[str, Kind]:
    """Load the kinds of other packages.

    Raises:
        InputError: a package registers what cannot be loaded, is not a kind, or has the name of a kind of this package.
    """
    found: dict[str, Kind] = {}
    for entry in entry_points(group=ENTRY_POINTS):

        def refused(problem: str, value: str = entry.value, field: str = f"{ENTRY_POINTS}.{entry.name}") -> InputError:
            return InputError(field, value, problem, "Mend or uninstall the package that registers it.")

        try:
            kind = entry.load()
        except (ImportError, AttributeError) as error:
            raise refused(f"cannot be loaded: {error}") from None
        if not isinstance(kind, Kind) or kind.name != entry.name:
            raise refused("is no kind of that name")
        if kind.name in KINDS:
            raise refused("takes the name of a kind of Loadmaster's own")
        found[kind.name] = kind
    return found


def all_kinds() -> Mapping[str, Kind]:
    """List all kinds, by name, without loading their modules."""
    return {**KINDS, **installed_kinds()}


def find_kind(name: object) -> Kind | None:
    """Find the kind of that name; None if there is none."""
    if not isinstance(name, str):
        return None
    return KINDS.get(name) or installed_kinds().get(name)


def kind_named(name: object) -> Kind:
    """Return the kind of that name.

    Raises:
        InputError: there is no such kind.
    """
    found = find_kind(name)
    if found is None:
        raise InputError("kind", name, "is no kind of problem", f"Known kinds: {', '.join(all_kinds())}.")
    return found


def limit_of(kind: object) -> Limit:
    """Return the limit that plans of a kind are made under.

    Raises:
        InputError: there is no such kind, or it has no limit.
    """
    found = kind_named(kind)
    if found.limit is None:
        raise InputError("problem.kind", found.name, "has no limit to sweep", "Plan it: one plan is all there is.")
    return found.limit


def read_problem(source: Document | str | Path | Problem) -> Problem:
    """Read a typed problem from a document, a path, or a problem (returned as it is).

    Raises:
        InputError: naming the field that is wrong.
    """
    if not isinstance(source, Mapping | str | Path):
        return source
    document = load_document(source)
    problem: Problem = kind_named(document.get("kind")).read().read_problem(document)
    return problem


def load_problem(path: str | PathLike[str]) -> Problem:
    """Load the problem that ``problem.save(path)``, ``loadmaster new`` or ``loadmaster capture`` wrote to a file.

    Raises:
        InputError: there is no such file, or it does not hold a problem; names the field that is wrong.
    """
    return read_problem(Path(path))


def write_problem(problem: Problem) -> dict[str, Any]:
    """Write the document of a typed problem."""
    return kind_named(problem.kind).read().write_problem(problem)


def read_plan(source: Document | str | Path | Plan) -> Plan:
    """Read a typed plan from a document, a path, or a plan (returned as it is).

    Raises:
        InputError: naming the field that is wrong.
    """
    if not isinstance(source, Mapping | str | Path):
        return source
    document = load_document(source)
    plan: Plan = kind_named(document.get("kind")).read().read_plan(document)
    return plan


def load_plan(path: str | PathLike[str]) -> Plan:
    """Load the plan that ``plan.save(path)``, ``loadmaster plan`` or ``loadmaster fit`` wrote to a file.

    Raises:
        InputError: there is no such file, or it does not hold a plan; names the field that is wrong.
    """
    return read_plan(Path(path))


def write_plan(plan: Plan) -> dict[str, Any]:
    """Write the document of a typed plan."""
    return kind_named(plan.kind).read().write_plan(plan)


def read_measurement(source: Document | str | Path | Any, plan: Plan) -> Any:
    """Read the measurement of a plan's run from a document, a path, or a measurement (read as its document is).

    Raises:
        InputError: the plan's kind has no measurements, or it is of another plan; else names the field that is wrong.
    """
    kind = kind_named(plan.kind)
    if kind.measurement is None:
        raise InputError("measured", plan.kind, "is a kind whose plans have no measurement", "Leave it out.")
    if is_dataclass(source):
        source = write(MEASUREMENT_SCHEMA, source)
    elif not isinstance(source, Mapping | str | Path):
        remedy = "Give what fit wrote beside the plan. Points belong beside a frontier."
        raise InputError("measured", source, "cannot be drawn beside one plan", remedy)
    return resolve(kind.measurement)(load_document(source), plan)


def check_plan(problem: Problem, plan: Plan) -> Verdict:
    """Replay a plan against its problem, independently of how it was found, and recompute all else that it states.

    Raises:
        InputError: the plan belongs to another problem, or its fields do not go together.
    """
    return checked(kind_named(problem.kind), problem, plan).verdict
