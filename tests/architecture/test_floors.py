"""A floor imports only from floors below it, and each outside package belongs to one floor."""

from __future__ import annotations

import sys

import pytest

from tests.architecture.sources import Source, sources

# Floor -> the floors it stands on.
BELOW = {
    "solvers": set(),
    "models": {"solvers"},
    "planner": {"solvers", "models"},
    "api": {"solvers", "models", "planner"},
    "executor": {"models"},
}
# Of the solvers, a model may know the arrays of a program, not how one is solved.
MODELS_MAY_USE = {"loadmaster.solvers.program", "loadmaster.solvers.solution"}
KINDS = {"memory", "placement", "partition", "collective", "graph", "index", "training"}
# Kind -> the rooms of other kinds that it stands on, and why.
STANDS_ON = {"training": {"loadmaster.models.placement.problem"}}  # tiers, and how times are written
# Module outside the rooms of kinds -> the kinds whose rooms it imports, and why. All others ask the registration.
FOR_CERTAIN_KINDS = {
    "loadmaster.api.cli.demo": {"memory"},  # a command about that kind
    "loadmaster.api.cli.new_collective": {"collective"},  # the kind's own module for ``new``
    "loadmaster.api.cli.new_graph": {"graph"},  # the kind's own module for ``new``
    "loadmaster.api.cli.new_index": {"index"},  # the kind's own module for ``new``
    "loadmaster.api.cli.new_memory": {"memory"},  # the kind's own module for ``new``
    "loadmaster.api.cli.new_partition": {"partition"},  # the kind's own module for ``new``
    "loadmaster.api.cli.new_placement": {"placement"},  # the kind's own module for ``new``
    "loadmaster.api.cli.new_training": {"training"},  # the kind's own module for ``new``
    "loadmaster.api.cli.tune": {"index"},  # a command about that kind
    "loadmaster.executor.fit_command": {"memory", "training"},  # the same on the command line
    "loadmaster.executor.fitting": {"memory", "training"},  # the call that chooses between these kinds
    "loadmaster.executor": {"memory", "partition", "placement", "training"},  # the public names of the floor
}
# Outside package -> the only floors that may import it.
OUTSIDE = {
    "torch": {"executor"},
    "triton": {"executor"},
    "highspy": {"solvers"},
    "ortools": {"solvers"},
    "pulp": {"solvers"},
    "networkx": {"models", "planner", "executor"},
    "pydantic": {"models", "api"},
    "pydantic_core": {"models"},
    "resvg_py": {"api"},
    "fastapi": {"api"},
    "starlette": {"api"},
    "ray": {"api"},
    "uvicorn": {"api"},
    "sqlalchemy": {"api"},
    "alembic": {"api"},
    "psycopg": {"api"},
    "opentelemetry": {"api"},
    "prometheus_client": {"api"},
    "jinja2": {"api"},
    "markupsafe": {"api"},
    "httpx": {"api"},
    "shtab": {"api"},
    "anyio": {"api"},
    "numpy": {"solvers", "models", "planner", "api", "executor"},
}


def floor(name: str) -> str | None:
    """The floor a module is on; None for the package itself, its errors and its version."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in BELOW else None


def kind(name: str) -> str | None:
    """The kind a module belongs to, if to one."""
    return next((part for part in name.split(".")[2:] if part in KINDS), None)


def housed() -> list[Source]:
    return [source for source in sources() if floor(source.name) is not None]


@pytest.mark.slow
def test_every_floor_has_sources() -> None:
    assert {floor(source.name) for source in housed()} == set(BELOW)


def test_floors_import_only_what_is_below_them() -> None:
    wrong = []
    for source in housed():
        here = floor(source.name)
        assert here is not None
        for line, module in source.imports():
            there = floor(module) if module.startswith("loadmaster.") else None
            if there is not None and there != here and there not in BELOW[here]:
                wrong.append(f"{source.path.name}:{line}: {source.name} imports {module}")
    assert wrong == []


def test_models_know_arrays_but_no_solver() -> None:
    wrong = [
        f"{source.name}:{line}: {module}"
        for source in housed()
        if floor(source.name) == "models"
        for line, module in source.imports()
        if module.startswith("loadmaster.solvers") and module not in MODELS_MAY_USE
    ]
    assert wrong == []


def test_kinds_do_not_import_sideways() -> None:
    wrong = [
        f"{source.name}:{line}: {module}"
        for source in housed()
        if kind(source.name) is not None
        for line, module in source.imports()
        if module.startswith("loadmaster.")
        and kind(module) not in (None, kind(source.name))
        and module not in STANDS_ON.get(str(kind(source.name)), ())
    ]
    assert wrong == []


# Rooms that several kinds use, and what they stand on, in the executor.
PRIVATE = "loadmaster.executor.torch_private"
COMMON = {
    PRIVATE: (),
    "loadmaster.executor.steps": (PRIVATE,),
    "loadmaster.executor.costs": ("loadmaster.executor.steps", PRIVATE),
}


def inside(module: str, room: str) -> bool:
    """Whether a module is a room or in it."""
    return module == room or module.startswith(f"{room}.")


@pytest.mark.parametrize("room", COMMON)
def test_common_rooms_of_the_executor_know_no_kind(room: str) -> None:
    here = [source for source in sources() if inside(source.name, room)]
    assert here
    wrong = [
        f"{source.name}:{line}: {module}"
        for source in here
        for line, module in source.imports()
        if (inside(module, "loadmaster.executor") and not any(inside(module, r) for r in (room, *COMMON[room])))
        or (module.startswith("loadmaster.") and kind(module) is not None)
    ]
    assert wrong == []


# The rooms of memory in the executor, each standing on those before it. What is in none of them comes before fit.
STACKED = ("implementations.triton_kernels", "implementations", "operators", "run", "", "fit")


def test_rooms_of_memory_are_stacked() -> None:
    def place(module: str) -> int:
        return next(i for i, room in enumerate(STACKED) if room and inside(module, f"{memory}.{room}"))

    memory = "loadmaster.executor.memory"
    level = {source.name: STACKED.index("") for source in sources() if inside(source.name, memory)}
    level |= {m: place(m) for m in level if any(room and inside(m, f"{memory}.{room}") for room in STACKED)}
    wrong = [
        f"{source.name}:{line}: {module}"
        for source in sources()
        if source.name in level
        for line, module in source.imports()
        if module in level and level[module] > level[source.name]
    ]
    assert wrong == []


def test_common_rooms_ask_the_registration_for_kinds() -> None:
    found: dict[str, set[str]] = {}
    for source in housed():
        if kind(source.name) is None:
            for _, module in source.imports():
                if module.startswith("loadmaster.") and (name := kind(module)) is not None:
                    found.setdefault(source.name, set()).add(name)
    assert found == FOR_CERTAIN_KINDS


def test_outside_packages_stay_on_their_floors() -> None:
    wrong = []
    for source in housed():
        for line, module in source.imports():
            package = module.split(".")[0]
            if package in sys.stdlib_module_names or package == "loadmaster" or module.startswith("."):
                continue
            if floor(source.name) not in OUTSIDE.get(package, set()):
                wrong.append(f"{source.name}:{line}: {module}")
    assert wrong == []


def test_imports_are_absolute() -> None:
    wrong = [f"{s.name}:{line}" for s in sources() for line, module in s.imports() if module.startswith(".")]
    assert wrong == []
