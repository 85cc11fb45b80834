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


def _kind(
    name: str,
    question: str,
    *own_exports: Export,
    picture: str,
    table: str | None = None,
    trace: bool = False,
    program: bool = False,
    **differing: Any,
) -> Kind:
    """Register a kind of this package, whose modules have its name on every floor and the same names inside.

    Args:
        picture, table: contents of the PNG, which every kind has, and of the CSV, in words.
        trace, program: whether there is a Chrome trace, and the integer program that the planner gives a solver.
        differing: fields of :class:`Kind` that are not as with other kinds.
    """
    models, report = f"loadmaster.models.{name}", f"loadmaster.api.report.{name}"
    shared = "loadmaster.api.report.views"
    exports = [
        Export("html", "a report that opens offline", "text/html", f"{shared}:html", ".html"),
        Export("png", picture, "image/png", f"{report}.views:png", ".png"),
    ]
    if trace:
        hint = "open it at https://ui.perfetto.dev"
        exports.append(Export("trace", "a Chrome trace", "application/json", f"{shared}:trace", ".json", hint))
    if table is not None:
        exports.append(Export("csv", table, "text/csv", f"{report}.views:csv", ".csv"))
    if program:
        words = "the program behind it, for other solvers"
        exports.append(Export("mps", words, "text/plain", f"{report}.views:mps", ".mps"))
    fields = {
        "documents": f"{models}.documents",
        "validate": f"{models}.documents:check_problem",
        "check": f"{models}.checker:check_plan",
        "statements": f"{models}.checker:STATEMENTS",
        "summary": f"{models}.limits:summary",
        "plan": f"loadmaster.planner.{name}.driver:plan_{name}",
        "views": f"{report}.views",
        "new": f"loadmaster.api.cli.new_{name}",
    }
    return Kind(name, question, exports=(*exports, *own_exports), **(fields | differing))


def _budget(kind: str, whole_words: str, whole: str = "limits:whole_bytes", **more: str) -> Limit:
    """Make a limit in bytes, whose functions are in the kind's module of limits."""
    models = f"loadmaster.models.{kind}"
    points = f"{models}.limits:spread"
    return Limit("budget", "budgets", "budget_bytes", "bytes", f"{models}.{whole}", whole_words, points, **more)


_KINDS = (
    _kind(
        "memory",
        "under a byte budget, keep, recompute or offload each activation; which implementation, when?",
        Export(
            name="snapshot",
            help="planned memory for PyTorch's viewer",
            media_type="application/octet-stream",
            write="loadmaster.api.report.memory.snapshot:snapshot_bytes",
            suffix=".pickle",
            hint="open it at https://pytorch.org/memory_viz",
        ),
        picture="memory over the step as a picture",
        trace=True,
        program=True,
        statements="loadmaster.models.memory.statements:STATEMENTS",
        methods=("auto", "monet", "checkmate", "chen", "gist", "plain"),
        limit=_budget(
            "memory",
            "the peak with memory to spare",
            whole="plain:peak_bytes",
            with_bound="loadmaster.planner.memory.answer:with_bound",
            extras="loadmaster.api.report.memory.views:frontier_extras",
            restrictions="loadmaster.models.memory.variants:restrictions",
        ),
        capture="loadmaster.executor.memory.command:main",
        captured_by_default=True,
        measurement="loadmaster.models.memory.measurement:read_measurement",
    ),
    _kind(
        "collective",
        "over which links, in which order, does each chunk of a collective travel?",
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
        picture="time by size, and who sends when, as a picture",
        trace=True,
        statements="loadmaster.models.collective.statements:STATEMENTS",
        summary="loadmaster.models.collective.problem:summary",
        methods=("auto", "greedy", "pipeline", "cpsat"),
    ),
    _kind(
        "placement",
        "when training outgrows the device: which tier holds which block when, and what moves next?",
        picture="memory over the step, what is away and the links as a picture",
        trace=True,
        methods=("auto", "greedy"),
        limit=_budget(
            "placement",
            "the peak with memory to spare",
            whole="limits:peak_bytes",
            extras="loadmaster.api.report.placement.views:frontier_extras",
        ),
        capture="loadmaster.executor.placement.command:main",
        simulate="loadmaster.api.report.placement.simulation:simulate",
        policies=("lru", "belady", "correlation", "plan"),
    ),
    _kind(
        "partition",
        "how is every tensor and operator split over a mesh of GPUs?",
        picture="what moves in each layer as a picture",
        table="the placement of every tensor as a table",
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
            "zero-2",
            "hsdp",
            "megatron",
        ),
        limit=_budget("partition", "what one GPU would need"),
        capture="loadmaster.executor.partition.command:main",
    ),
    _kind(
        "graph",
        "for a graph network: which order, layout and kernel for each value?",
        picture="the time of each kernel as a picture",
        table="every kernel's time, bytes and products as a table",
        program=True,
        statements="loadmaster.models.graph.statements:STATEMENTS",
        methods=("auto", "hector", "vanilla", "unfused"),
        limit=_budget("graph", "what its largest order takes by rule"),
        capture="loadmaster.executor.graph.command:main",
    ),
    _kind(
        "index",
        "for each shard of an index of keys: which structure, with which parameters?",
        picture="the time of each shard and the bytes of each host as a picture",
        table="what was chosen for every shard, with its figures, as a table",
        program=True,
        methods=("auto", "greedy", "one-for-all"),
        limit=_budget("index", "what the fullest host takes with every shard at its quickest"),
    ),
    _kind(
        "training",
        "one plan for a whole step on one GPU: what to recompute, what to offload, where each update runs?",
        picture="memory over the step, the links and updates, and every layer as a picture",
        table="where each group is stored and updated, as a table",
        trace=True,
        summary="loadmaster.planner.training.outlook:summary",
        methods=("auto", "by-hand", "zero-offload", "fsdp", "zero-infinity", "checkpoint", "plain"),
        limit=_budget(
            "training",
            "the peak with everything on the device",
            whole="limits:peak_bytes",
            extras="loadmaster.api.report.training.views:frontier_extras",
            prices="loadmaster.planner.training.prices:prices",
        ),
        measurement="loadmaster.models.training.measurement:read_measurement",
        simulate="loadmaster.api.report.training.simulation:simulate",
        policies=("plain", "checkpoint", "zero-offload", "fsdp", "zero-infinity", "by-hand", "plan"),
        capture="loadmaster.executor.training.command:main",
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


@cache
def installed_kinds() -> Mapping[str, Kind]:
    """Load the kinds of other packages. Raises InputError if a package registers what cannot be loaded, is not a kind,
    or has the name of a kind of this package."""
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
    """Return the kind of that name; raise InputError if there is none."""
    found = find_kind(name)
    if found is None:
        raise InputError("kind", name, "is no kind of problem", f"Known kinds: {', '.join(all_kinds())}.")
    return found


def limit_of(kind: object) -> Limit:
    """Return the limit that plans of a kind are made under; raise InputError for no such kind, or one without it."""
    found = kind_named(kind)
    if found.limit is None:
        raise InputError("problem.kind", found.name, "has no limit to sweep", "Plan it: one plan is all there is.")
    return found.limit


def read_problem(source: Document | str | Path | Problem) -> Problem:
    """Read a problem from a document or a path; a problem is returned as it is. InputError names the wrong field."""
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
    """Read a plan from a document or a path; a plan is returned as it is. InputError names the wrong field."""
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
    """Read the measurement of a plan's run from a document, a path, or a measurement (read as its document is). Raises
    InputError if the plan's kind has no measurements, or it is of another plan; else it names the wrong field."""
    kind = kind_named(plan.kind)
    if kind.measurement is None:
        raise InputError("measured", plan.kind, "is a kind whose plans have no measurement", "Leave it out.")
    if is_dataclass(source):
        source = write(MEASUREMENT_SCHEMA, source)
    elif not isinstance(source, Mapping | str | Path):
        remedy = "Give what fit wrote next to the plan. Points belong to a frontier."
        raise InputError("measured", source, "cannot be drawn with one plan", remedy)
    return resolve(kind.measurement)(load_document(source), plan)


def check_plan(problem: Problem, plan: Plan) -> Verdict:
    """Replay a plan against its problem, independently of how it was found, and recompute all else that it states.

    Raises:
        InputError: the plan belongs to another problem, or its fields do not go together.
    """
    return checked(kind_named(problem.kind), problem, plan).verdict
